"""Images, stores and mounts for the system tests. They are removed at the end.

    with workspace("name") as work, xfs(work) as disk:
        with mounted(Store(disk / "store"), work / "mnt", mode="passthrough") as mount:
            ...

A workspace is a folder of its own below CKPTFS_TMP (default /dev/shm). When it ends, by anything but SIGKILL, its
daemons are killed, all mounts below it are unmounted, loop devices over files in it are detached, and it is removed. If
a test was killed, the next test of the same name removes what it left.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pathlib
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import leftovers
from leftovers import PREFIX

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CKPTFS_BUILD", REPOSITORY / "build"))
CKPTFS = os.environ.get("CKPTFS", str(BUILD / "ckptfs"))
CKPTFS_DEBUG = os.environ.get("CKPTFS_DEBUG", str(BUILD / "debug" / "ckptfs"))  # has fault points
LEVEL = os.environ.get("CKPTFS_TEST_LEVEL", "normal")
MODES = ("passthrough", "direct")

# A busy machine is slower: a test gives up after this many times what an idle machine needs. Success costs nothing.
PATIENCE = 4

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Failure(AssertionError):
    """An expectation of the test does not hold."""


class Skip(unittest.SkipTest):
    """The machine lacks something that the test needs. The message says what; `NEED: ...` may be excused by
    tests/optional."""


def by_level(normal, long):
    return {"normal": normal, "long": long}[LEVEL]


def run(*command, check=True, timeout=120, **options):
    """Runs a command and captures its output. A status other than 0 is a Failure with the output, unless
    check=False."""
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout * PATIENCE, **options)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{' '.join(command)}: no end after {timeout * PATIENCE} s; output: {late.stdout} {late.stderr}") from late
    if check and done.returncode != 0:
        raise Failure(f"{' '.join(command)}: status {done.returncode}: {done.stdout.strip()} {done.stderr.strip()}")
    return done


def helper(name):
    """Returns the C program tests/helpers/NAME.c: the build's, or else one that is compiled for this run (impossible
    for those that need libckptfs)."""
    built = BUILD / "helpers" / name
    source = REPOSITORY / "tests" / "helpers" / f"{name}.c"
    if built.exists() and built.stat().st_mtime >= source.stat().st_mtime:
        return str(built)
    folder = scratch_root() / f"{PREFIX}helpers"
    folder.mkdir(exist_ok=True)
    made = folder / name
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        part = folder / f"{name}.{os.getpid()}"
        run("cc", "-O2", "-g", "-Wall", "-Wextra", "-pthread", "-o", part, source)
        part.rename(made)
    return str(made)


def wait_until(what, condition, seconds=10.0, pause=0.01):
    """Polls until condition() is true. An idle machine needs at most `seconds`; fails after PATIENCE times as many, with
    `what` as the reason."""
    end = time.monotonic() + seconds * PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise Failure(f"not so after {seconds * PATIENCE:g} s: {what}")
        time.sleep(pause)


# --- workspaces


def scratch_root():
    """The folder below which tests work."""
    return pathlib.Path(os.environ.get("CKPTFS_TMP", "/dev/shm"))


def detach(image):
    """Detaches every loop device over the file. They may remain for a moment after their last unmount."""

    def devices():
        return [line.split(":")[0] for line in run("losetup", "-j", image, check=False).stdout.splitlines()]

    for device in devices():
        run("losetup", "-d", device, check=False)
    wait_until(f"{image} has no loop device", lambda: not devices(), 10)


def _sweep(name):
    """Removes what a killed test of this name left."""
    for folder in scratch_root().glob(f"{PREFIX}{name}-*"):
        pid = folder.name.rsplit("-", 1)[1].split(".")[0]
        if not pid.isdigit() or not pathlib.Path(f"/proc/{pid}").exists():
            remove_workspace(folder)


def remove_workspace(folder):
    leftovers.clean(folder)
    shutil.rmtree(folder, ignore_errors=True)


def kill_daemons_of_this_process():
    for folder in scratch_root().glob(f"{PREFIX}*-{os.getpid()}.*"):
        leftovers.kill_daemons(folder)


def see_no_other_mounts():
    """Moves this process and its children into a mount namespace of their own, without the mounts of other tests.

    A command without a path means the only mount, and the machine may have others. A namespace that has a mount of
    another test would keep that mount's disk busy.
    """
    if os.geteuid() != 0:
        return  # a workspace will report it
    new_mount_namespace = 0x20000
    if ctypes.CDLL(None, use_errno=True).unshare(new_mount_namespace) != 0:
        raise Skip(f"needs a mount namespace: {os.strerror(ctypes.get_errno())}")
    run("mount", "--make-rprivate", "/")
    for point, line in reversed(leftovers.mount_table()):
        is_ours = f"{scratch_root()}/".startswith(f"{point}/")
        if " - fuse.ckptfs " in line or (f"/{PREFIX}" in point and not is_ours):
            run("umount", "-l", point, check=False)


@contextlib.contextmanager
def workspace(name):
    if os.geteuid() != 0:
        raise Skip("needs root, for mounts and loop devices")
    _sweep(name)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-{os.getpid()}.", dir=scratch_root()))
    folder.chmod(0o755)

    def leave(_signal, _frame):
        raise SystemExit("ended by a signal")

    unhandled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    before = {number: signal.signal(number, leave) for number in unhandled}
    try:
        yield folder
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        remove_workspace(folder)


@contextlib.contextmanager
def xfs(work, size=4 * GIB, sector=512, name="disk", options=()):
    """Mounts a fresh XFS with reflink, on a sparse image, at work/name. `options`: more words for mkfs.xfs."""
    image, point = work / f"{name}.xfs", work / name
    with open(image, "wb") as made:
        made.truncate(size)
    point.mkdir(exist_ok=True)
    device = run("losetup", "--show", "-f", "--sector-size", sector, image).stdout.strip()
    try:
        run("mkfs.xfs", "-q", "-f", "-m", "reflink=1", "-s", f"size={sector}", *options, device)
        run("mount", "-t", "xfs", "-o", "nouuid", device, point)
        try:
            yield point
        finally:
            unmount(point)
    finally:
        run("losetup", "-d", device, check=False)
        image.unlink()


def is_mountpoint(path):
    """os.path.ismount returns False if the file system does not answer: a dead mount, or an XFS that was shut down."""
    return str(path) in leftovers.mounts_below(path)


def unmount(point, seconds=10.0):
    """Unmounts. Retries while the kernel still uses the mount; then unmounts lazily and reports it on stderr."""
    end = time.monotonic() + seconds
    while is_mountpoint(point):
        last = run("umount", point, check=False)
        if last.returncode != 0 and time.monotonic() > end:
            print(f"{point}: {last.stderr.strip()}; unmounting lazily", file=sys.stderr)
            run("umount", "-l", point, check=False)
            return
        time.sleep(0.05)


def power_cut(point):
    """Shuts the XFS down like a power cut: what is not in its log by now is lost."""
    run("xfs_io", "-x", "-c", "shutdown", point)


@contextlib.contextmanager
def fuse_for_all():
    """Lets all users open /dev/fuse, as udev does; in a container it may be otherwise. One test at a time does this."""
    with open("/dev/fuse", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mode = stat.S_IMODE(os.stat("/dev/fuse").st_mode)
        os.chmod("/dev/fuse", 0o666)
        try:
            yield
        finally:
            os.chmod("/dev/fuse", mode)


# --- stores and mounts


def supports_passthrough():
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 9)


class Store:
    """A store folder, perhaps with an image of its own (image="1G")."""

    def __init__(self, folder, image=None, sector=512):
        self.folder = pathlib.Path(folder)
        self.image = image
        self.sector = sector

    @property
    def inner(self):
        """The folder with meta/ and blobs/."""
        return self.folder / "fs" if self.image else self.folder

    @property
    def blobs(self):
        return self.inner / "blobs"

    def filled_blobs(self):
        """Returns the number of blobs with content. Spare blobs, made ahead of the next save, are empty."""
        filled = 0
        for entry in os.scandir(self.blobs):
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                filled += entry.stat().st_size > 0
        return filled

    def fsck(self, binary=None, check=True):
        """Runs `ckptfs fsck`. The store must not be mounted."""
        done = run(binary or CKPTFS, "fsck", self.folder, check=False)
        if check and done.returncode != 0:
            raise Failure(f"fsck of {self.folder}: status {done.returncode}: {done.stdout}{done.stderr}")
        return done


class Mount:
    """A store that is mounted by a daemon of its own."""

    def __init__(self, store, point, mode="passthrough", odirect="safe", binary=None, faults=None, options=()):
        self.store = store
        self.path = pathlib.Path(point)
        self.mode = mode
        self.odirect = odirect
        self.binary = str(binary or (CKPTFS_DEBUG if faults else CKPTFS))
        self.faults = faults
        self.options = tuple(options)
        self.pid = None
        self.log = self.path.parent / f"{self.path.name}.log"

    def command(self):
        words = [self.binary, "mount", "--log", str(self.log)]
        if self.store.image:
            words += ["--image", self.store.image, "--sector", str(self.store.sector)]
        words += ["-o", f"passthrough={'on' if self.mode == 'passthrough' else 'off'}", "-o", f"odirect={self.odirect}"]
        words += ["-o", "quiet=0s"]
        for option in self.options:
            words += ["-o", option]
        return words + [str(self.store.folder), str(self.path)]

    def try_start(self):
        """Runs `ckptfs mount`. Returns the finished process."""
        if self.mode == "passthrough" and not supports_passthrough():
            raise Skip("kernel: passthrough needs Linux 6.9")
        if not os.path.exists(self.binary):
            raise Failure(f"there is no {self.binary}: run scripts/test, or scripts/build")
        with contextlib.suppress(FileExistsError, OSError):
            self.path.mkdir()
        environment = dict(os.environ)
        environment.pop("CKPTFS_FAULTS", None)
        if self.faults:
            environment["CKPTFS_FAULTS"] = self.faults
        return run(*self.command(), check=False, env=environment)

    def start(self):
        done = self.try_start()
        if done.returncode != 0:
            raise Failure(f"{' '.join(self.command())}: status {done.returncode}: {done.stdout}{done.stderr}")
        status = self.status()
        self.pid = status["pid"]
        if (self.mode == "passthrough") != status["passthrough"]["active"]:
            raise Failure(f"asked for {self.mode}, got {status['passthrough']}")
        if status["recovery"]["raised_references"] != 0:
            raise Failure(f"the index counted too few files: {status['warnings']}")
        return self

    def status(self):
        return json.loads(run(self.binary, "status", "--json", self.path).stdout)

    def stop(self, attempts=50):
        """Runs `ckptfs umount`, repeatedly while something is busy. Waits for the daemon's end."""
        for attempt in range(attempts):
            done = run(self.binary, "umount", self.path, check=False)
            if done.returncode == 0:
                break
            if attempt == attempts - 1:
                raise Failure(f"ckptfs umount {self.path}: {done.stdout}{done.stderr}")
            time.sleep(0.1)
        self.wait_for_end()

    def kill(self):
        """Kills the daemon with SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait_for_end()

    def wait_for_end(self):
        pid = self.pid
        if pid is not None:
            wait_for_end_of(pid)
        self.pid = None

    def connection(self):
        """Returns the number of its FUSE connection. Ask before its daemon may hang."""
        return str(os.minor(os.stat(self.path).st_dev))

    def alive(self):
        return self.pid is not None and _alive(self.pid)

    def remount(self):
        self.stop()
        return self.start()

    def remount_after_fsck(self):
        self.stop()
        self.store.fsck(self.binary)
        return self.start()

    def lose_power(self, close=lambda: None):
        """Cuts the power of the store's image, and kills the daemon. close() closes what is open on the mount. Then
        nothing is mounted."""
        power_cut(self.store.inner)
        self.kill()
        close()
        self.take_down()

    def take_down(self):
        """Kills the daemon and unmounts all, also the store's image."""
        abandon(self)
        if self.store.image:
            unmount(self.store.inner)
            detach(self.store.folder / "image.xfs")

    def counted(self, name):
        return self.status()["counters"][name]

    def wait_for_rounds(self, count):
        """Waits until rotation has begun and ended so many rounds, each over all series."""

        def rounds():
            return self.status()["rotation"]["rounds"]

        wanted = rounds() + count + 1  # one may be under way
        wait_until(f"rotation has {count} rounds behind it", lambda: rounds() >= wanted, 60, 0.1)

    # Saves, seals and the like, as a user without our library makes them.

    def control(self, path, name, value):
        os.setxattr(self.path / path, f"user.ckptfs.{name}", value.encode())

    def ask(self, path, name):
        return os.getxattr(self.path / path, f"user.ckptfs.{name}").decode()

    def save(self, tag, series="steps"):
        self.control(series, "save", tag)

    def seal(self, step):
        self.control(step, "seal", "1")

    def remove_step(self, step):
        shutil.rmtree(self.path / step)

    def rename_step(self, old, new):
        os.rename(self.path / old, self.path / new)

    def read_log(self):
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")[-4000:]
        return ""


