"""Many random copies run when the daemon is killed or the power is cut. Each must have an allowed content.

After a kill: every write that returned, to the byte. After a power cut: what was synced by the last fsync, and any
sectors of later writes. Never a byte that was predicted but not written. A crash meets about 30 copies in progress and
as many that are complete.
Options: --seed, --rounds (crashes of each kind).
"""

import collections
import contextlib
import errno
import os
import random
import shutil
import threading
import time

import pytest

from checking import opened, pwrite_all, read, true, write, write_all
from copying import SMALLEST, altered, pieces, random_content
from crash_model import Content
from mounting import CKPTFS_DEBUG, KIB, Failure, by_level, wait_until

pytestmark = [pytest.mark.timeout(3600), pytest.mark.builds("faults")]

THREADS, UNDER_WAY = 4, 8  # of each thread
ENOUGH = 60  # copies that have begun
LONGEST = 300 * KIB
DIFFERENCES = ("none", "none", "few", "tail", "shorter", "longer", "all")
CRASHED = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)  # the errors that a caller may get then
POINTS = ("adopt.read", "adopt.clone_range", "adopt.clone_range_end", "fs.write")


@pytest.fixture
def crashes(rounds):
    return rounds or by_level(1, 30)


class Copy:
    """One copier: it has its source open and writes its target. It notes its operations and the content after each."""

    def __init__(self, root, number, seed, power):
        self.dice = random.Random(seed)
        self.root, self.power = root, power
        self.seed, self.number = seed, number
        self.file = f"tensor{number}"  # a unique name: after a wrong prediction a name is not predicted for a while
        self.names = [f"to{number}"]  # the folders it may be in; None if it was removed
        self.operations = []  # [name, content then, whether it is a sync, when it returned or None]
        self.now = bytearray()
        self.data = random_content(self.dice, self.dice.randrange(SMALLEST, LONGEST))
        self.descriptors = []
        self.at = 0

    @property
    def path(self):
        return self.root / self.names[-1] / self.file

    def act(self, name, action, after=None, sync=False):
        """Notes and runs an action. `after` is the file's content afterwards."""
        self.now = self.now if after is None else bytearray(after)
        self.operations.append([name, bytes(self.now), sync, None])
        action()
        self.operations[-1][3] = time.monotonic()

    def run(self):
        """Runs one operation each time the next one is requested."""
        (self.root / f"from{self.number}").mkdir()
        write(self.root / f"from{self.number}" / self.file, self.data)
        self.descriptors.append(os.open(self.root / f"from{self.number}" / self.file, os.O_RDONLY))
        (self.root / self.names[0]).mkdir()
        for _ in range(self.dice.choice((1, 1, 1, 2))):
            yield from self.copy()
        if self.dice.random() < 0.3 and self.names[-1]:
            yield from self.append()
        self.close()

    def open(self):
        self.descriptors.append(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))

    def copy(self):
        if not self.names[-1]:
            return
        self.act("open", self.open, b"")
        self.at = 0
        for part in pieces(self.dice, altered(self.dice, self.data, self.dice.choice(DIFFERENCES))):
            yield
            self.act("write", lambda: write_all(self.descriptors[1], part), self.put(self.at, part))
            self.at += len(part)
            while self.dice.random() < 0.12:
                yield
                self.something_else()
        yield
        self.act("close", lambda: os.close(self.descriptors.pop()))

    def append(self):
        data = self.dice.randbytes(self.dice.randrange(1, 20_000))
        with opened(self.path, os.O_WRONLY | os.O_APPEND) as file:
            self.act("append", lambda: write_all(file, data), bytes(self.now) + data)
            yield
            if self.dice.random() < 0.5:
                self.act("fsync", lambda: os.fsync(file), sync=True)
        yield

    def put(self, at, data):
        after = bytearray(self.now)
        after.extend(bytes(max(0, at - len(after))))
        after[at : at + len(data)] = data
        return after

    def something_else(self):
        ways = [self.look, self.look, self.sync, self.sync, self.write_elsewhere, self.resize]
        if not self.power:
            ways += [self.rename, self.unlink]
        self.dice.choice(ways)()

    def look(self):
        if self.names[-1]:
            true(os.stat(self.path).st_size == len(self.now), f"{self.path}: size")
            if self.dice.random() < 0.4:
                true(read(self.path) == self.now, f"{self.path}: content")

    def sync(self):
        self.act("fsync", lambda: os.fsync(self.descriptors[1]), sync=True)

    def write_elsewhere(self):
        if self.names[-1]:
            at = self.dice.randrange(len(self.now) + 50_000)
            data = self.dice.randbytes(self.dice.randrange(1, 50_000))
            with opened(self.path, os.O_RDWR) as file:
                self.act("pwrite", lambda: pwrite_all(file, data, at), self.put(at, data))

    def resize(self):
        length = self.dice.randrange(len(self.now) + 50_000)
        after = self.now[:length] + bytes(max(0, length - len(self.now)))
        self.act("ftruncate", lambda: os.ftruncate(self.descriptors[1], length), after)

    def rename(self):
        if self.names[-1]:
            old = self.path
            self.names.append(f"renamed{self.number}.{len(self.operations)}")
            self.path.parent.mkdir()
            self.act("rename", lambda: os.rename(old, self.path))
            del self.names[:-1]

    def unlink(self):
        if self.names[-1]:
            path = self.path
            self.names.append(None)
            self.act("unlink", lambda: os.unlink(path))
            del self.names[:-1]

    def close(self):
        while self.descriptors:
            with contextlib.suppress(OSError):  # the daemon is dead
                os.close(self.descriptors.pop())

    def check(self, moment):
        """Checks the file. `moment` is that of the power cut, or None."""
        content, known = Content(), False
        for _, after, sync, done in self.operations:
            content.change(after)
            if done is not None and (moment is None or (sync and done < moment)):
                content.settle()
                known = True
        there = [name for name in self.names if name and os.path.exists(self.root / name / self.file)]
        if not there:
            true(not known or None in self.names, f"{self.names} is gone")
            return
        try:
            path = self.root / there[0] / self.file
            content.check(read(path), path)
        except OSError as problem:
            if problem.errno != errno.EIO or known:  # otherwise it was never synced, and is shown as damaged
                raise
        except Failure as problem:
            told = [f"{name} {len(after)} {done}" for name, after, _, done in self.operations]
            raise Failure(f"{problem}; seed {self.seed}, source {len(self.data)} bytes: {', '.join(told)}") from problem


