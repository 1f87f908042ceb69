"""What things cost on the disk: `ckptfs du` and bytes.* against a recount of every block, after random changes.

Options: --seed, --rounds.
"""

import errno
import fcntl
import json
import os
import random
import shutil
import struct
import time

import pytest

from checking import equal, noise, opened, pwrite_all, raises, true, write
from mounting import CKPTFS, KIB, MIB, by_level, free_preallocated, run, used_bytes, wait_until
from recount import BLOCK, Recount, Unsettled, mark, usage_by_xattr
from training import STAGE, names_below

pytestmark = pytest.mark.one_mode

SWAP = f"{STAGE}/optimizer/rank0"
FOLDERS = ("work", "work/sub", "runs", SWAP)
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2
_FIDEDUPERANGE = 0xC0189436


def fallocate(file, mode, offset, length):
    run("fallocate", *(["-n"] if mode == FALLOC_KEEP_SIZE else ["-p"]), "-o", offset, "-l", length, file)


class Changes:
    """A random user. All that is written is of a few kinds of blocks, so that dedup finds something."""

    def __init__(self, mount, seed):
        self.mount = mount
        self.dice = random.Random(seed)
        self.kinds = [noise(BLOCK, kind) for kind in range(6)]
        self.made = 0
        self.history = []
        for folder in FOLDERS:
            (mount.path / folder).mkdir(parents=True, exist_ok=True)
        for _ in range(6):
            self.create()
        self.mount.control("runs", "source", f"/{STAGE}")

    def act(self):
        operations = (
            (6, self.create),
            (12, self.overwrite),
            (4, self.punch),
            (3, self.preallocate),
            (3, self.cut),
            (8, self.copy),
            (5, self.copy_within),
            (5, self.link),
            (4, self.rename),
            (5, self.remove),
            (5, self.save),
            (2, self.seal),
            (2, self.remove_step),
            (3, self.dedupe),
        )
        operation = self.dice.choices([one for _, one in operations], [weight for weight, _ in operations])[0]
        self.history.append(operation.__name__)
        operation()

    # --- choosing

    def blocks(self, count):
        return b"".join(self.dice.choices(self.kinds, k=count))

    def files(self, live):
        for name in names_below(self.mount.path):
            path = self.mount.path / name
            if live == (os.getxattr(path, "user.ckptfs.state") == b"live"):
                yield path

    def any_file(self, live=True):
        files = list(self.files(live))
        return self.dice.choice(files) if files else None

    def steps(self):
        for series in ("steps", "runs"):
            yield from (path for path in sorted((self.mount.path / series).iterdir()) if path.is_dir())

    def new_name(self, frozen=False):
        self.made += 1
        folders = [self.mount.path / folder for folder in FOLDERS if not frozen or folder != SWAP]
        folders += [step for step in self.steps() if os.getxattr(step, "user.ckptfs.seal") == b"0"]
        return self.dice.choice(folders) / f"{self.made}.tensor.swp"

    # --- changing

    def create(self):
        path = self.new_name()
        write(path, self.blocks(self.dice.randint(1, 60)) + b"x" * self.dice.choice((0, 1, 100)))
        mark(path)

    def overwrite(self):
        if path := self.any_file():
            with opened(path, os.O_WRONLY) as file:
                for _ in range(self.dice.randint(1, 4)):
                    offset = self.dice.randrange(70) * BLOCK
                    pwrite_all(file, self.blocks(self.dice.randint(1, 8)), offset)
            mark(path)

    def punch(self):
        if path := self.any_file():
            fallocate(path, FALLOC_PUNCH_HOLE, self.dice.randrange(60) * BLOCK, self.dice.randint(1, 9) * BLOCK)
            mark(path)

    def preallocate(self):
        if path := self.any_file():
            fallocate(path, FALLOC_KEEP_SIZE, self.dice.randrange(90) * BLOCK, self.dice.randint(1, 9) * BLOCK)
            mark(path)

    def cut(self):
        if path := self.any_file():
            os.truncate(path, self.dice.randint(1, 50) * BLOCK - self.dice.randrange(2))
            mark(path)

    def copy(self):
        path = self.any_file(self.dice.random() < 0.5)
        if path is None:
            return
        to = self.new_name()
        with opened(path, os.O_RDONLY) as source, opened(to, os.O_WRONLY | os.O_CREAT) as target:
            left = os.fstat(source).st_size
            while left > 0:
                left -= os.copy_file_range(source, target, left)
        mark(to)

    def copy_within(self):
        if path := self.any_file():
            with opened(path, os.O_RDWR) as file:
                offset, count = self.dice.randrange(40), self.dice.randint(1, 8)
                os.copy_file_range(file, file, count * BLOCK, offset * BLOCK, (offset + count) * BLOCK)
            mark(path)

    def link(self):
        self.name_anew(os.link)

    def rename(self):
        self.name_anew(os.rename)

    def name_anew(self, call):
        live = self.dice.random() < 0.5
        path = self.any_file(live)
        if path is not None and not self.is_sealed(path):
            name = self.new_name(frozen=not live)
            call(path, name)
            if live:  # a swap file that was elsewhere meanwhile is cloned anew by the next save
                mark(name)

    def remove(self):
        if path := self.any_file(self.dice.random() < 0.5):
            if not self.is_sealed(path):
                os.unlink(path)

    def is_sealed(self, path):
        return any(step in path.parents and os.getxattr(step, "user.ckptfs.seal") == b"1" for step in self.steps())

    def save(self):
        if not any((self.mount.path / SWAP).iterdir()):
            return
        self.made += 1
        self.mount.save(f"s{self.made}", self.dice.choice(("steps", "runs")))

    def seal(self):
        steps = list(self.steps())
        if steps:
            step = self.dice.choice(steps)
            frozen = {os.stat(path).st_ino for path in self.files(live=True) if step in path.parents}
            self.mark_all(frozen)  # so that what a save took of them has another mark
            os.setxattr(step, "user.ckptfs.seal", b"1")
            self.mark_all(frozen)  # and what has names outside and lives on, another than its frozen clone

    def mark_all(self, inodes):
        for path in self.files(live=True):
            if os.stat(path).st_ino in inodes:
                mark(path)

    def remove_step(self):
        steps = list(self.steps())
        if steps:
            shutil.rmtree(self.dice.choice(steps))

    def dedupe(self):
        """Shares equal blocks below an unmounted store: the daemon knows of its own dedup, and of no one else's."""
        self.mount.stop()
        blobs = [path for path in sorted(self.mount.store.blobs.iterdir()) if path.stat().st_size >= BLOCK]
        for _ in range(10):
            one, other = self.dice.choice(blobs), self.dice.choice(blobs)
            length = min(one.stat().st_size, other.stat().st_size) // BLOCK * BLOCK
            share_equal_blocks(one, other, length)
        self.mount.start()


