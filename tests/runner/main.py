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
from builds import Builds, presets
from outcomes import BUILD, LOGS, Report
from sittings import Sittings, estimate, record, share

SCRATCH = BUILD / "tmp"
MEMORY_OF_A_JOB = 3 << 30  # a rank that has loaded torch takes 1 GiB

EXAMPLES = """\
A script test is a function test_* in a file tests/*/test_*.py, run by pytest: see docs/developing.md. Logs:
build/test-logs/, one for each file.

examples:
  scripts/test                  everything a change has to pass, from nothing; some 20 minutes on 2 processors
  scripts/test -k posix/        what has posix/ in its name
  scripts/test -k 'Tree\\.|save'  a regular expression
  scripts/test --long --strict  all rounds and scenarios, clang-tidy, sanitizers; no skip but those in tests/optional
  scripts/test --long --share 2/6   a sixth of it
  scripts/test --long --resume  go on after the last sitting: what failed, and what has not run
  scripts/test --long --record  write the long run that has ended into docs/developing.md
"""


class Run:
    """One run: the wanted tests, what has to be built for them, and the report."""

    def __init__(self, arguments):
        self.level, self.jobs = arguments.level, arguments.jobs
        scripts, self.problems = script_tests.collect()
        every = [*lints.names(self.level), *unit_tests.names(self.level), *(test.name for test in scripts)]
        self.sittings = Sittings(every) if self.level == "long" else None
        self.report = Report(arguments.strict, self.sittings)
        pattern = re.compile(arguments.k or "")
        self.names = [name for name in every if pattern.search(name)]
        if arguments.share:
            self.names = share(self.names, *arguments.share)
        if arguments.resume:
            passed = self.sittings.passed()
            self.names = [name for name in self.names if name not in passed]
        elif self.sittings and not arguments.record:
            self.sittings.forget(self.names)
        wanted = self.wanted = set(self.names)
        self.lints = [name for name in lints.names(self.level) if name in wanted]
        self.units = [name for name in unit_tests.names(self.level) if name in wanted]
        self.scripts = [test for test in scripts if test.name in wanted]

    def wants_unit(self, name):
        return unit_tests.name_in_source(name) in self.wanted

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
            self.report.add("clean-up", "FAIL" if left else "ok", 0, "left behind: " + ", ".join(left) if left else "",
                            count=False)

    def run_in(self, scratch):
        """Builds, lints, unit tests and script tests at the same time; then the tests that must run alone."""
        builds = Builds(self.report, self.level, self.needed_builds())
        linted = lints.Lints(self.report, builds, self.lints)
        executables = list(dict.fromkeys(name.split(".")[0] for name in self.units))  # unit/io, unit/meta, ...
        units = unit_tests.UnitTests(self.report, builds, executables, self.wants_unit, scratch)
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
        return script_tests.run(self.report, tests, 1 if alone else min(self.jobs, len(tests)), builds)

    def close(self):
        """Prints the summary. Returns the exit status."""
        status = self.report.close()
        if self.sittings:
            self.report.say(f"the long run so far: {self.sittings.count()}")
        return status


def part_of(text):
    """Returns (2, 6) of "2/6"."""
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no share; the second of six is 2/6")
    return int(index), int(count)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/test", epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="Builds ckptfs and runs its tests; a line for each, then the counts.")
    parser.add_argument("--long", dest="level", action="store_const", const="long", default="normal",
                        help="everything: hours; says beforehand how many")
    parser.add_argument("--share", metavar="I/N", type=part_of, help="with --long: only share I of N")
    parser.add_argument("--resume", action="store_true", help="with --long: only what has not passed in a sitting so far")
    parser.add_argument("--record", action="store_true",
                        help="with --long: run nothing; write the run that has ended into docs/developing.md")
    parser.add_argument("--strict", action="store_true", help="a skip fails, unless tests/optional excuses it")
    parser.add_argument("-k", metavar="PATTERN", help="only tests whose name matches this regular expression")
    parser.add_argument("-j", "--jobs", metavar="N", type=int, default=jobs_by_default(),
                        help="script tests at a time (default: twice the processors, since tests also wait, or fewer "
                             "where memory is short)")
    parser.add_argument("--list", action="store_true", help="print the names of the tests and run none")
    arguments = parser.parse_args()
    if arguments.level != "long" and (arguments.share or arguments.resume or arguments.record):
        parser.error("--share, --resume and --record are for --long")
    if arguments.record and (arguments.share or arguments.resume or arguments.strict or arguments.k):
        parser.error("--record is of a whole run: give it with --long alone")
    return arguments


def jobs_by_default():
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(2, min(2 * os.cpu_count(), memory // MEMORY_OF_A_JOB))


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
    for name in ("PYTEST_ADDOPTS", "PYTHONDONTWRITEBYTECODE"):  # compiling modules anew takes each training seconds
        os.environ.pop(name, None)
    os.environ.update(CKPTFS=str(BUILD / "ckptfs"), CKPTFS_DEBUG=str(BUILD / presets(level)["faults"][0] / "ckptfs"),
                      CKPTFS_BUILD=str(BUILD), CKPTFS_TEST_LEVEL=level, PYTHONPYCACHEPREFIX=str(BUILD / "pycache"))


def announce(run):
    """Says how long it will take."""
    expected, basis = estimate(run.names, run.jobs)
    run.report.say(f"test: {len(run.names):,} tests; about {expected / 60:.1f} hours with {run.jobs} at a time, and the "
                   f"builds: {basis}")


def main():
    arguments = parse_arguments()
    set_environment(arguments.level)
    run = Run(arguments)
    if arguments.list:
        print("\n".join(run.names))
        return 0
    if arguments.record:
        if run.problems:
            return complain(f"{run.problems[0][0]} cannot be read: {run.problems[0][1]}")
        return complain(record(run.sittings))
    if not run.names and not run.problems and arguments.resume:
        print("test: nothing is left, all of it has passed")
        return 0
    if not run.names and not run.problems:
        return complain(f"no test of this level has a name that matches {arguments.k!r} (--list shows them)")
    with claim_build():
        shutil.rmtree(LOGS, ignore_errors=True)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a stopped run cleans up, too
        if run.sittings:
            announce(run)
        try:
            run.run()
        except KeyboardInterrupt:
            run.close()
            return 130
        return run.close()


def complain(problem):
    if problem:
        print(f"test: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
