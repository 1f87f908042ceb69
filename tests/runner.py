"""Runs the tests of ckptfs, one line for each. scripts/test calls it. It needs Python 3 only."""

import argparse
import concurrent.futures
import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import layering
import leftovers

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LOGS = BUILD / "test-logs"
SCRATCH = BUILD / "tmp"
LAYERS = ("io", "meta", "gpu", "fs")
SCRIPT_GROUPS = ("fuzz", "cli", "gpu", "posix", "packaging", "crash", "deepspeed", "bench")
PREPARATIONS = {"deepspeed": ("build/venv", ROOT / "tests" / "deepspeed" / "venv.sh")}
# If the kernel has autogroups, a session is a scheduling group of its own, and `nice` counts only within it.
BEHIND_ALL = '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 19 "$0"'
DEFAULT_TIMEOUT = 120
UNIT_TIMEOUT = 600
GRACE = 15  # seconds that a test gets to clean up after SIGTERM
TAIL_LINES = 40
SKIPPED = 77

EXAMPLES = """\
A script test is an executable tests/{fuzz,cli,gpu,posix,crash,deepspeed,bench}/test_*: it exits 0 (passed), 77 (skipped, the
last line of its output says why) or otherwise (failed). Near its head stand '# timeout: SECONDS' and
'# levels: quick normal long'. It gets CKPTFS, CKPTFS_DEBUG (with fault points), CKPTFS_BUILD, CKPTFS_TEST_LEVEL and
CKPTFS_TMP (a fresh folder, removed afterwards; what it leaves mounted there makes it fail). Logs: build/test-logs/.

examples:
  scripts/test                  everything a change has to pass, from nothing
  scripts/test --quick          the inner loop
  scripts/test -k posix/        what has posix/ in its name
  scripts/test -k 'Tree\\.|save'  a regular expression
  scripts/test --long --strict  all rounds and scenarios, clang-tidy and tsan; no skip but those in tests/optional
"""


class Report:
    """Prints and counts outcomes. Knows which skips are excused."""

    MARKS = {"ok": "32", "FAIL": "31", "skip": "33"}

    def __init__(self, strict):
        self.strict = strict
        self.optional = read_optional()
        self.counts = {"ok": 0, "FAIL": 0, "skip": 0}
        self.failures = []
        self.color = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def add(self, name, outcome, seconds, note="", log="", count=True):
        """Prints one line; for a failure also the end of its log. With --strict, a skip without an excuse is a
        failure."""
        if outcome == "skip" and self.strict and not self.excused(name, note):
            outcome, note = "FAIL", f"skipped, and --strict: {note}"
        mark = f"{outcome:<4}"
        if self.color:
            mark = f"\033[{self.MARKS[outcome]}m{mark}\033[0m"
        print(f"{mark}  {name:<56} {seconds:8.1f} s" + (f"  {note}" if note else ""), flush=True)
        if outcome == "FAIL":
            self.failures.append(name)
            for line in log.rstrip().splitlines()[-TAIL_LINES:]:
                print(f"      | {line}")
        if count or outcome == "FAIL":
            self.counts[outcome] += 1

    def excused(self, name, reason):
        need = reason.split(":")[0].strip() if ":" in reason else ""
        return name in self.optional or need in self.optional

    def close(self):
        if self.failures:
            print("\nfailed: " + " ".join(self.failures))
            print(f"logs:   {LOGS}")
        print(f"\n{self.counts['ok']} passed, {self.counts['FAIL']} failed, {self.counts['skip']} skipped", flush=True)
        return 1 if self.failures or not self.counts["ok"] else 0


def read_optional():
    lines = (ROOT / "tests" / "optional").read_text().splitlines()
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


def log_path(name):
    path = LOGS / (re.sub(r"[^\w.-]+", "_", name) + ".log")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def begin(command, log, env=None):
    """Starts the command in a session of its own, with its output in the log."""
    with open(log, "w") as out:
        return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                start_new_session=True)


def execute(command, log, timeout=None, env=None):
    """Runs the command to its end. Returns (exit code, or None after the timeout; seconds)."""
    start = time.monotonic()
    process = begin(command, log, env)
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        leftovers.end_session(process, GRACE)
    return code, time.monotonic() - start


