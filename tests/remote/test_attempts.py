"""Several attempts at one step, and several mounts that say one slot: what is committed is one attempt of one mount in
each slot, whole; what cannot be is refused by name.

Options: --seed, --rounds.
"""

import contextlib
import os
import pathlib
import random
import shutil
import sys
import time
import unittest.mock

import pytest

from checking import equal, noise, true, write
from collecting import objects_of
from mounting import MIB, Mount, Store, abandon, by_level, run, wait_until
from runs import Run, names_of
from seaweed import BUCKET, environment
from test_kills import Reader
from test_push import ERROR, agree, ckptfs, fill, state_of, status_of, tree, wait_for

pytestmark = [pytest.mark.one_mode,
              pytest.mark.timeout(400)]

VENV = pytest.mark.builds("venv")  # it has the server
QUIET = 2  # seconds
OPTIONS = (f"quiet={QUIET}s",)


def part_of(slot, attempt, shared=True):
    """`shared`: with a file that all slots have, so that the parts of two attempts have no union."""
    part = {name: noise(MIB + slot, 10 * attempt + number) for number, name in enumerate(names_of(slot))}
    return part | ({"shared.txt": b"attempt %d" % attempt} if shared else {})


def parts_of(attempt, shared=True):
    """Of both slots."""
    return [part_of(slot, attempt, shared) for slot in (0, 1)]


def error_of(step):
    with contextlib.suppress(OSError):
        return os.getxattr(step, ERROR).decode()
    return ""


@pytest.fixture
def url(scratch):
    return f"file://{scratch}"


@pytest.fixture
def place(request, monkeypatch):
    """The address of a remote and its options: a folder, unless the test says "s3"."""
    if getattr(request, "param", "folder") == "folder":
        return request.getfixturevalue("url"), ()
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    server, scratch = (request.getfixturevalue(name) for name in ("server", "scratch"))
    server.make_bucket()
    return f"s3://{BUCKET}/{scratch.name}", ("--endpoint", server.endpoint)