class Crash:
    """Threads of copiers that run until the mount ends."""

    def __init__(self, root, seed, power):
        self.root, self.seed, self.power = root, seed, power
        self.lock = threading.Lock()
        self.copies = []  # guarded by lock
        self.problems = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(seed * THREADS + i,)) for i in range(THREADS)]
        for thread in self.threads:
            thread.start()

    def begin(self, dice):
        with self.lock:
            copy = Copy(self.root, len(self.copies), dice.randrange(1 << 40), self.power)
            self.copies.append(copy)
        return copy.run()

    def work(self, seed):
        dice = random.Random(seed)
        running = []
        try:
            while not self.over.is_set():
                while len(running) < UNDER_WAY:
                    running.append(self.begin(dice))
                chosen = dice.choice(running)
                if next(chosen, self) is self:
                    running.remove(chosen)
        except OSError as problem:
            if problem.errno not in CRASHED:
                self.problems.append(problem)
        except Failure as problem:
            self.problems.append(problem)

    def wait_for_moment(self, dice):
        wait_until("enough copies", lambda: self.problems or len(self.copies) >= ENOUGH, 120)
        time.sleep(dice.random() * 0.2)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        for copy in self.copies:
            copy.close()

    def check(self, moment=None):
        if self.problems:
            raise self.problems[0]
        for copy in self.copies:
            copy.check(moment)

    def remove(self):
        for entry in os.scandir(self.root):
            shutil.rmtree(entry.path)


class Totals:
    def __init__(self):
        self.counts = collections.Counter()

    def before(self, mount):
        with contextlib.suppress(Failure):  # the daemon may be dead already
            counters = mount.status()["counters"]
            self.counts.update({name: counters[name] for name in ("adoptions", "wrong_guesses")})

    def after(self, crash):
        self.counts["copies"] += len(crash.copies)

    def check(self, share=0.3):
        print(f"      {dict(self.counts)}", flush=True)
        true(self.counts["adoptions"] >= share * self.counts["copies"], "too few adoptions")


def folder_of(mount):
    (mount.path / "copies").mkdir(exist_ok=True)
    return mount.path / "copies"


def judge(mount, crash, dice):
    """Checks after the crash, after another immediate kill, and after a clean end."""
    mount.start()
    crash.check()
    if dice.random() < 0.5:
        mount.kill()
        mount.start()
        crash.check()
    mount.remount_after_fsck()
    crash.check()
    crash.remove()


def test_killed(crashing_mount, mode, seed, crashes):
    """Kills the daemon from outside, at any moment."""
    totals = Totals()
    mount = crashing_mount(mode=mode)
    for index in range(crashes):
        dice = random.Random(seed + index)
        crash = Crash(folder_of(mount), seed + index, power=False)
        try:
            crash.wait_for_moment(dice)
            totals.before(mount)
            mount.kill()
        finally:
            crash.end()
        totals.after(crash)
        judge(mount, crash, dice)
    totals.check()


def test_killed_inside(crashing_mount, mode, seed, crashes):
    """The daemon dies at a fault point: before a comparison, around a clone, before a write."""
    mount = crashing_mount(mode=mode, binary=CKPTFS_DEBUG)
    for index in range(crashes):
        dice = random.Random(seed + index)
        mount.faults = f"{dice.choice(POINTS)}={dice.randrange(1, 60)}:kill"
        print(f"      seed {seed + index}: {mount.faults}", flush=True)
        mount.remount()
        crash = Crash(folder_of(mount), seed + index, power=False)
        try:
            wait_until("the daemon dies", lambda: crash.problems or not mount.alive(), 120)
        finally:
            crash.end()
        mount.faults = None
        mount.wait_for_end()
        judge(mount, crash, dice)


def test_power_is_lost(crashing_mount, mode, seed, crashes):
    totals = Totals()
    mount = crashing_mount(image="1G", mode=mode, faults="boot_id=0")
    for index in range(crashes):
        dice = random.Random(seed + index)
        crash = Crash(folder_of(mount), seed + index, power=True)
        try:
            crash.wait_for_moment(dice)
            if dice.random() < 0.5:
                os.sync()  # the kernel does that by itself, too
            totals.before(mount)
            moment = time.monotonic()
            mount.lose_power(crash.end)
        finally:
            crash.end()
        mount.faults = f"boot_id={index + 1}"
        mount.start()
        totals.after(crash)
        crash.check(moment)
        mount.remount_after_fsck()
        crash.check(moment)
        crash.remove()
    totals.check()
