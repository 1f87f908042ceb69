"""A step is saved past the mount, and the program, one of two ranks, or the daemon dies, at each point.

The step is there completely or not at all, the previous one is untouched, and the save can be repeated.
"""

import json
import os
import signal

import pytest

import saving
from checking import equal, true
from mounting import CKPTFS_DEBUG, MODES, by_level, run, wait_until

pytestmark = [pytest.mark.builds("faults"), pytest.mark.one_mode]

RANK_POINTS = ["save.copy=3:kill", "save.sync=kill", "step_save.before_freeze=kill", "step_save.before_manifest=kill",
               "step_save.after_manifest=kill", "step_save.before_commit=kill"]
# The count of a seal's hits includes the freeze of the files.
DAEMON_POINTS = ["seal.before_publish=1:kill", "seal.before_publish=2:kill", "commit.before_batch=kill",
                 "commit.after_batch=kill", "commit.after_merge=kill"]


def folders(mount):
    return sorted(os.listdir(mount.path / "steps"))


def check_all(mount, ranks, whole):
    """The old step is unchanged; the new one complete or absent (None: either); uncommitted files are listed as
    such."""
    saving.check(mount.path / "steps/step_1")
    there = "step_2" in folders(mount) and any(name.endswith(".json") for name in os.listdir(mount.path / "steps/step_2"))
    if whole is not None:
        equal(there, whole, "is the step there?")
    if there:
        saving.check(mount.path / "steps/step_2", ranks=ranks, seed=2)
    rows = json.loads(run(mount.binary, "ls", "--json", mount.path).stdout)["steps"]
    for row in rows:
        if row["tag"].startswith("partial-"):
            equal(row["state"], "incomplete", row["tag"])


def save_again(mount, ranks):
    """Another attempt succeeds, whatever the last one left. If the last one was complete, the step is sealed
    already."""
    if "step_2" in folders(mount) and mount.ask("steps/step_2", "state") == "sealed":
        return
    for rank in range(ranks):
        saving.save(mount.path / "steps", "step_2", "again", rank=rank, world=ranks, seed=2)
    saving.check(mount.path / "steps/step_2", ranks=ranks, seed=2)


def rank_dies(mount, fault, ranks):
    saving.save(mount.path / "steps", "step_1", "first")
    for rank in range(ranks - 1):
        equal(saving.save(mount.path / "steps", "step_2", "cut", rank=rank, world=ranks, seed=2)[-1], "waiting", "rank")
    saving.save(mount.path / "steps", "step_2", "cut", rank=ranks - 1, world=ranks, seed=2, faults=fault,
                status=-signal.SIGKILL)
    check_all(mount, ranks, whole=False)
    mount.kill()  # with what the dead rank left
    mount.start()
    check_all(mount, ranks, whole=False)
    save_again(mount, ranks)


def daemon_dies(mount, fault, ranks):
    saving.save(mount.path / "steps", "step_1", "first")
    if "merge" in fault:
        (mount.path / "steps/step_2").mkdir()
    for rank in range(ranks - 1):
        saving.save(mount.path / "steps", "step_2", "cut", rank=rank, world=ranks, seed=2)
    mount.stop()
    mount.faults = fault
    mount.start()
    program = saving.begin(mount.path / "steps", "step_2", "cut", rank=ranks - 1, world=ranks, seed=2)
    output, errors = program.communicate(timeout=60)
    wait_until(f"the daemon dies at {fault}", lambda: not mount.alive(), 20)
    true(program.returncode == 1 and errors.strip(), f"the program says so: {program.returncode} {output} {errors}")
    mount.faults = None
    mount.start()
    check_all(mount, ranks, whole=True if fault.split("=")[0] in ("commit.after_batch", "commit.after_merge") else None)
    save_again(mount, ranks)


def deaths():
    """Yields mode, number of ranks, what is played, and the fault. Below the level long the ranks die in one mode, the
    daemon in the other."""
    kinds = [(RANK_POINTS, rank_dies), (DAEMON_POINTS, daemon_dies)]
    for number, mode in enumerate(MODES):
        for ranks in by_level((1 + number,), (1, 2)):
            for points, play in by_level(kinds[number:][:1], kinds):
                for fault in points:
                    yield mode, ranks, play, fault


@pytest.mark.parametrize("mode, ranks, play, fault", list(deaths()), indirect=["mode"])
def test_dies(crashing_mount, mode, ranks, play, fault):
    play(crashing_mount(mode=mode, binary=CKPTFS_DEBUG), fault, ranks)


def test_power_goes(crashing_mount, mode):
    """After wait_durable() the files are on the disk, so the other rank can still commit. So is the effect of
    commit()."""
    mount = crashing_mount(image="1G", mode=mode, binary=CKPTFS_DEBUG)
    saving.save(mount.path / "steps", "step_1", "first")
    equal(saving.save(mount.path / "steps", "step_2", "cut", world=2, seed=2)[-2:], ["durable", "waiting"], "reached")
    mount.lose_power()
    mount.start()
    check_all(mount, 2, whole=False)
    equal(saving.save(mount.path / "steps", "step_2", "cut", rank=1, world=2, seed=2)[-1], "committed", "reached")
    mount.lose_power()
    mount.start()
    check_all(mount, 2, whole=True)
    equal(mount.ask("steps/step_2", "state"), "sealed", "state")
    save_again(mount, 2)
