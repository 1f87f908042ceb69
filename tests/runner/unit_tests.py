"""Runs the gtest executables, one for each layer, and reports a line for each case.

ctest with gtest_discover_tests would start a process of a sanitizer build for each of some 600 cases, and the build would
run each executable to list its cases. One process for each executable reports the same cases.
"""

import os
import re
import subprocess

import leftovers
from commands import execute
from layering import LAYERS
from outcomes import BUILD, ROOT, log_path, read_log

TIMEOUT = 900  # seconds, of one executable
PRESETS = {"unit": "asan", "tsan": "tsan"}  # build -> its folder
SANITIZERS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": f"second_deadlock_stack=1:suppressions={ROOT / 'tests' / 'runner' / 'tsan_suppressions'}",
}
# The mounts of a unit test must not be seen by a script test: it would take a copy of them into the mount namespace that
# it makes for itself, and so keep their loop devices.
OWN_MOUNTS = ["unshare", "--mount", "--propagation", "private"]
OUTCOMES = {"OK": "ok", "FAILED": "FAIL", "SKIPPED": "skip"}


def builds(level):
    return ("unit", "tsan") if level == "long" else ("unit",)


def names(level):
    """Returns the names of all cases, as far as the sources tell (without parameters)."""
    pattern = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
    return [f"{build}/{layer}.{suite}.{case}" for build in builds(level) for layer in LAYERS
            for path in sorted((ROOT / "tests" / layer).rglob("*_test.cc"))
            for suite, case in pattern.findall(path.read_text())]


def gtest_list(executable):
    """Returns the names of all cases of a gtest executable."""
    output = subprocess.run([executable, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    found, suite = [], ""
    for line in output.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  "):
            found.append(suite + word)
        elif word.endswith("."):
            suite = word
    return found


class UnitTests:
    """The wanted unit tests of a run."""

    def __init__(self, report, built, wanted, pattern, scratch):
        self.report, self.built, self.pattern, self.scratch = report, built, pattern, scratch
        self.executables = list(dict.fromkeys(name.split(".")[0] for name in wanted))  # unit/io, unit/meta, ...

    def run(self):
        for name in self.executables:
            build, layer = name.split("/")
            if not self.built.wait(build):
                self.report.add(name, "FAIL", 0, f"the {build} build failed")
                continue
            self.executable(BUILD / PRESETS[build] / f"tests_{layer}", name)

    def executable(self, executable, name):
        command = [*(OWN_MOUNTS if os.geteuid() == 0 else []), executable]
        if self.pattern.pattern:
            wanted = [case for case in gtest_list(executable) if self.pattern.search(f"{name}.{case}")]
            command.append("--gtest_filter=" + ":".join(wanted))
        log = log_path(name)
        with leftovers.scratch_folder(self.scratch, name) as (folder, complaints):
            env = dict(os.environ, **SANITIZERS, CKPTFS_TMP=str(folder))
            code, seconds = execute(command, log, TIMEOUT, env)
        output = read_log(log)
        failed, unfinished = self.cases(name, output)
        if code is None or unfinished or (code != 0 and not failed):
            end = f"still running after {TIMEOUT} s" if code is None else f"ended with {describe(code)}"
            if unfinished:
                name, end = f"{name}.{unfinished}", end + "; the cases after it did not run"
            self.report.add(name, "FAIL", seconds, end, output)
        elif code == 0 and complaints:
            self.report.add(name, "FAIL", seconds, "left behind: " + ", ".join(complaints), output)

    def cases(self, name, output):
        """Prints a line for each case that ended. Returns how many failed, and the case that did not end, if any."""
        failed, running, text = 0, "", []
        for line in output.splitlines():
            match = re.match(r"\[\s+(RUN|OK|FAILED|SKIPPED)\s+\] (\S+?)(?:,.*?)?(?: \((\d+) ms\))?$", line)
            if not match:
                text.append(line)
            elif match[1] == "RUN":
                running, text = match[2], []
            elif match[3] is not None:
                outcome = OUTCOMES[match[1]]
                reason = next((said for said in reversed(text) if said.strip()), "") if outcome == "skip" else ""
                self.report.add(f"{name}.{match[2]}", outcome, int(match[3]) / 1000, reason, "\n".join(text))
                failed += outcome == "FAIL"
                running = ""
        return failed, running


def describe(code):
    return f"signal {-code}" if code < 0 else f"exit {code}"
