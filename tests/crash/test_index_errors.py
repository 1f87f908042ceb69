"""The disk refuses writes of the index, then the daemon dies. Everything for which an fsync returned 0 is there.

In each point another write fails, and another number of writes after it. The page cache is dropped before the next
mount, which must succeed: nothing was promised that the disk does not have.
"""

import contextlib
import os

import pytest

from checking import opened, true
from faulty_disk import Disk
from mounting import Failure, Mount, Store, by_level

pytestmark = pytest.mark.timeout(900)

FOREVER = 0


class Round:
    """One point: folders are made and synced while the index's writes fail."""

    def __init__(self, disk, mount):
        self.disk, self.mount = disk, mount
        self.made, self.promised, self.history = [], set(), []

    def play(self, what, skip, count, heals):
        self.make_and_sync()
        begin, end = self.disk.group_of(self.mount.store.folder / "meta")
        self.disk.fault(what, "data", from_=begin, to=end, skip=skip, count=count)
        for _ in range(3):
            self.make_and_sync()
        if heals:
            self.disk.heal()
            self.make_and_sync()

    def make_and_sync(self):
        """Changes every table that a name, an attribute or a mode is in. Repeats a failed fsync."""
        for _ in range(5):
            with contextlib.suppress(OSError):
                self.make(f"folder{len(self.made) + 1}")
        for _ in range(3):
            if self.sync():
                self.promised.update(self.made)
                return

    def make(self, name):
        path = self.mount.path / name
        path.mkdir()
        os.setxattr(path, "user.made", name.encode() * 20)
        self.made.append(name)

    def sync(self):
        try:
            with opened(self.mount.path, os.O_RDONLY) as folder:
                os.fsync(folder)
        except OSError as problem:
            self.history.append(f"fsync: {problem.strerror}")
            return False
        self.history.append(f"fsync: 0, {len(self.made)} folders")
        return True

    def check(self):
        there = set(os.listdir(self.mount.path))
        true(self.promised <= there, f"{sorted(self.promised - there)} are gone")
        for name in self.promised:
            true(os.getxattr(self.mount.path / name, "user.made") == name.encode() * 20, f"{name} has its attribute")


def try_point(work, disk, *point):
    disk.heal()
    disk.format()
    mount = Mount(Store(work / "below/store"), work / "mnt")
    one = Round(disk, mount)
    try:
        with disk.below(mount):
            mount.start()
            one.play(*point)
        disk.heal()
        with disk.below(mount):
            mount.start()
            one.check()
            mount.stop()
            mount.store.fsck()
    except (Failure, OSError) as problem:
        print(f"--- {point}:\n" + "\n".join(one.history) + f"\n{mount.read_log()}---", flush=True)
        raise Failure(f"{point}: {problem}") from problem


def points():
    """Yields (kind, number of writes that pass, number that fail, whether the disk works again before the daemon
    dies)."""
    for skip in range(by_level(3, 20)):
        for count in by_level((1, FOREVER), (1, 2, 3, 5, 8, FOREVER)):
            for what in by_level(("eio",), ("eio", "tear", "enospc")):
                yield what, skip, count, False
                if count == FOREVER:
                    yield what, skip, count, True


def test_nothing_is_promised_that_the_index_lost(work):
    wrong = []
    with Disk(work, "disk", "/dev/null") as disk:
        for number, point in enumerate(points(), 1):  # noqa: B007 - how many there were
            try:
                try_point(work, disk, *point)
            except Failure as problem:
                wrong.append(str(problem))
    true(not wrong, f"{len(wrong)} of {number} points are wrong; the first: {wrong[0] if wrong else ''}")
    print(f"      {number} points", flush=True)