def share_equal_blocks(one, other, length):
    with opened(one, os.O_RDONLY) as source, opened(other, os.O_RDWR) as target:
        for offset in range(0, length, BLOCK):
            request = bytearray(struct.pack("=QQHHLqQQlL", offset, BLOCK, 1, 0, 0, target, offset, 0, 0, 0))
            fcntl.ioctl(source, _FIDEDUPERANGE, request)


# --- comparing


def settled_recount(mount):
    end = time.monotonic() + 30
    while True:
        try:
            return Recount(mount)
        except Unsettled:
            if time.monotonic() > end:
                raise
            os.statvfs(mount.store.folder)  # has XFS begin what it put off
            time.sleep(0.05)


def without_names(row):
    return {key: row[key] for key in ("apparent", "exclusive", "shared")}


def below(path):
    return lambda name: name.startswith(f"{path}/")


def everything_told(mount, recount):
    """What `ckptfs du` and the xattrs say: of steps, of series, of files, in this order."""
    du = json.loads(run(CKPTFS, "du", "--json", mount.path).stdout)
    names = [f"{row['series']}/{row['tag']}".lstrip("/") for row in du["steps"]]
    names += ["steps", "runs", *(name for names in recount.names.values() for name in names)]
    return du, {name: usage_by_xattr(mount.path / name) for name in names}


def compare(mount):
    """A recount that holds before and after: dedup behind the scenes may be at work."""
    recount = settled_recount(mount)
    while True:
        du, xattrs = everything_told(mount, recount)
        before, recount = recount, settled_recount(mount)
        if recount.state == before.state:
            break
    steps = {f"{row['series']}/{row['tag']}".lstrip("/"): without_names(row) for row in du["steps"]}
    there = {f"{series}/{tag}" for series in ("steps", "runs") for tag in os.listdir(mount.path / series)
             if (mount.path / series / tag).is_dir()}
    equal(set(steps), there, "the steps of du")
    for step, usage in steps.items():
        equal(usage, recount.usage(below(step)), f"du: {step}")
        equal(xattrs[step], usage, f"xattrs of {step}")
    for series in ("steps", "runs"):
        in_steps = [below(step) for step in steps if step.startswith(f"{series}/")]
        if in_steps:
            equal(du["series"][f"/{series}"], recount.usage(lambda name: any(one(name) for one in in_steps)),
                  f"du: all of {series}")
        equal(xattrs[series], recount.usage(below(series)), f"xattrs of {series}")
    lies_elsewhere = [below(STAGE), *(below(step) for step in steps)]
    equal(du["live"], recount.usage(below(STAGE)), "du: live swap files")
    equal(du["rest"], recount.usage(lambda name: not any(one(name) for one in lies_elsewhere)), "du: everything else")
    equal(du["nobody"], dict.fromkeys(("apparent", "exclusive", "shared"), 0), "du: what nothing names")
    for inode, names in recount.names.items():
        for name in names:
            equal(xattrs[name], recount.usage_of_file(inode), f"xattrs of {name}")
    return len(recount.blobs), sum(len(blob.blocks) for blob in recount.blobs)


