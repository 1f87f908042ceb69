"""Two nodes, and files that come late: a step that was committed is committed again, and two runs never mix. The trainings
say nothing: what is of one save is told by life."""

import random
import time

import pytest

from checking import equal, true
from mounting import wait_until
from runs import Run, saved
from savers import dcps, trainers
from test_push import ckptfs, node, state_of, status_of, wait_for

pytestmark = [pytest.mark.one_mode, pytest.mark.timeout(300)]


@pytest.fixture
def run():
    """Begins while the nodes are mounted."""
    with Run() as made:
        yield made


@pytest.fixture
def series(run, fresh_disk, work, scratch, mode):
    """The series of two nodes with one remote."""
    with node(fresh_disk, work, f"{scratch.name}-a", mode) as first, \
         node(fresh_disk, work, f"{scratch.name}-b", mode) as second:
        made = [mount.path / "steps" for mount in (first, second)]
        for slot, steps in enumerate(made):
            ckptfs("remote", "add", f"file://{scratch}", steps, "--slot", f"{slot}/2")
        yield made


def test_a_rank_that_is_late(series, run):
    """On the node of slot 0: the other one has changed nothing, and follows. On another one it waits, since slot 0's part is
    committed without it, until somebody has slot 0 push again."""
    first, second = (steps / "checkpoint-1" for steps in series)
    run.save(series, "checkpoint-1", [saved("A", 0), saved("A", 1)])
    for step in (first, second):
        wait_for(step, "committed checkpoint-1")
    run.save(series, "checkpoint-1", [saved("A", 2)], [0])
    for step in (first, second):
        wait_until("it is committed again", lambda step=step: state_of(step) == "committed checkpoint-1~2", 90, 0.2)
    run.save(series, "checkpoint-1", [None, saved("A", 3)], [1])
    wait_for(second, "waiting")
    told = status_of(series[1])["steps"][0]["waits_for"]
    true("committed, without what has changed here" in told and "push --again" in told, f"what it says: {told}")
    equal(state_of(first), "committed checkpoint-1~2", "slot 0")
    ckptfs("push", "--again", first)
    for step in (first, second):
        wait_until("it is committed once more", lambda step=step: state_of(step) == "committed checkpoint-1~3", 90, 0.2)


def test_a_run_that_went_back(series, run):
    """The second run saves step 10 again on one node, and not yet on the other."""
    run.save(series, "checkpoint-10", [None, saved("A", 1)], [1])
    wait_for(series[1] / "checkpoint-10", "waiting for slot 0")
    time.sleep(1)  # a server's clock may have whole seconds
    with Run() as second:
        second.save(series, "checkpoint-6", [saved("B", 0), saved("B", 1)])
        second.save(series, "checkpoint-10", [saved("B", 0)], [0])
        for steps in series:
            wait_for(steps / "checkpoint-6", "committed", 90)
        wait_for(series[0] / "checkpoint-10", "waiting for slot 1")
        time.sleep(5)
        for steps in series:
            equal(state_of(steps / "checkpoint-10").split()[0], "waiting", "files of two runs")
        told = next(one for one in status_of(series[1])["steps"] if one["tag"] == "checkpoint-10")["waits_for"]
        true("of another run" in told, f"what it says: {told}")
        second.save(series, "checkpoint-10", [None, saved("B", 1)], [1])
        for steps in series:
            wait_for(steps / "checkpoint-10", "committed checkpoint-10", 90)


def test_a_node_whose_files_tell_little(series, run):
    """Of a Trainer's step it has the states of its ranks' dice alone, or of DCP's what its ranks hold: no file that makes its
    folders steps, nor one by which a mount knows a save."""
    of_trainer, of_dcp = dict(trainers(random.Random(1), 1, 1.0)), dict(dcps(None, 2, 1.0))
    second = {"__1_0.distcp": of_dcp.pop("__1_0.distcp")}
    for tag, parts in (("checkpoint-1", (of_trainer, {"rng_state_1.pth": of_trainer["rng_state.pth"]})),
                       ("step_2", (of_dcp, second))):
        run.save(series, tag, parts)
        for steps in series:
            wait_for(steps / tag, f"committed {tag}")