class NodeMount(Mount):
    """A mount whose daemon has a wall clock of its own, so many seconds from the machine's. Its remote must be no folder: of
    that it would see the times by this clock, too."""

    clock = 0

    def try_start(self):
        variables = {}
        if self.clock != 0:
            library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
            # The library shifts what stat() says of files, too, whether the kernel or the daemon has set their times. Those
            # that the daemon has set are wrong then. If they were in the future, nothing would be quiet until it comes.
            true(self.clock < 0, "a clock that is ahead cannot be tried")
            variables = {"LD_PRELOAD": str(library), "FAKETIME": f"{self.clock:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        with unittest.mock.patch.dict(os.environ, variables):
            return super().try_start()

    def start(self):
        super().start()
        folder = self.path / "what-time-is-it"
        folder.mkdir()
        off = folder.stat().st_mtime - time.time()
        folder.rmdir()
        true(abs(off - self.clock) < 60, f"the daemon's clock is {off:.0f} s off, and should be {self.clock}")
        return self


@contextlib.contextmanager
def nodes(disk, work, name, mode, url, slots, clocks=None, options=()):
    """Mounts, each with a store of its own, in these slots, and with these clocks."""
    made = [NodeMount(Store(disk / f"{name}{number}"), work / f"mnt-{name}{number}", mode=mode, options=OPTIONS)
            for number in range(len(slots))]
    for mount, clock in zip(made, clocks or []):
        mount.clock = clock
    try:
        for mount, slot in zip(made, slots):
            mount.start()
            print(ckptfs("remote", "add", url, mount.path / "steps", "--slot", slot, *options))
        yield made
        for mount in made:
            mount.stop()
            mount.store.fsck()
    except BaseException:
        for mount in made:
            print(f"--- {mount.path.name}:\n{mount.read_log()}", file=sys.stderr)
        raise
    finally:
        for mount in made:
            abandon(mount)


def kill_and_start(mount):
    mount.kill()
    run("umount", "-l", mount.path, check=False)
    mount.start()


@pytest.mark.parametrize("place, clocks", (("folder", (0, 0)),
                                           pytest.param("s3", (-120, -600), marks=(pytest.mark.long, VENV))),
                         ids=("right", "off"), indirect=["place"])
def test_a_run_saves_a_step_again(fresh_disk, work, place, mode, seed, rounds, clocks):
    """A run ends between the pushes of its nodes. The next one saves the same step again: one node soon, and the other
    late, though it has begun to save an earlier step."""
    dice, (url, options) = random.Random(seed), place
    reader = Reader(url, options, work)
    with nodes(fresh_disk, work, "again", mode, url, ("0/2", "1/2"), clocks, options) as mounts:
        series = [mount.path / "steps" for mount in mounts]
        for number in range(rounds or by_level(1, 50)):
            before, tag = f"global_step{10 * number + 1}", f"global_step{10 * number + 2}"
            for name in (before, tag):
                for attempt in (1, 2):
                    reader.expect(name, part_of(0, attempt) | part_of(1, attempt))
            with Run() as first:
                first.save(series, before, parts_of(1))
                first.save(series, tag, parts_of(1))
                mounts[1].kill()  # before it is quiet
            wait_for(series[0] / tag, "waiting for slot 1")
            run("umount", "-l", mounts[1].path, check=False)
            mounts[1].start()
            with Run() as second:
                second.save(series, before, parts_of(2))
                soon = dice.randrange(2)
                removes = dice.random() < 0.5  # what is there; else it is written over

                def save_again(slot):
                    if removes:
                        shutil.rmtree(series[slot] / tag)
                    second.save(series, tag, parts_of(2), [slot])

                save_again(soon)
                time.sleep(dice.uniform(0, 4 * QUIET))
                if dice.random() < 0.5:
                    kill_and_start(mounts[1 - soon])
                reader.look()
                equal(reader.wrong, [], "what was read meanwhile")
                save_again(1 - soon)
            for one in series:
                for name in (before, tag):
                    wait_for(one / name, "committed", 90)
            reader.look()
            equal(reader.wrong, [], "what was read")
            print({name: same for name, same in reader.read.items() if name.partition("~")[0] in (before, tag)})
            for name in (before, tag):
                true(any(same == [1] for step, same in reader.read.items() if step.partition("~")[0] == name),
                     f"{name}: the second attempt is there")


@pytest.mark.long
@VENV
@pytest.mark.parametrize("place", ("s3",), indirect=True)
def test_a_clock_is_set_back(fresh_disk, work, place, mode):
    """A node's clock is set back ten minutes between two runs, and its daemon starts again. Nobody can tell any more when its
    old files were written: they are not committed with the new ones of the other node, nor with the old ones."""
    before, tag, (url, options) = "global_step1", "global_step2", place
    reader = Reader(url, options, work)
    for name in (before, tag):
        for attempt in (1, 2):
            reader.expect(name, part_of(0, attempt, False) | part_of(1, attempt, False))
    with nodes(fresh_disk, work, "back", mode, url, ("0/2", "1/2"), options=options) as mounts:
        series = [mount.path / "steps" for mount in mounts]
        mounts[1].control("steps", "push", "manual")
        with Run() as first:
            first.save(series, before, parts_of(1, False))
            first.save(series, tag, parts_of(1, False))
        wait_for(series[0] / tag, "waiting for slot 1")
        wait_until("node 1 has seen both", lambda: len(status_of(series[1])["steps"]) == 2, 60, 0.1)
        mounts[1].stop()
        mounts[1].clock = -600
        mounts[1].start()
        with Run() as second:
            for steps in series:
                shutil.rmtree(steps / before)
            second.save(series, before, parts_of(2, False))
            second.save(series, tag, parts_of(2, False), [0])
            parts = f".ckptfs/parts/{tag}/"
            wait_until("node 0 has pushed it again", lambda: len(objects_of(url, options, parts)) == 2, 60, 0.2)
            mounts[1].control("steps", "push", "quiet")
            wait_for(series[1] / tag, "waiting")
            told = next(one for one in status_of(series[1])["steps"] if one["tag"] == tag)["waits_for"]
            true("nobody knows" in told, f"what it says: {told}")
            time.sleep(3 * QUIET)
            reader.look()
            equal((reader.wrong, state_of(series[1] / tag)), ([], "waiting"), "what was read, and the state")
            shutil.rmtree(series[1] / tag)
            second.save(series, tag, parts_of(2, False), [1])
        for one in series:
            for name in (before, tag):
                wait_for(one / name, "committed", 90)
        reader.look()
        equal((reader.wrong, reader.read), ([], {before: [1], tag: [1]}), "what was read in the end")


def is_decided(step):
    return state_of(step).startswith(("committed", "refused"))


@pytest.mark.long
def test_another_store_in_a_slot(fresh_disk, work, url, mode):
    """A second cluster says the same prefix. It is refused, and nothing of it is sent. Once it has taken slot 1 over, its files
    are committed with those of slot 0, and the mount that had the slot before pushes nothing."""
    remote = pathlib.Path(url.removeprefix("file://"))
    third = Mount(Store(fresh_disk / "third"), work / "mnt-third", mode=mode, options=OPTIONS)
    with nodes(fresh_disk, work, "other", mode, url, ("0/2", "1/2")) as mounts:
        try:
            third.start()
            reader = Reader(url, [], work)
            steps = [mount.path / "steps" / "global_step1" for mount in (*mounts, third)]
            done = ckptfs("remote", "add", url, steps[2].parent, "--slot", "1/2", check=False)
            true(done.returncode == 1 and str(mounts[1].store.folder) in done.stderr and "--take-over" in done.stderr,
                 f"a second mount of slot 1: {done.stderr}")
            parts = [part_of(slot, attempt) for slot, attempt in ((0, 1), (1, 2), (1, 1))]
            del parts[1]["shared.txt"]
            reader.expect("global_step1", parts[0] | parts[2])
            ckptfs("remote", "add", url, steps[2].parent, "--slot", "1/2", "--take-over")
            for step, part in zip(steps, parts):
                for name, content in part.items():
                    step.mkdir(exist_ok=True)
                    write(step / name, content)
                agree("a1", step)
            wait_for(steps[1], "refused")
            true(str(third.store.folder) in error_of(steps[1]), f"who has the slot now: {error_of(steps[1])}")
            for step in (steps[0], steps[2]):
                wait_for(step, "committed global_step1")
            reader.look()
            equal((reader.wrong, reader.read), ([], {"global_step1": [0]}), "what was read")
            equal(len(list((remote / ".ckptfs" / "parts" / "global_step1").glob("1.*"))), 1, "parts of slot 1")
            third.stop()
        finally:
            abandon(third)


@pytest.mark.long
def test_a_copied_store(fresh_disk, work, url, mode):
    """A copy has the id of the original. It is refused beside the original, and counts as another mount after it."""
    original = Mount(Store(fresh_disk / "original"), work / "mnt-original", mode=mode, options=OPTIONS)
    copy = Mount(Store(fresh_disk / "copy"), work / "mnt-copy", mode=mode, options=OPTIONS)
    reader = Reader(url, [], work)
    try:
        original.start()
        ckptfs("remote", "add", url, original.path / "steps")
        fill(original.path / "steps" / "global_step1", seed=1)
        wait_for(original.path / "steps" / "global_step1", "committed")
        reader.expect("global_step1", contents(original.path / "steps" / "global_step1"))
        original.stop()
        run("cp", "-a", "--reflink=always", original.store.folder, copy.store.folder)
        original.start()
        done = copy.try_start()
        true(done.returncode != 0 and "was copied" in done.stderr, f"a copy beside it: {done.stderr}")
        original.stop()
        for number, mount in enumerate((original, copy)):
            mount.start()
            step = mount.path / "steps" / "global_step2"
            fill(step, seed=20 + 10 * number)
            reader.expect("global_step2", contents(step))
            before = mount.path / "steps" / "global_step1"
            wait_until("all are decided", lambda step=step, before=before: is_decided(step) and is_decided(before), 90,
                       0.2)
            reader.look()
            equal(reader.wrong, [], "what was read")
            for one, which in ((before, 0), (step, number)):
                true(state_of(one).startswith("committed"), f"{one}: {state_of(one)} {error_of(one)}")
                equal(reader.read[state_of(one).removeprefix("committed ")], [which], f"{one}: {reader.read}")
            equal(ckptfs("remote", "latest", url).strip(), state_of(step).removeprefix("committed "), "latest")
            mount.stop()
            mount.store.fsck()
    finally:
        abandon(original)
        abandon(copy)


def contents(folder):
    return {name: entry[3] for name, entry in tree(folder).items()}

