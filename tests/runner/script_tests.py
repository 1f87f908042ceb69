"""Runs the script tests by pytest, as many at a time as there are processors, and reports a line for each."""

import contextlib
import dataclasses
import os

import pytest

from outcomes import LOGS, ROOT, log_path

TESTS = ROOT / "tests"


@dataclasses.dataclass
class ScriptTest:
    name: str  # for example posix/test_seal.py::test_what_is_no_step_is_not_sealed[direct]
    builds: set
    alone: bool

    @property
    def file(self):
        return self.name.split("::")[0]


class Collector:
    """A plugin of pytest: notes the tests that it finds, and the files that it cannot read."""

    def __init__(self):
        self.tests, self.problems = [], []

    def pytest_collection_finish(self, session):
        for item in session.items:
            builds = {name for mark in item.iter_markers("builds") for name in mark.args}
            self.tests.append(ScriptTest(item.nodeid, {"release", *builds}, bool(item.get_closest_marker("alone"))))

    def pytest_collectreport(self, report):
        if report.failed:
            self.problems.append((report.nodeid, report.longreprtext))


class Lines:
    """A plugin of pytest: reports each test when it has ended."""

    def __init__(self, report):
        self.report = report
        self.phases = {}  # name -> reports of its setup and call, as long as it runs
        self.ended = set()

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("@")[0]  # pytest-xdist adds the group
        phases = self.phases.setdefault(name, [])
        phases.append(report)
        if report.when not in ("setup", "call"):  # teardown, or the end of a process that died
            del self.phases[name]
            self.ended.add(name)
            self.add(name, phases)

    def add(self, name, phases):
        seconds = sum(phase.duration for phase in phases if isinstance(phase.duration, float))
        bad = [phase for phase in phases if phase.failed]
        skipped = [phase for phase in phases if phase.skipped]
        outcome = "FAIL" if bad else "skip" if skipped else "ok"
        printed = {title: text for phase in phases for title, text in phase.sections}
        shown = "\n".join([*printed.values(), *(phase.longreprtext for phase in bad)])
        with open(log_path(name.split(".py::")[0]), "a", encoding="utf-8") as log:
            print(f"=== {name}: {outcome}, {seconds:.1f} s\n{shown}", file=log)
        reason = skipped[0].longrepr[2].removeprefix("Skipped: ") if skipped else ""
        self.report.add(name, outcome, seconds, reason, shown)


def run_pytest(plugin, *words):
    """Returns pytest's exit status. What it prints itself is in pytest.log."""
    log_path("pytest").touch()
    with open(log_path("pytest"), "a", encoding="utf-8") as log:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            return pytest.main(["-c", str(TESTS / "pytest.ini"), "--rootdir", str(TESTS), "--color=no",
                                *map(str, words)], plugins=[plugin])


def collect():
    """Returns the tests of this level, and the problems (name, text)."""
    found = Collector()
    status = run_pytest(found, "--collect-only", "-q", TESTS)
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not found.problems:
        found.problems.append(("pytest", log_path("pytest").read_text()))
    return found.tests, found.problems


def run(report, tests, jobs, builds):
    """Runs these tests in `jobs` processes. A test that needs a build that is not there yet waits for it."""
    os.environ["CKPTFS_TEST_BUILDS"] = str(builds.folder)
    os.environ["CKPTFS_TEST_AWAITED"] = " ".join(builds.awaited())
    lines = Lines(report)
    chosen = LOGS / "chosen"
    chosen.write_text("".join(f"{test.name}\n" for test in tests))
    # Where a process dies, pytest-xdist 3.1 may wait for ever for the one that it starts instead.
    processes = ["-n", jobs, "--dist", "loadgroup", "--max-worker-restart", 0] if len(tests) > 1 else []
    status = run_pytest(lines, *processes, "--chosen", chosen, *sorted({TESTS / test.file for test in tests}))
    if status == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    for test in tests:
        if test.name not in lines.ended:
            report.add(test.name, "FAIL", 0, f"not run, because a process of pytest died; see {LOGS / 'pytest.log'}")