class Preparation:
    """Something that a group of tests needs and that takes minutes to make. It is made at low priority beside other
    tests."""

    def __init__(self, name, command):
        self.name = name
        self.log = log_path(name)
        self.process = begin(["sh", "-c", BEHIND_ALL, command], self.log)

    def finish(self, report):
        start = time.monotonic()
        outcome = "FAIL" if self.process.wait() else "ok"
        report.add(self.name, outcome, time.monotonic() - start, "waited for", read_log(self.log), count=False)

    def stop(self):
        if self.process.poll() is None:
            leftovers.end_session(self.process, GRACE)


def read_log(log):
    return log.read_text(errors="replace")


class Runner:
    """One run: the wanted tests, what has been built for them, and the report."""

    def __init__(self, level, pattern, report):
        self.level = level
        self.pattern = re.compile(pattern) if pattern else None
        self.report = report
        self.builds = {}
        self.preparations = {}
        self.scratch = SCRATCH

    def wants(self, name):
        return self.pattern is None or bool(self.pattern.search(name))

    def build(self, preset, *targets):
        """Builds each preset and set of targets once, and prints a line. Returns False if it failed."""
        key = (preset, *targets)
        if key not in self.builds:
            name = "build/" + "-".join(key)
            log = log_path(name)
            command = [ROOT / "scripts" / "build", "--preset", preset]
            for target in targets:
                command += ["--target", target]
            code, seconds = execute(command, log)
            self.builds[key] = code == 0
            self.report.add(name, "ok" if code == 0 else "FAIL", seconds, log=read_log(log), count=False)
        return self.builds[key]

    def check(self, name, command, note=""):
        """Runs a test that is one command. It passes if the command exits 0."""
        log = log_path(name)
        code, seconds = execute(command, log)
        self.report.add(name, "ok" if code == 0 else "FAIL", seconds, note, read_log(log))

    # lint ------------------------------------------------------------------------------------------------------------

    def lint_names(self):
        names = ["lint/format", "lint/circles", "lint/layers"]
        return names + ["lint/headers", "lint/clang", "lint/tidy"] if self.level == "long" else names

    def lint(self):
        wanted = [name for name in self.lint_names() if self.wants(name)]
        if "lint/format" in wanted:
            self.check("lint/format", ["clang-format", "--dry-run", "-Werror", *sources("*.cc", "*.h")])
        if "lint/circles" in wanted:
            self.includes("lint/circles", layering.circles)
        if "lint/layers" in wanted:
            self.includes("lint/layers", layering.upward)
        if "lint/headers" in wanted:
            command = [ROOT / "scripts" / "build", "--preset", "debug", "--target", "check_headers"]
            self.check("lint/headers", command)
        if "lint/clang" in wanted:
            self.check("lint/clang", [ROOT / "scripts" / "build", "--preset", "clang"])
        if "lint/tidy" in wanted:
            self.tidy()

    def includes(self, name, find):
        """What tests/layering.py complains about."""
        start = time.monotonic()
        complaints = find(layering.read_includes(ROOT))
        self.report.add(name, "FAIL" if complaints else "ok", time.monotonic() - start, log="\n".join(complaints))

    def tidy(self):
        """Runs clang-tidy on each source, as many at a time as there are processors."""
        if not self.build("clang"):
            return self.report.add("lint/tidy", "FAIL", 0, "the clang build failed")
        start = time.monotonic()
        command = ["clang-tidy", "--quiet", "-p", BUILD / "clang"]
        files = [path for path in sources("*.cc") if path.relative_to(ROOT).parts[0] != "tests"]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = list(pool.map(lambda path: subprocess.run([*command, path], capture_output=True, text=True), files))
        found = "".join(run.stdout + (run.stderr if not run.stdout else "") for run in runs if run.returncode)
        log_path("lint/tidy").write_text(found)
        self.report.add("lint/tidy", "FAIL" if found else "ok", time.monotonic() - start, log=found)

    # unit tests ------------------------------------------------------------------------------------------------------

    def unit(self, preset, prefix):
        """Runs the gtest executables of one preset. Prints a line for each case, and counts them."""
        executables = {layer: f"{prefix}/{layer}." for layer in LAYERS if list((ROOT / "tests" / layer).rglob("*_test.cc"))}
        executables = {layer: name for layer, name in executables.items() if any(map(self.wants, cases(layer, name)))}
        if not executables:
            return
        if not self.build(preset):
            return self.report.add(prefix, "FAIL", 0, f"the {preset} build failed")
        for layer, name in executables.items():
            self.unit_executable(BUILD / preset / f"tests_{layer}", name)

    def unit_executable(self, executable, prefix):
        command = [executable]
        if self.pattern:
            wanted = [case for case in gtest_list(executable) if self.wants(prefix + case)]
            if not wanted:
                return
            command.append("--gtest_filter=" + ":".join(wanted))
        env = dict(os.environ, **SANITIZERS)
        log = log_path(prefix.rstrip("."))
        with leftovers.scratch_folder(self.scratch, prefix.rstrip("./")) as (folder, complaints):
            env["CKPTFS_TMP"] = str(folder)
            code, seconds = execute(command, log, UNIT_TIMEOUT, env)
        output = read_log(log)
        failed, unfinished = self.unit_cases(prefix, output)
        name = prefix.rstrip(".")
        if code is None or unfinished or (code != 0 and not failed):
            end = f"still running after {UNIT_TIMEOUT} s" if code is None else f"ended with {describe(code)}"
            if unfinished:
                name, end = prefix + unfinished, end + "; the cases after it did not run"
            self.report.add(name, "FAIL", seconds, end, output)
        elif code == 0 and complaints:
            self.report.add(name, "FAIL", seconds, "left behind: " + ", ".join(complaints), output)

    def unit_cases(self, prefix, output):
        """Prints a line for each case that ended. Returns how many failed, and the case that did not end, if any."""
        failed, running, text = 0, "", []
        for line in output.splitlines():
            match = re.match(r"\[\s+(RUN|OK|FAILED|SKIPPED)\s+\] (\S+?)(?:,.*?)?(?: \((\d+) ms\))?$", line)
            if not match:
                text.append(line)
            elif match[1] == "RUN":
                running, text = match[2], []
            elif match[3] is not None:
                outcome = {"OK": "ok", "FAILED": "FAIL", "SKIPPED": "skip"}[match[1]]
                reason = next((said for said in reversed(text) if said.strip()), "") if outcome == "skip" else ""
                self.report.add(prefix + match[2], outcome, int(match[3]) / 1000, reason, "\n".join(text))
                failed += outcome == "FAIL"
                running = ""
        return failed, running

    # script tests ----------------------------------------------------------------------------------------------------

    def wanted_scripts(self, group):
        """Returns (name, path) of the tests of a group that this run will run."""
        found = [(f"{group}/{path.name}", path) for path in script_tests(group)
                 if self.level in script_field(path, "levels", "normal long").split()]
        return [(name, path) for name, path in found if self.wants(name)]

    def prepare(self):
        for group, preparation in PREPARATIONS.items():
            if self.wanted_scripts(group):
                self.preparations[group] = Preparation(*preparation)

    def scripts(self):
        for group in SCRIPT_GROUPS:
            if group in self.preparations:
                self.preparations[group].finish(self.report)
            for name, path in self.wanted_scripts(group):
                self.script(name, path)

    def script(self, name, path):
        if not os.access(path, os.X_OK):
            return self.report.add(name, "FAIL", 0, "not executable (chmod +x)")
        if not self.build("release") or not self.build("asan"):
            return self.report.add(name, "FAIL", 0, "the build failed")
        timeout = int(script_field(path, "timeout", str(DEFAULT_TIMEOUT)))
        log = log_path(name)
        env = dict(os.environ, CKPTFS=str(BUILD / "ckptfs"), CKPTFS_DEBUG=str(BUILD / "asan" / "ckptfs"),
                   CKPTFS_BUILD=str(BUILD), CKPTFS_TEST_LEVEL=self.level, PYTHONUNBUFFERED="1",
                   PYTHONDONTWRITEBYTECODE="1")
        with leftovers.scratch_folder(self.scratch, name) as (folder, complaints):
            env["CKPTFS_TMP"] = str(folder)
            code, seconds = execute([path], log, timeout, env)
        output = read_log(log)
        if code == 0 and complaints:
            self.report.add(name, "FAIL", seconds, "left behind: " + ", ".join(complaints), output)
        elif code == 0:
            self.report.add(name, "ok", seconds)
        elif code == SKIPPED:
            lines = output.strip().splitlines()
            self.report.add(name, "skip", seconds, lines[-1] if lines else "no reason given")
        elif code is None:
            self.report.add(name, "FAIL", seconds, f"still running after {timeout} s", output)
        else:
            self.report.add(name, "FAIL", seconds, f"ended with {describe(code)}", output)

    def names(self):
        """Returns the names of all tests of this level, as far as the sources tell."""
        found = self.lint_names()
        for prefix in ("unit", "tsan") if self.level == "long" else ("unit",):
            for layer in LAYERS:
                found += cases(layer, f"{prefix}/{layer}.")
        found = [name for name in found if self.wants(name)]
        return found + [name for group in SCRIPT_GROUPS for name, path in self.wanted_scripts(group)]

    def run(self):
        self.prepare()
        try:
            self.lint()
            if self.pattern is None:
                self.build("release")
            with leftovers.reachable(SCRATCH) as self.scratch:
                self.unit("asan", "unit")
                if self.level == "long":
                    self.unit("tsan", "tsan")
                self.scripts()
        finally:
            for preparation in self.preparations.values():
                preparation.stop()


