"""Runs the gtest executables, one for each layer, and reports a line for each case.

ctest with gtest_discover_tests would start a process for each of some 900 cases, and the build would run each executable
to list its cases. One process for each executable reports the same cases, by the XML that gtest writes.
"""

import os
import re
import subprocess
from xml.etree import ElementTree

import leftovers
from commands import execute
from layering import LAYERS
from outcomes import BUILD, ROOT, log_path, read_log

TIMEOUT = 900  # seconds, of one executable
SANITIZERS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": f"second_deadlock_stack=1:suppressions={ROOT / 'tests' / 'runner' / 'tsan_suppressions'}",
}
# The mounts of a unit test must not be seen by a script test: it would take a copy of them into the mount namespace that
# it makes for itself, and so keep their loop devices.
OWN_MOUNTS = ["unshare", "--mount", "--propagation", "private"]


def builds(level):
    return ("unit", "tsan") if level == "long" else ("unit",)


def names(level):
    """Returns the names of all cases, as far as the sources tell (without parameters)."""
    pattern = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
    return [f"{build}/{layer}.{suite}.{case}" for build in builds(level) for layer in LAYERS
            for path in sorted((ROOT / "tests" / layer).rglob("*_test.cc"))
            for suite, case in pattern.findall(path.read_text())]


def name_in_source(name):
    """Returns unit/meta.Suite.Case of unit/meta.Prefix/Suite.Case/0 and of unit/meta.Suite/0.Case; other names as they
    are."""
    if not name.startswith(("unit/", "tsan/")):
        return name
    executable, _, case = name.partition(".")
    suite, _, test = case.partition(".")
    parts = [part for part in suite.split("/") if not part.isdigit()]
    return f"{executable}.{parts[-1]}.{test.split('/')[0]}"


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
    """The unit tests of a run. `executables`: unit/io, unit/meta, ...; `wants` tells of a case's name if it shall run."""

    def __init__(self, report, built, executables, wants, scratch):
        self.report, self.built, self.executables, self.wants, self.scratch = report, built, executables, wants, scratch

    def run(self):
        for name in self.executables:
            build, layer = name.split("/")
            if not self.built.wait(build):
                self.report.add(name, "FAIL", 0, f"the {build} build failed")
                continue
            self.executable(BUILD / self.built.presets[build][0] / f"tests_{layer}", name)

    def executable(self, executable, name):
        every = gtest_list(executable)
        wanted = [case for case in every if self.wants(f"{name}.{case}")]
        if not wanted:
            return
        log, results = log_path(name), log_path(name).with_suffix(".xml")
        command = [*(OWN_MOUNTS if os.geteuid() == 0 else []), executable, f"--gtest_output=xml:{results}"]
        if wanted != every:
            command.append("--gtest_filter=" + ":".join(wanted))
        results.unlink(missing_ok=True)
        with leftovers.scratch_folder(self.scratch, name) as (folder, complaints):
            env = dict(os.environ, **SANITIZERS, CKPTFS_TMP=str(folder))
            ended = execute(command, log, TIMEOUT, env)
        failed = self.report_cases(name, results, read_log(log)) if results.exists() else 0
        wrong = []
        if ended.code is None:
            wrong.append(f"still running after {TIMEOUT} s")
        elif not results.exists() or (ended.code != 0 and not failed):
            wrong.append(f"ended with {describe(ended.code)}; its last case is at the end of the log")
        elif complaints:
            wrong.append("left behind: " + ", ".join(complaints))
        self.report.add(name, "FAIL" if wrong else "ok", ended.seconds, "; ".join(wrong), read_log(log), count=False,
                        processor=ended.processor)

    def report_cases(self, name, results, output):
        """Prints a line for each case. Returns how many failed."""
        failed = 0
        for case in ElementTree.parse(results).iter("testcase"):
            full = f"{case.get('classname')}.{case.get('name')}"
            failure, skipped = case.find("failure"), case.find("skipped")
            outcome = "FAIL" if failure is not None else "skip" if skipped is not None else "ok"
            reason = (skipped.get("message") or "").strip().rpartition("\n")[2] if skipped is not None else ""
            self.report.add(f"{name}.{full}", outcome, float(case.get("time")), reason, printed_by(full, output))
            failed += outcome == "FAIL"
        return failed


def printed_by(case, output):
    """Returns what a case printed, of all that its executable printed."""
    return output.partition(f"[ RUN      ] {case}\n")[2].partition(f" {case}")[0]


def describe(code):
    return f"signal {-code}" if code < 0 else f"exit {code}"
