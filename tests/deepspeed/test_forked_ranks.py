"""The processes that stand for ranks in other tests: what they are given, and how they end."""

import os
import signal

import pytest

from checking import equal, true
from harness import environment, rank_server
from mounting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.builds("venv"), pytest.mark.timeout(300), pytest.mark.usefixtures("venv")]

SCRIPT = """\
import os, sys, sibling
print(sys.argv[1:], os.environ["OWN"], sibling.WORD, __name__, flush=True)
how = sys.argv[1]
if how == "fails":
    raise ValueError("it does")
if how == "waits":
    input()
if how == "exits":
    sys.exit(3)
"""


@pytest.fixture
def start(scratch):
    (scratch / "script.py").write_text(SCRIPT)
    (scratch / "sibling.py").write_text("WORD = 'found'\n")

    def started(how, own, **files):
        with open(scratch / f"{own}.log", "wb") as log:
            return rank_server().start([scratch / "script.py", how], dict(environment(), OWN=own), log, **files)

    return started


def test_how_they_end(start, scratch):
    ranks = {how: start(how, f"of {how}") for how in ("ends", "fails", "exits")}
    equal({how: rank.wait(60) for how, rank in ranks.items()}, {"ends": 0, "fails": 1, "exits": 3}, "exit codes")
    for how in ranks:
        log = (scratch / f"of {how}.log").read_text()
        equal(log.splitlines()[0], f"['{how}'] of {how} found __main__", "what it was given")
        equal("ValueError: it does" in log, how == "fails", f"a traceback: {log}")


def test_killed(start, scratch):
    reading, writing = os.pipe()
    with open(reading) as silent, open(writing, "w"):
        judge_killed(start, scratch, silent)


def judge_killed(start, scratch, silent):
    waits, other = (start("waits", own, asked=silent) for own in ("killed", "goes on"))
    for own in ("killed", "goes on"):
        wait_until(f"{own} runs", lambda own=own: (scratch / f"{own}.log").read_text(), 60)
    equal(waits.poll(), None, "it waits")
    waits.kill()
    equal(waits.wait(60), -signal.SIGKILL, "how it ended")
    equal(other.poll(), None, "the other one")
    other.kill()
    true(other.wait(60) < 0, "it is ended, too")
    other.kill()  # nothing
