"""The runner of scripts/test: shares, sittings, what tests claim of the machine, and what it reports of gtest."""

import errno
import os
import subprocess
import sys

import pytest

import claims
import outcomes
import ports
import sittings
import unit_tests
from checking import equal, raises, true
from mounting import REPOSITORY, run

PAGE = f"before\n{sittings.BEGIN}\nnone yet\n{sittings.END}\nafter\n"
NAMES = ([f"posix/test_{file}.py::test_{number}" for file in range(9) for number in range(file + 1)]
         + [f"unit/meta.Suite.Case{number}" for number in range(50)] + ["lint/tidy", "unit/io.Suite.Case"])


@pytest.fixture
def state(scratch, monkeypatch):
    """A long run of its own."""
    monkeypatch.setattr(sittings, "STATE", scratch / "long-run.json")
    monkeypatch.setattr(sittings, "PAGE", scratch / "page.md")
    sittings.PAGE.write_text(PAGE)


def test_shares_have_each_test_once(state):
    shares = [sittings.share(NAMES, number, 4) for number in (1, 2, 3, 4)]
    equal(sorted(sum(shares, [])), sorted(NAMES), "the tests of all shares")
    pieces = [{sittings.piece_of(name) for name in one} for one in shares]
    equal(sum(map(len, pieces)), len(set.union(*pieces)), "no file and no executable is divided")
    equal(shares, [sittings.share(NAMES, number, 4) for number in (1, 2, 3, 4)], "the same each time")


def test_a_run_goes_on_and_is_recorded(state):
    first = sittings.Sittings(NAMES)
    for name in NAMES[:30]:
        first.note(name, "ok", 6)
    first.note(NAMES[0], "FAIL", 6)
    second = sittings.Sittings(NAMES)
    equal([name for name in NAMES if name not in second.passed()], [NAMES[0], *NAMES[30:]], "what is left")
    for name in NAMES[30:-1]:
        second.note(name, "skip" if name == "lint/tidy" else "ok", 6)
    equal(sittings.record(second), "", "why not")
    group = sittings.group_of(NAMES[-1])
    true(f"`{group}`" not in sittings.PAGE.read_text(), "a group of which one test has not ended is not recorded")
    second.note(f"{NAMES[-1].replace('Suite', 'Ways/Suite')}/0", "ok", 6)  # with a parameter
    second.note(NAMES[0], "ok", 12)
    equal(sittings.record(second), "", "what is missing")
    page = sittings.PAGE.read_text()
    true(page.startswith("before\n") and page.endswith("\nafter\n"), page)
    true("| `posix` | 45 | 4.6 | 0 |" in page and "| `lint/tidy` | 1 | 0.1 | 1 |" in page, page)
    true("groups have run whole" in page and f"`{group}`" in page and "| - |" in page, page)
    equal(round(sittings.estimate(NAMES, 2)[0], 1), round((6 * len(NAMES) + 6) / 60 / 2, 1), "minutes of the next one")


def test_a_new_checkout_records_beside_what_stands_there(state):
    """build/ is gone, the page is not."""
    first = sittings.Sittings(NAMES)
    for name in NAMES:
        first.note(name, "ok", 6)
    equal(sittings.record(first), "", "why not")
    sittings.STATE.unlink()
    second = sittings.Sittings(NAMES)
    true("no group has run whole" in sittings.record(second), "nothing has run")
    second.note("lint/tidy", "FAIL", 60)
    equal(sittings.record(second), "", "why not")
    page = sittings.PAGE.read_text()
    true("| `posix` | 45 |" in page and "| `lint/tidy` | 1 | 1.0 | 0 |" in page and "| `lint/tidy` |\n" in page, page)


def test_what_ended_counts_under_the_names_of_today(state):
    """A parameter that failed is not hidden by one that passed. What is no test counts as long as it fails."""
    first = sittings.Sittings(NAMES)
    first.note("unit/io.Ways/Suite.Case/0", "FAIL", 1)
    first.note("unit/io.Ways/Suite.Case/1", "ok", 1)
    first.note("posix/test_gone.py::test_1", "FAIL", 1)
    first.note_no_test("build/asan", True, 1)
    second = sittings.Sittings(NAMES)
    equal(sorted(second.ended), ["build/asan", "unit/io.Ways/Suite.Case/0", "unit/io.Ways/Suite.Case/1"], "what is known")
    true("unit/io.Suite.Case" not in second.passed(), "one of its parameters has failed")
    second.note_no_test("build/asan", False, 1)
    second.forget(["unit/io.Suite.Case"])
    equal(second.ended, {}, "what is known")


