"""Prints and counts the outcomes of tests, and keeps their logs."""

import os
import pathlib
import re
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LOGS = BUILD / "test-logs"
TAIL_LINES = 40
MARKS = {"ok": "32", "FAIL": "31", "skip": "33"}  # colours


class Report:
    """Prints a line for each test. Knows which skips are excused. Any thread may use it.

    `sittings` is told of each test that ends, if there is one.
    """

    def __init__(self, strict, sittings=None):
        self.strict, self.sittings = strict, sittings
        self.optional = read_optional()
        self.counts = {"ok": 0, "FAIL": 0, "skip": 0}
        self.failures = []
        self.costs = Costs()
        self.color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.out = os.fdopen(os.dup(1), "w")  # pytest redirects sys.stdout
        self.lock = threading.Lock()

    def say(self, text):
        with self.lock:
            print(text, file=self.out, flush=True)

    def add(self, name, outcome, seconds, note="", log="", count=True, processor=None):
        """Prints one line; for a failure also the end of its log. With --strict, a skip without an excuse is a
        failure. What is no test (count=False) is not counted, unless it fails. `processor`: seconds, if they are
        known."""
        if outcome == "skip" and self.strict and not self.excused(name, note):
            outcome, note = "FAIL", f"skipped, and --strict: {note}"
        mark = f"\033[{MARKS[outcome]}m{outcome:<4}\033[0m" if self.color else f"{outcome:<4}"
        lines = [f"{mark} {seconds:7.1f} s  {name}" + (f"  {note}" if note else "")]
        if outcome == "FAIL":
            lines += [f"      | {line}" for line in log.rstrip().splitlines()[-TAIL_LINES:]]
        with self.lock:
            print("\n".join(lines), file=self.out, flush=True)
            self.failures += [name, *why(log)] if outcome == "FAIL" else []
            self.counts[outcome] += count or outcome == "FAIL"
            self.costs.add(name, seconds, processor)
            if self.sittings and count:
                self.sittings.note(name, outcome, seconds)
            elif self.sittings:
                self.sittings.note_no_test(name, outcome == "FAIL", seconds)

    def excused(self, name, reason):
        need = reason.split(":")[0].strip() if ":" in reason else ""
        return bool({name, name.split("::")[0], need} & self.optional)

    def close(self):
        """Prints the summary. Returns the exit status."""
        counts = self.counts
        if self.failures:
            print("\nfailed: " + "\n        ".join(self.failures), file=self.out)
            print(f"logs:   {LOGS}", file=self.out)
        print(f"\n{self.costs}", file=self.out)
        print(f"\n{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped", file=self.out, flush=True)
        return 1 if self.failures or not counts["ok"] else 0


class Costs:
    """What a run costs: minutes of the clock and of processors, and the longest tests. Machines differ, so the processor
    time is what to compare with an earlier run."""

    LONGEST = 10

    def __init__(self):
        self.start, self.busy = time.monotonic(), processor_seconds()
        self.parts = {}  # part -> seconds of processor time; builds, lints and unit tests
        self.tests = []  # (seconds, name)

    def add(self, name, seconds, processor):
        if processor is not None:
            part = name if name.startswith("build/") else name.split("/")[0]
            self.parts[part] = self.parts.get(part, 0) + processor
        elif "::" in name:
            self.tests.append((seconds, name))

    def __str__(self):
        clock, busy = time.monotonic() - self.start, processor_seconds() - self.busy
        parts = self.parts | ({"script tests": busy - sum(self.parts.values())} if self.tests else {})
        longest = sorted(self.tests, reverse=True)[: self.LONGEST]
        lines = [f"{minutes(clock)} on the clock; all {os.cpu_count()} processors of the machine worked {minutes(busy)}:",
                 "  " + ", ".join(f"{name} {minutes(seconds)}" for name, seconds in parts.items())]
        if longest:
            lines += ["the longest tests:", *(f"  {seconds:7.1f} s  {name}" for seconds, name in longest)]
        return "\n".join(lines)


def minutes(seconds):
    return f"{seconds / 60:.1f} min"


def processor_seconds():
    """Returns the seconds that this machine's processors have worked since it was started."""
    with open("/proc/stat", encoding="ascii") as lines:
        user, nice, system, _, _, irq, softirq, *_ = map(int, next(lines).split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def why(log):
    """The few lines of a failure's log that tell most, for the summary: those of pytest's error, or else the last."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E  ")]
    return [f"    {line[:400]}" for line in (errors[:3] or lines[-1:])]


def read_optional():
    lines = (ROOT / "tests" / "optional").read_text().splitlines()
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


def log_path(name):
    path = LOGS / (re.sub(r"[^\w.-]+", "_", name) + ".log")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def read_log(log):
    return log.read_text(errors="replace")