SANITIZERS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": f"second_deadlock_stack=1:suppressions={ROOT / 'tests' / 'tsan_suppressions'}",
}


def sources(*globs):
    """Returns our C++ files, sorted."""
    return sorted(path for folder in (*LAYERS, "tests") for glob in globs for path in (ROOT / folder).rglob(glob))


def cases(layer, prefix):
    """Returns the names of a layer's gtest cases from its sources (without parameters)."""
    pattern = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
    files = sorted((ROOT / "tests" / layer).rglob("*_test.cc"))
    return [f"{prefix}{suite}.{case}" for path in files for suite, case in pattern.findall(path.read_text())]


def gtest_list(executable):
    """Returns the names of all cases of a gtest executable."""
    output = subprocess.run([executable, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    names, suite = [], ""
    for line in output.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            names.append(suite + word)
        elif word.endswith("."):
            suite = word
    return names


def script_tests(group):
    """Returns the files test_* of a group."""
    return sorted(path for path in (ROOT / "tests" / group).glob("test_*") if path.is_file())


def script_field(path, field, default):
    """Returns the value of a line '# FIELD: VALUE' near the head of a script test."""
    for line in path.read_text().splitlines()[:30]:
        match = re.match(rf"#\s*{field}:\s*(.+)", line)
        if match:
            return match[1].strip()
    return default


def describe(code):
    return f"signal {-code}" if code < 0 else f"exit {code}"


def parse_arguments():
    parser = argparse.ArgumentParser(prog="scripts/test", epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     description="Builds ckptfs and runs its tests; a line for each, then the counts.")
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--quick", dest="level", action="store_const", const="quick", help="only what takes seconds")
    level.add_argument("--long", dest="level", action="store_const", const="long", help="everything, hours if need be")
    parser.add_argument("--strict", action="store_true", help="a skip fails, unless tests/optional excuses it")
    parser.add_argument("-k", metavar="PATTERN", help="only tests whose name matches this regular expression")
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


def main():
    arguments = parse_arguments()
    runner = Runner(arguments.level, arguments.k, Report(arguments.strict))
    names = runner.names()
    if not names and arguments.k is None:
        sys.exit("test: there are no tests")
    if not names:
        sys.exit(f"test: no test of this level has a name that matches {arguments.k!r} (--list shows them)")
    if arguments.list:
        print("\n".join(names))
        return 0
    claim = claim_build()
    shutil.rmtree(LOGS, ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a stopped run cleans up, too
    with claim:
        try:
            runner.run()
        except KeyboardInterrupt:
            runner.report.close()
            return 130
        return runner.report.close()


if __name__ == "__main__":
    sys.exit(main())