def test_disk_is_waited_for(scratch, monkeypatch):
    """A second test that needs nearly all of the disk waits for the first. One that needs more is told so."""
    monkeypatch.setattr(claims, "FOLDER", scratch / "claims")
    claims.FOLDER.mkdir()
    (claims.FOLDER / f"disk-{os.stat(scratch).st_dev}-1-5000").touch()  # of a process that was killed
    figures = os.statvfs(scratch)
    free = figures.f_bavail * figures.f_frsize >> 30
    need = max(0, free - claims.SPARE_GIB - 1)
    program = ("import pathlib, sys, claims\nclaims.FOLDER = pathlib.Path(sys.argv[1]) / 'claims'\n"
               "with claims.disk(sys.argv[1], int(sys.argv[2])): pathlib.Path(sys.argv[1], 'claimed').touch()")
    with claims.disk(scratch, need):
        other = subprocess.Popen([sys.executable, "-c", program, scratch, str(need)],
                                 env=dict(os.environ, PYTHONPATH=str(REPOSITORY / "tests" / "lib")))
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1)
        true(not (scratch / "claimed").exists(), "the other one waits")
    equal(other.wait(60), 0, "the other one goes on")
    true((scratch / "claimed").exists(), "the other one had its turn")
    with raises(28, what="more than there is"), claims.disk(scratch, free + 1):
        pass


def test_nobody_elses_folder_is_used(scratch, monkeypatch):
    """Else who makes it first chooses what root opens."""
    monkeypatch.setattr(claims, "FOLDER", scratch / "claims")
    claims.FOLDER.symlink_to(scratch)
    with raises(errno.EPERM, what="a link"):
        claims.try_lock("x")
    claims.FOLDER.unlink()
    claims.FOLDER.mkdir()
    os.chown(claims.FOLDER, 5001, 5001)
    with raises(errno.EPERM, what="another user's folder"):
        claims.try_lock("x")


def test_a_port_is_given_once(monkeypatch):
    monkeypatch.setattr(ports, "END", ports.FIRST + 40)
    program = ("import ports, sys\nports.END = ports.FIRST + 40\nprint(*ports.free_ports(10), flush=True)\n"
               "sys.stdin.read()")
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=dict(os.environ, PYTHONPATH=str(REPOSITORY / "tests" / "lib")))
    with other:
        theirs = set(map(int, other.stdout.readline().split()))
        equal(set(ports.free_ports(10)) & theirs, set(), "ports that both were given")


CASES = """
#include <gtest/gtest.h>
TEST(Planted, Passes) {}
TEST(Planted, Fails) { std::cout << "said before\\n"; EXPECT_EQ(1, 2); }
TEST(Planted, IsSkipped) { GTEST_SKIP() << "gpu: no device"; }
TEST(Planted, Dies) { std::cout << "last words" << std::endl; std::abort(); }
int main(int count, char** words) { testing::InitGoogleTest(&count, words); return RUN_ALL_TESTS(); }
"""


class Lines:
    """As Report: notes what is added."""

    def __init__(self):
        self.found = {}

    def add(self, name, outcome, seconds, note="", log="", **_):
        self.found[name] = (outcome, note, log)


def test_what_gtest_says_is_reported(scratch, monkeypatch):
    monkeypatch.setattr(unit_tests, "log_path", lambda name: scratch / f"{name.replace('/', '_')}.log")
    (scratch / "planted.cc").write_text(CASES)
    run("clang++", "-O0", "-o", scratch / "planted", scratch / "planted.cc", "-lgtest", "-lpthread")

    def report(*cases):
        lines = Lines()
        wanted = {f"unit/x.Planted.{case}" for case in cases}
        unit_tests.UnitTests(lines, None, [], wanted.__contains__, scratch / "tmp").executable(scratch / "planted", "unit/x")
        return lines.found

    found = report("Passes", "Fails", "IsSkipped")
    equal({name: one[0] for name, one in found.items()}, {"unit/x.Planted.Passes": "ok", "unit/x.Planted.Fails": "FAIL",
          "unit/x.Planted.IsSkipped": "skip", "unit/x": "ok"}, "outcomes")
    true("said before" in found["unit/x.Planted.Fails"][2] and "planted.cc" in found["unit/x.Planted.Fails"][2], str(found))
    equal(found["unit/x.Planted.IsSkipped"][1], "gpu: no device", "the reason")
    died = report("Passes", "Dies")["unit/x"]
    true(died[0] == "FAIL" and "signal 6" in died[1] and "last words" in died[2], f"what dies: {died}")


def test_costs_are_told():
    costs = outcomes.Costs()
    costs.add("build/release", 100, 90.0)
    costs.add("posix/test_x.py::test_y", 7, None)
    true("build/release 1.5 min" in str(costs) and "7.0 s  posix/test_x.py::test_y" in str(costs), str(costs))


def test_wrong_arguments_are_refused():
    for words, told in ((["--share", "1/2"], "are for --long"), (["--long", "--share", "3/2"], "is no share"),
                        (["--long", "--record", "-k", "posix"], "of a whole run"), (["-k", "no such test"], "no test of this level")):
        done = run(REPOSITORY / "scripts" / "test", *words, check=False)
        true(done.returncode != 0 and told in done.stderr, f"{words}: {done}")