class Plain:
    """Plain XFS with the interface of a Mount. It shows that a test and its model of the expected results are right.

    A save is a reflink copy made immutable (EPERM for writers, as in a step). Sealing makes the folders immutable, too.
    """

    plain = True

    def __init__(self, folder):
        self.path = pathlib.Path(folder)
        self.mode = "plain"
        (self.path / "steps").mkdir(parents=True, exist_ok=True)

    def start(self):
        return self

    def stop(self):
        pass

    def alive(self):
        return True

    def remount(self):
        return self

    def save(self, tag):
        step = self.path / "steps" / tag
        if (step / "offloaded_tensors").exists():
            raise OSError(errno.EEXIST, "saved already")
        stage = self.path / "zero_stage_3"
        for kind, to in (("optimizer", "offloaded_tensors"), ("bfloat16params", "offloaded_params")):
            for source in sorted(stage.glob(f"{kind}/rank*/*.tensor.swp")):
                if "gradient" in source.name:
                    continue
                folder = step / to / f"rank{int(source.parent.name[4:]):02d}"
                folder.mkdir(parents=True, exist_ok=True)
                run("cp", "-p", "--reflink=always", source, folder / source.name)
                run("chattr", "+i", folder / source.name)

    def seal(self, step):
        for file in sorted(path for path in (self.path / step).rglob("*") if path.is_file()):
            if "i" in run("lsattr", file).stdout.split()[0]:
                continue
            if _written_by_us(file):
                raise OSError(errno.EBUSY, "open for writing", str(file))
            copy = file.with_name(f"{file.name}.copy")  # so that no mapping and no other name reaches the file
            run("cp", "-p", "--reflink=always", file, copy)
            copy.rename(file)
        run("chattr", "-R", "+i", self.path / step)

    def remove_step(self, step):
        run("chattr", "-R", "-i", self.path / step)
        shutil.rmtree(self.path / step)

    def rename_step(self, old, new):
        immutable = "i" in run("lsattr", "-d", self.path / old).stdout.split()[0]
        run("chattr", "-i", self.path / old)
        os.rename(self.path / old, self.path / new)
        if immutable:
            run("chattr", "+i", self.path / new)

    def read_log(self):
        return ""


