"""Several attempts at one step, and several mounts that push as one slot: what is committed is one attempt of one mount
in each slot, whole; what cannot be is refused by name.

Options: --seed, --rounds.
"""

import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import unittest.mock

import pytest

from checking import equal, noise, true
from mounting import MIB, Mount, Store, abandon, by_level, run, wait_until
from test_kills import Reader
from test_push import ERROR, ckptfs, fill, state_of, tree, wait_for

pytestmark = [pytest.mark.one_mode,
              pytest.mark.timeout(400)]

QUIET = 2  # seconds
OPTIONS = (f"quiet={QUIET}s",)
SECONDS_UNTIL_A_RUN = 2.3  # who is younger is a command, and no run (meta/steps/ledger.cc)


def part_of(slot, attempt, shared=True):
    """`shared`: with a file that all slots have, so that the parts of two attempts have no union."""
    part = {f"rank{slot}.bin": noise(2 * MIB + slot, 10 * attempt + slot), f"more{slot}.bin": noise(MIB, 10 * attempt + 5)}
    return part | ({"shared.txt": b"attempt %d" % attempt} if shared else {})


class Run:
    """A training's processes, one for each node. Each saves what it is told to, of the name and the attempt."""

    def __init__(self, series):
        self.begun = time.monotonic()
        paths = os.pathsep.join(sys.path)
        self.ranks = [subprocess.Popen([sys.executable, __file__, str(slot), str(one)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONPATH=paths))
                      for slot, one in enumerate(series)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def save(self, tag, attempt, slots=(0, 1), shared=True):
        time.sleep(max(0, self.begun + SECONDS_UNTIL_A_RUN - time.monotonic()))
        for slot in slots:
            print(tag, attempt, int(shared), file=self.ranks[slot].stdin, flush=True)
        for slot in slots:
            equal(self.ranks[slot].stdout.readline().strip(), "saved", f"slot {slot} saves {tag}")

    def kill(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdin.close()
            rank.stdout.close()


def rank_of_a_run(slot, series):
    for line in sys.stdin:
        tag, attempt, shared = line.split()
        step = os.path.join(series, tag)
        shutil.rmtree(step, ignore_errors=True)
        os.mkdir(step)
        for name, content in part_of(slot, int(attempt), shared == "1").items():
            with open(os.path.join(step, name), "wb") as file:
                file.write(content)
        print("saved", flush=True)


def error_of(step):
    with contextlib.suppress(OSError):
        return os.getxattr(step, ERROR).decode()
    return ""


@pytest.fixture
def url(scratch):
    return f"file://{scratch}"


class NodeMount(Mount):
    """A mount whose daemon has a wall clock of its own, so many seconds before or behind the machine's."""

    clock = 0

    def try_start(self):
        variables = {}
        if self.clock != 0:
            library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
            variables = {"LD_PRELOAD": str(library), "FAKETIME": f"{self.clock:+d}", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
            # The library shifts what stat() says of files, too, whether the kernel or the daemon has set their times.
            # One of the two is wrong then. A time in the future would be: nothing is quiet until it comes.
            variables |= {"NO_FAKE_STAT": "1"} if self.clock > 0 else {}
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
def nodes(disk, work, name, mode, url, slots, clocks=None):
    """Mounts, each with a store of its own, in these slots, and with these clocks."""
    made = [NodeMount(Store(disk / f"{name}{number}"), work / f"mnt-{name}{number}", mode=mode, options=OPTIONS)
            for number in range(len(slots))]
    for mount, clock in zip(made, clocks or []):
        mount.clock = clock
    try:
        for mount, slot in zip(made, slots):
            mount.start()
            print(ckptfs("remote", "add", url, mount.path / "steps", "--slot", slot))
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


@pytest.mark.parametrize("clocks", ((0, 0), pytest.param((600, -600), marks=pytest.mark.long)), ids=("right", "off"))
def test_a_run_saves_a_step_again(fresh_disk, work, url, mode, seed, rounds, clocks):
    """A run ends between the pushes of its nodes. The next one saves the same step again: one node soon, and the other
    late, though it has begun to save an earlier step."""
    dice = random.Random(seed)
    reader = Reader(url, [], work)
    with nodes(fresh_disk, work, "again", mode, url, ("0/2", "1/2"), clocks) as mounts:
        series = [mount.path / "steps" for mount in mounts]
        for number in range(rounds or by_level(1, 50)):
            before, tag = f"global_step{10 * number + 1}", f"global_step{10 * number + 2}"
            for name in (before, tag):
                for attempt in (1, 2):
                    reader.expect(name, part_of(0, attempt) | part_of(1, attempt))
            with Run(series) as first:
                first.save(before, 1)
                first.save(tag, 1)
                mounts[1].kill()  # before it is quiet
            wait_for(series[0] / tag, "waiting for slot 1")
            run("umount", "-l", mounts[1].path, check=False)
            mounts[1].start()
            with Run(series) as second:
                second.save(before, 2)
                soon = dice.randrange(2)
                second.save(tag, 2, (soon,))
                time.sleep(dice.uniform(0, 4 * QUIET))
                if dice.random() < 0.5:
                    kill_and_start(mounts[1 - soon])
                reader.look()
                equal(reader.wrong, [], "what was read meanwhile")
                second.save(tag, 2, (1 - soon,))
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
def test_a_clock_is_set_back(fresh_disk, work, url, mode):
    """A node's clock is set back ten minutes between two runs, and its daemon starts again. It still knows that the
    second run is the later one, and has its old files not committed with the new ones of the other node."""
    before, tag = "global_step1", "global_step2"
    reader = Reader(url, [], work)
    for name in (before, tag):
        for attempt in (1, 2):
            reader.expect(name, part_of(0, attempt, False) | part_of(1, attempt, False))
    with nodes(fresh_disk, work, "back", mode, url, ("0/2", "1/2"), (600, 0)) as mounts:
        series = [mount.path / "steps" for mount in mounts]
        mounts[1].control("steps", "push", "manual")
        with Run(series) as first:
            first.save(before, 1, shared=False)
            first.save(tag, 1, shared=False)
        wait_for(series[0] / tag, "waiting for slot 1")
        mounts[1].stop()
        mounts[1].clock = -600
        mounts[1].start()
        with Run(series) as second:
            second.save(before, 2, shared=False)
            second.save(tag, 2, (0,), shared=False)
            parts = pathlib.Path(url.removeprefix("file://")) / ".ckptfs" / "parts" / tag
            wait_until("node 0 has pushed it again", lambda: len(list(parts.glob("0.*"))) == 2, 60, 0.1)
            mounts[1].control("steps", "push", "quiet")
            wait_until("node 1 has pushed what it has", lambda: list(parts.glob("1.*")), 60, 0.1)
            wait_until("it is decided", lambda: state_of(series[1] / tag) in ("waiting", f"committed {tag}"), 60, 0.1)
            reader.look()
            equal((reader.wrong, state_of(series[1] / tag)), ([], "waiting"), "what was read, and the state")
            second.save(tag, 2, (1,), shared=False)
        for one in series:
            for name in (before, tag):
                wait_for(one / name, "committed", 90)
        reader.look()
        equal((reader.wrong, reader.read), ([], {before: [1], tag: [1]}), "what was read in the end")


def check_each(reader, steps):
    """Each step is committed under a name that holds exactly its files, or it is refused, and says why."""
    reader.look()
    equal(reader.wrong, [], "what was read")
    print([(state_of(step), error_of(step)) for step in steps], reader.read)
    for number, step in enumerate(steps):
        name = state_of(step).removeprefix("committed ")
        if name == "refused":
            true("is pushed by" in error_of(step) and "remote remove" in error_of(step), f"why: {error_of(step)}")
        else:
            true(number in reader.read[name], f"{name} is number {number}: {reader.read}")


def is_decided(step):
    return state_of(step).startswith(("committed", "refused"))


@pytest.mark.long
def test_two_mounts_in_one_slot(fresh_disk, work, url, mode):
    with nodes(fresh_disk, work, "twice", mode, url, ("0/1", "0/1")) as mounts:
        reader = Reader(url, [], work)
        steps = [mount.path / "steps" / "global_step1" for mount in mounts]
        for number, step in enumerate(steps):
            fill(step, seed=10 * number)
            reader.expect(step.name, contents(step))
        wait_until("both are decided", lambda: all(is_decided(step) for step in steps), 60, 0.1)
        time.sleep(3 * QUIET)
        check_each(reader, steps)
        # A step that only one of them has is committed in any case.
        fill(mounts[0].path / "steps" / "global_step2", seed=3)
        wait_for(mounts[0].path / "steps" / "global_step2", "committed global_step2")


@pytest.mark.long
def test_another_store_in_a_slot(fresh_disk, work, url, mode):
    """A second cluster of the same prefix: the slot 1 is there twice."""
    with nodes(fresh_disk, work, "other", mode, url, ("0/2", "1/2", "1/2")) as mounts:
        reader = Reader(url, [], work)
        steps = [mount.path / "steps" / "global_step1" for mount in mounts]
        parts = [part_of(slot, attempt) for slot, attempt in ((0, 1), (1, 1), (1, 2))]
        del parts[2]["shared.txt"]
        for part in parts[1:]:
            reader.expect("global_step1", parts[0] | part)
        for step, part in zip(steps, parts):
            step.mkdir()
            for name, content in part.items():
                (step / name).write_bytes(content)
        time.sleep(5 * QUIET)
        wait_until("somebody says so", lambda: any("slot 1 of global_step1 is pushed by" in error_of(step)
                                                    for step in steps), 60, 0.2)
        reader.look()
        equal(reader.wrong, [], "what was read")
        print([(state_of(step), error_of(step)) for step in steps], reader.read)
        # One of them goes: the others commit.
        ckptfs("remote", "remove", mounts[2].path / "steps")
        wait_until("what is left is whole, or refused", lambda: state_of(steps[0]).startswith(("committed", "refused")),
                   90, 0.2)
        for slot, mount in enumerate(mounts[:2]):
            fill(mount.path / "steps" / "global_step2", seed=20 + slot, files=(f"rank{slot}.bin",))
            (mount.path / "steps" / "global_step2" / "link").unlink()
        for mount in mounts[:2]:
            wait_for(mount.path / "steps" / "global_step2", "committed global_step2")


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
            check_each(reader, [before])
            true(state_of(step).startswith("committed"), state_of(step))
            equal(reader.read[state_of(step).removeprefix("committed ")], [number], f"{step}: {reader.read}")
            mount.stop()
            mount.store.fsck()
    finally:
        abandon(original)
        abandon(copy)


def contents(folder):
    return {name: entry[3] for name, entry in tree(folder).items()}


if __name__ == "__main__":
    rank_of_a_run(int(sys.argv[1]), sys.argv[2])
