"""Two nodes, and files that come late: a step that was committed is committed again, and two runs never mix."""

import contextlib
import subprocess
import sys
import time

import pytest

from checking import equal
from mounting import wait_until
from test_push import ckptfs, node, state_of, wait_for

pytestmark = [pytest.mark.one_mode,
              pytest.mark.timeout(300)]

# A process that runs for less than two seconds is a command, not a run.
RUN = """
import os, sys, time
time.sleep(2.5)
for path in sys.stdin:
    os.makedirs(os.path.dirname(path.strip()), exist_ok=True)
    with open(path.strip(), "wb") as file:
        file.write(os.urandom(100_000))
    print(flush=True)
"""


@contextlib.contextmanager
def run_of_training():
    """Returns a function by which a process writes a file."""
    process = subprocess.Popen([sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def save(path):
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        process.stdout.readline()

    try:
        yield save
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def series(fresh_disk, work, scratch, mode):
    """The series of two nodes with one remote."""
    with node(fresh_disk, work, f"{scratch.name}-a", mode) as first, \
         node(fresh_disk, work, f"{scratch.name}-b", mode) as second:
        made = [mount.path / "steps" for mount in (first, second)]
        for slot, steps in enumerate(made):
            ckptfs("remote", "add", f"file://{scratch}", steps, "--slot", f"{slot}/2")
        yield made


def test_a_change_on_one_node(series):
    """The other node has changed nothing, and confirms the new files nevertheless."""
    first, second = (steps / "checkpoint-1" for steps in series)
    with run_of_training() as save:
        save(first / "rng_state_0.pth")
        save(second / "rng_state_1.pth")
        for step in (first, second):
            wait_for(step, "committed checkpoint-1")
        save(first / "rng_state_2.pth")  # a rank that was late
        wait_until("it is committed again", lambda: state_of(first) == "committed checkpoint-1~2", 90, 0.2)


def test_a_run_that_went_back(series):
    """The second run saves step 10 again on one node, and not yet on the other. A node without rank 0 has no file that
    makes its folders steps."""
    first, second = series
    with run_of_training() as save:
        save(second / "checkpoint-10" / "rng_state_1.pth")
    with run_of_training() as save:
        for steps, name in ((first, "rng_state_0.pth"), (second, "rng_state_1.pth")):
            save(steps / "checkpoint-6" / name)
        save(first / "checkpoint-10" / "rng_state_0.pth")
        for steps in series:
            wait_for(steps / "checkpoint-6", "committed", 90)
        time.sleep(10)
        for steps in series:
            equal(state_of(steps / "checkpoint-10").split()[0], "waiting", "files of two runs")
        save(second / "checkpoint-10" / "rng_state_1.pth")
        for steps in series:
            wait_for(steps / "checkpoint-10", "committed checkpoint-10", 90)