def _written_by_us(path):
    """Returns whether this process has the file open for writing."""
    now = os.stat(path)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            other = os.stat(f"/proc/self/fd/{name}")
            if (other.st_dev, other.st_ino) == (now.st_dev, now.st_ino):
                if fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
                    return True
    return False


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as line:
            state = line.read().rpartition(")")[2].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1  # threads may outlive their leader
    except OSError:
        return False


def wait_for_end_of(pid):
    """A daemon that was killed holds its locks for a moment."""
    wait_until(f"end of the daemon {pid}", lambda: not _alive(pid), 60)


@contextlib.contextmanager
def mounted(store, point, **options):
    """Yields a started Mount, and stops it at the end. Kills it if the stop or the body fails."""
    mount = Mount(store, point, **options)
    try:
        mount.start()
        yield mount
        if mount.alive():
            mount.stop()
    except BaseException:
        print(f"--- the daemon's log, its end ({mount.mode}):\n{mount.read_log()}---", file=sys.stderr)
        raise
    finally:
        abandon(mount)


def abandon(mount):
    """Kills and lazily unmounts what is still there."""
    if mount.alive():
        mount.kill()
    if is_mountpoint(mount.path):
        run("umount", "-l", mount.path, check=False)


# --- looking at the disk

_FIEMAP = 0xC020660B