@pytest.mark.timeout(1800)
def test_walk(mount, seed, rounds):
    changes = Changes(mount, seed)
    try:
        for _ in range(rounds or by_level(5, 400)):
            for _ in range(changes.dice.randint(1, 12)):
                changes.act()
            blobs, blocks = compare(mount)
    except Exception:
        print(f"--- seed {seed}, the last operations: {' '.join(changes.history[-40:])}", flush=True)
        raise
    print(f"      {len(changes.history)} changes, at last {blobs} blobs of {blocks} blocks")


def test_dedup_behind_the_scenes(mount):
    """What the daemon itself shares is seen, though it was asked for, and so remembered, all along."""
    (mount.path / SWAP).mkdir(parents=True)
    (mount.path / "runs").mkdir()
    mount.control("runs", "source", f"/{STAGE}")
    path = mount.path / SWAP / "0.tensor.swp"
    for tag in ("s1", "s2", "s3"):
        with opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
            for offset in (4 * MIB, 0):  # the later half first: nothing is adopted
                pwrite_all(file, noise(8 * MIB)[offset : offset + 4 * MIB], offset)
        mark(path)
        mount.save(tag)

    def shared():
        run(CKPTFS, "du", mount.path)
        return mount.status()["care"]["bytes_shared"] >= 2 * 7 * MIB

    wait_until("the steps share what they hold twice", shared, 60, 0)
    compare(mount)
    exclusive = int(mount.ask("steps/s1", "bytes.exclusive"))
    true(exclusive <= MIB, f"s1 has {exclusive} bytes of its own")


def test_refusals(mount):
    (mount.path / "work").mkdir()
    for path in (".", "work"):
        with raises(errno.ENODATA, what=f"bytes.* of {path}"):
            mount.ask(path, "bytes.exclusive")
    with raises(errno.EOPNOTSUPP, what="bytes.frob"):
        mount.ask("steps", "bytes.frob")
    write(mount.path / "work/f", noise(10000))
    equal(mount.ask("work/f", "bytes.apparent"), "10000", "bytes.apparent")
    said = run("getfattr", "--only-values", "-n", "user.ckptfs.bytes.exclusive", mount.path / "work/f").stdout
    equal(said, "12288", "by getfattr, which asks for the length first")


# --- what changes need


def space_of_changes(mount, name, files, length, offsets):
    """Rewrites these blocks of files that a save took: the disk use that this adds, and what it needs."""
    folder = mount.path / SWAP
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        write(folder / f"{name}{number}.tensor.swp", noise(length, number))
    mount.save(f"{name}1")
    mount.save(f"{name}2")
    wait_for_spares(mount, files)
    disk = mount.store.folder.parent
    give_back(disk)
    before = used_bytes(disk)
    for number in range(files):
        with opened(folder / f"{name}{number}.tensor.swp", os.O_WRONLY) as file:
            for offset in offsets:
                pwrite_all(file, noise(BLOCK, offset + number), offset)
            os.fsync(file)
    taken = used_bytes(disk) - before
    give_back(disk)
    kept = used_bytes(disk) - before
    need = files * len(offsets) * BLOCK
    print(f"      {name}: {need / MIB:.1f} MiB needed, {taken / MIB:.1f} taken, {kept / MIB:.1f} kept")
    true(kept <= 1.1 * need, f"{name}: {kept} bytes kept for changes of {need}")


def give_back(disk):
    run("sync", "-f", disk)  # an fsync is not enough for XFS to give back what it allocated ahead
    free_preallocated(disk)


def wait_for_spares(mount, count):
    def ready():
        return sum(1 for entry in os.scandir(mount.store.blobs) if entry.stat().st_size == 0) >= count

    wait_until("spare blobs are made", ready, 30)


def test_blocks_ahead_of_a_writer(mount):
    """XFS takes back what it allocated ahead when it likes: of a file that is frozen by then, too."""
    path = mount.path / "runs/checkpoint-1/f"
    path.parent.mkdir(parents=True)
    write(path.parent / "trainer_state.json", b'{"global_step": 1}')
    for number in range(4):  # from the second close on XFS leaves what it allocated
        with opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
            pwrite_all(file, noise(MIB, number), 0)
    mark(path)
    mount.seal("runs/checkpoint-1")
    run("sync", "-f", mount.store.folder)
    compare(mount)
    before = used_bytes(mount.store.folder)
    free_preallocated(mount.store.folder)
    true(used_bytes(mount.store.folder) < before, "XFS allocated nothing ahead: the test shows nothing")
    compare(mount)


def test_many_extents(mount):
    space_of_changes(mount, "extents", 8, 16 * MIB, range(0, 16 * MIB, 4 * BLOCK))


def test_small_files(mount):
    space_of_changes(mount, "small", by_level(100, 1000), 16 * KIB, range(0, 16 * KIB, BLOCK))
