"""Runs the tests of ckptfs, one line for each. scripts/test calls it."""

import argparse
import concurrent.futures
import fcntl
import os
import pathlib
import re
import shutil
import signal
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import commands
import leftovers
import lints
import script_tests
import unit_tests
from builds import Builds
from outcomes import BUILD, LOGS, Report

SCRATCH = BUILD / "tmp"

EXAMPLES = """\
A script test is a function test_* in a file tests/*/test_*.py, run by pytest: see docs/developing.md. Logs:
build/test-logs/, one for each file.

examples:
  scripts/test                  everything a change has to pass, from nothing
  scripts/test --quick          the inner loop
  scripts/test -k posix/        what has posix/ in its name
  scripts/test -k 'Tree\\.|save'  a regular expression
  scripts/test --long --strict  all rounds and scenarios, clang-tidy and tsan; no skip but those in tests/optional
"""


class Run:
    """One run: the wanted tests, what has to be built for them, and the report."""

    def __init__(self, level, pattern, jobs, report):
        self.level, self.jobs, self.report = level, jobs, report
        self.pattern = re.compile(pattern or "")
        self.lints = self.wanted(lints.names(level))
        self.units = self.wanted(unit_tests.names(level))
        self.scripts, self.problems = script_tests.collect(self.pattern.pattern)

    def wanted(self, names):
        return [name for name in names if self.pattern.search(name)]

    def names(self):
        return [*self.lints, *self.units, *(test.name for test in self.scripts)]

    def needed_builds(self):
        needed = {name.split("/")[0] for name in self.units} | {lints.BUILDS.get(name) for name in self.lints}
        return needed.union(*(test.builds for test in self.scripts)) - {None}

    def run(self):
        for name, text in self.problems:
            self.report.add(name, "FAIL", 0, "cannot be read", text)
        with leftovers.reachable(SCRATCH) as scratch:
            os.environ["CKPTFS_TMP"] = str(scratch)
            leftovers.clean(scratch)  # of a run that was killed
            try:
                self.run_in(scratch)
            finally:
                left = leftovers.clean(scratch)
                shutil.rmtree(scratch, ignore_errors=True)
            if left:
                self.report.add("script tests", "FAIL", 0, "left behind: " + ", ".join(left))

    def run_in(self, scratch):
        """Builds, lints, unit tests and script tests at the same time; then the tests that must run alone."""
        builds = Builds(self.report, self.needed_builds())
        linted = lints.Lints(self.report, builds, self.lints)
        units = unit_tests.UnitTests(self.report, builds, self.units, self.pattern, scratch)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            beside = [pool.submit(work) for work in (builds.run, builds.run_venv, linted.run, units.run)]
            try:
                self.run_scripts(builds, alone=False)
                for work in beside:
                    work.result()
            except BaseException:
                commands.stop_all()
                builds.give_up()
                raise
        self.run_scripts(builds, alone=True)

    def run_scripts(self, builds, alone):
        tests = [test for test in self.scripts if test.alone == alone]
        if not tests:
            return
        if not builds.wait("release"):
            return self.report.add("script tests", "FAIL", 0, "the release build failed")
        jobs = 1 if alone else min(self.jobs, len(tests))
        return script_tests.run(self.report, tests, self.pattern.pattern, jobs, builds)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/test", epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="Builds ckptfs and runs its tests; a line for each, then the counts.")
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--quick", dest="level", action="store_const", const="quick", help="only what takes seconds")
    level.add_argument("--long", dest="level", action="store_const", const="long", help="everything, hours if need be")
    parser.add_argument("--strict", action="store_true", help="a skip fails, unless tests/optional excuses it")
    parser.add_argument("-k", metavar="PATTERN", help="only tests whose name matches this regular expression")
    parser.add_argument("-j", "--jobs", metavar="N", type=int, default=os.cpu_count(),
                        help="script tests at a time (default: processors)")
    parser.add_argument("--list", action="store_true", help="print the names of the tests and run none")
    parser.set_defaults(level="normal")
    return parser.parse_args()


def claim_build():
    """Locks the build until the result is closed: two runs at once would remove each other's logs."""
    BUILD.mkdir(exist_ok=True)
    claim = open(BUILD / "test.lock", "w", encoding="utf-8")
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("test: another scripts/test of this checkout is running: wait for its end, or stop it")
    return claim


def set_environment(level):
    """The tests' settings, which the processes of pytest inherit."""
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.update(CKPTFS=str(BUILD / "ckptfs"), CKPTFS_DEBUG=str(BUILD / "asan" / "ckptfs"),
                      CKPTFS_BUILD=str(BUILD), CKPTFS_TEST_LEVEL=level, PYTHONDONTWRITEBYTECODE="1")


def main():
    arguments = parse_arguments()
    set_environment(arguments.level)
    run = Run(arguments.level, arguments.k, arguments.jobs, Report(arguments.strict))
    if not run.names() and not run.problems:
        sys.exit(f"test: no test of this level has a name that matches {arguments.k!r} (--list shows them)")
    if arguments.list:
        print("\n".join(run.names()))
        return 0
    with claim_build():
        shutil.rmtree(LOGS, ignore_errors=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a stopped run cleans up, too
        try:
            run.run()
        except KeyboardInterrupt:
            run.report.close()
            return 130
        return run.report.close()


if __name__ == "__main__":
    sys.exit(main())