def extents(path):
    """FIEMAP: returns (number of extents, how many of them are shared)."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        room = 4096
        buffer = bytearray(struct.pack("=QQLLLL", 0, (1 << 64) - 1, 1, 0, room, 0) + bytes(56 * room))
        fcntl.ioctl(file, _FIEMAP, buffer)
    count = struct.unpack_from("=L", buffer, 20)[0]
    flags = (struct.unpack_from("=L", buffer, 32 + 56 * index + 40)[0] for index in range(count))
    return count, sum(1 for flag in flags if flag & 0x2000)


def used_bytes(path):
    figures = os.statvfs(path)
    return (figures.f_blocks - figures.f_bfree) * figures.f_frsize


def device_stat(folder):
    """Returns the file in which the kernel counts writes to the device below the folder."""
    number = os.stat(folder).st_dev
    stat = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    if not stat.exists():
        raise Failure(f"{folder} is on no block device of its own, so that nothing tells what is written to it; "
                      "give another folder, on XFS or ext4")
    return stat


def written_bytes(folder):
    """Returns how many bytes the kernel has written to the device below the folder since the device was attached."""
    return int(device_stat(folder).read_text().split()[6]) * 512


def free_bytes(path):
    figures = os.statvfs(path)
    return figures.f_bavail * figures.f_frsize


def free_preallocated(point):
    """XFS_IOC_FREE_EOFBLOCKS: makes XFS free what it allocated ahead of writers."""
    folder = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(folder, 0x8080583A, struct.pack("=LL", 1, 1) + bytes(120))  # version; wait for busy files
    finally:
        os.close(folder)
