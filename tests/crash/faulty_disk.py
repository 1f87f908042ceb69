"""The disk of tests/helpers/faulty_disk.c below a loop device, and the log that it writes."""

import bisect
import contextlib
import json
import mmap
import os
import struct
import subprocess

from mounting import Failure, abandon, helper, is_mountpoint, run, unmount, wait_until

ZEROS, FLUSH, MARK, DATA, XFS_LOG, XFS_METADATA = range(1, 7)
SECTOR, BLOCK = 512, 4096
_GROUPS = 4
_HEADER = struct.Struct("=QQQ")


class Disk:
    """The helper's process and its loop device. With `replay`, the log exists, and go_to() sets the disk's state."""

    def __init__(self, work, name, log, mib=1024, replay=False):
        self.folder = work / f"{name}.fuse"
        self.folder.mkdir()
        self.mark = self.folder / "mark"
        self.control = None
        self.device = None
        words = [helper("faulty_disk"), str(self.folder), str(mib), str(log)] + (["replay"] if replay else [])
        self.process = subprocess.Popen(words)
        try:
            wait_until("the faulty disk is mounted", self._is_up, 30)
            self.control = os.open(self.folder / "control", os.O_RDWR)
            self.device = run("losetup", "--show", "-f", "--direct-io=on", self.folder / "disk").stdout.strip()
        except BaseException:
            self.close()
            raise

    def _is_up(self):
        if self.process.poll() is not None:
            raise Failure(f"the faulty disk ended with status {self.process.returncode}")
        return is_mountpoint(self.folder)

    def close(self):
        if self.device:
            run("losetup", "-d", self.device, check=False)
        if self.control is not None:
            os.close(self.control)
        unmount(self.folder)
        self.process.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def command(self, line):
        os.write(self.control, line.encode())

    def fault(self, what, where, **keys):
        """Makes the next matching request fail. The keys are those of the helper; `from_` stands for from."""
        self.command(" ".join(["fault", what, where, *(f"{key.rstrip('_')}={value}" for key, value in keys.items())]))

    def heal(self):
        self.command("heal")

    def counters(self):
        return json.loads(os.pread(self.control, 4096, 0))

    def wait_until_free(self):
        """Waits for other mount namespaces: a mount is copied into each one made meanwhile, and stays there until it
        ends."""

        def is_free():
            with contextlib.suppress(OSError):
                os.close(os.open(self.device, os.O_RDONLY | os.O_EXCL))
                return True
            return False

        wait_until(f"nobody has {self.device}", is_free, 60)

    def go_to(self, record, taken=()):
        """Replays: sets the disk to its state before the record, and applies those `taken` of later ones: (record,
        from, to)."""
        self.wait_until_free()
        self.command(f"at {record}")
        for number, begin, end in taken:
            self.command(f"take {number} {begin} {end}")

    def group_of(self, folder):
        """Returns (from, to) of XFS's allocation group with the folder, which also has most of the folder's content."""
        size = (os.stat(self.folder / "disk").st_size) // _GROUPS
        bits = (size // BLOCK - 1).bit_length() + 3  # of an inode's number, below the group's: 8 inodes a block
        group = os.stat(folder).st_ino >> bits
        return group * size, (group + 1) * size

    def format(self):
        self.wait_until_free()
        run("mkfs.xfs", "-q", "-f", "-K", "-m", "reflink=1", "-s", f"size={SECTOR}", "-d", f"agcount={_GROUPS}",
            self.device)

    @contextlib.contextmanager
    def mounted(self, point):
        """Mounts its XFS at `point` within the scope."""
        self.mount(point)
        try:
            yield point
        finally:
            unmount(point)

    @contextlib.contextmanager
    def below(self, mount):
        """Mounts its XFS where `mount` has its store, within the scope, in which the mount may be started."""
        with self.mounted(mount.store.folder.parent):
            try:
                yield
            finally:
                abandon(mount)

    def mount(self, point):
        point.mkdir(exist_ok=True)
        run("mount", "-t", "xfs", "-o", "nouuid", self.device, point)


class DiskLog:
    """The content of a log: kinds, places and lengths of its records, and the text of its marks."""

    def __init__(self, path):
        self.kinds, self.offsets, self.lengths, self.marks = [], [], [], []  # marks: (record, text)
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = 0
            while at + _HEADER.size <= len(data):
                kind, offset, length = _HEADER.unpack_from(data, at)
                at += _HEADER.size
                if kind == MARK:
                    self.marks.append((len(self.kinds), data[at : at + length].decode()))
                self.kinds.append(kind)
                self.offsets.append(offset)
                self.lengths.append(length)
                at += length if kind >= MARK else 0

    def __len__(self):
        return len(self.kinds)

    def marks_before(self, record):
        return [text for _, text in self.marks[: bisect.bisect_left(self.marks, (record, ""))]]

    def windows(self, begin=0):
        """Returns (flush, end) for each flush and the next one, or the end, if there is a write in between."""
        flushes = [number for number in range(begin, len(self)) if self.kinds[number] == FLUSH] + [len(self)]
        return [(one, two) for one, two in zip(flushes, flushes[1:]) if self.changes(one, two)]

    def changes(self, begin, end):
        """Returns the records from `begin` to `end` that change the disk."""
        return [number for number in range(begin, end) if self.kinds[number] not in (FLUSH, MARK)]
