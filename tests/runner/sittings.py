"""A long run in several sittings: what has ended so far, the shares, and the record in docs/developing.md.

build/long-run.json has the outcome of each test that has ended, whichever share it is in. docs/developing.md has the
last whole run of each group, so that a checkout that is new goes on with the next group. Its table tells how long the
next run will take.
"""

import collections
import datetime
import json
import os
import re
import subprocess

from outcomes import BUILD, ROOT
from unit_tests import name_in_source

STATE = BUILD / "long-run.json"
PAGE = ROOT / "docs" / "developing.md"
BEGIN, END = "<!-- the last long run: scripts/test --long --record writes it -->", "<!-- its end -->"
ROW = re.compile(r"^\| `([\w/]+)` \| ([\d,]+) \| ([\d.]+) \|.*$", re.MULTILINE)
MINUTES_UNKNOWN = 0.1  # of a test in a group that no long run has met


def group_of(name):
    """`posix` of posix/test_seal.py::test_x, `unit/meta` of unit/meta.Suite.Case, lints by their name."""
    return name.split(".")[0] if name.startswith(("unit/", "tsan/", "lint/")) else name.split("/")[0]


def piece_of(name):
    """What is not divided between shares: a file of script tests, an executable of unit tests, a lint."""
    return name.split("::")[0] if "::" in name else group_of(name)


class Sittings:
    """What of a long run has ended. One thread at a time calls it. `names`: all tests that there are; what ended under
    another name, of an older tree, is forgotten."""

    def __init__(self, names):
        self.names = list(names)
        there = set(names)
        ended = json.loads(STATE.read_text()) if STATE.exists() else {}
        no_test = {name for name in ended if "." not in name}  # a build or an executable that failed
        self.ended = {name: one for name, one in ended.items() if name_in_source(name) in there or name in no_test}
        self.commit = git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")

    def forget(self, names):
        gone = set(names)
        for name in [name for name in self.ended if name_in_source(name) in gone]:
            del self.ended[name]

    def note(self, name, outcome, seconds):
        self.ended[name] = {"outcome": outcome, "seconds": round(seconds, 2), "commit": self.commit}
        self._write()

    def note_no_test(self, name, failed, seconds):
        """A build or an executable counts only as long as it fails."""
        if failed:
            self.note(name, "FAIL", seconds)
        elif self.ended.pop(name, None):
            self._write()

    def _write(self):
        part = STATE.with_suffix(".part")
        part.write_text(json.dumps(self.ended, indent=0))
        part.rename(STATE)

    def passed(self):
        """Returns the names of the tests that have passed, or were skipped, with all their parameters."""
        ended = {name_in_source(name) for name in self.ended}
        return ended - {name_in_source(name) for name, one in self.ended.items() if one["outcome"] == "FAIL"}

    def missing(self):
        """Returns the names of the tests that have not ended."""
        ended = {name_in_source(name) for name in self.ended}
        return [name for name in self.names if name not in ended]

    def count(self):
        """Counts of all sittings, in words."""
        outcomes = collections.Counter(one["outcome"] for one in self.ended.values())
        return (f"{outcomes['ok']:,} passed, {outcomes['FAIL']} failed, {outcomes['skip']} skipped, "
                f"{len(self.missing()):,} not run")


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


# --- how long it takes


def known_minutes():
    """Returns group -> minutes of one of its tests, by the last long run."""
    block = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return {group: float(minutes) / max(1, int(tests.replace(",", ""))) for group, tests, minutes in ROW.findall(block)}


def estimate(names, jobs):
    """Returns the minutes that these tests will take, without the builds, and what that is known from."""
    known = known_minutes()
    minutes = sum(known.get(group_of(name), MINUTES_UNKNOWN) for name in names) / jobs
    return minutes, "by the last long run in docs/developing.md" if known else "a guess, no long run is recorded yet"


def share(names, index, count):
    """Returns the names of share `index` of `count`, from 1. All shares take about as long."""
    known, weights = known_minutes(), collections.Counter()
    for name in names:
        weights[piece_of(name)] += known.get(group_of(name), MINUTES_UNKNOWN)
    shares = [set() for _ in range(count)]
    loads = [0.0] * count
    for piece, weight in sorted(weights.items(), key=lambda one: (-one[1], one[0])):
        lightest = loads.index(min(loads))
        shares[lightest].add(piece)
        loads[lightest] += weight
    return [name for name in names if piece_of(name) in shares[index - 1]]


# --- the record


def record(sittings):
    """Writes the groups of which all tests have ended into docs/developing.md; the rows of the others stay. Returns why
    not, in words, or nothing."""
    unfinished = {group_of(name): name for name in reversed(sittings.missing())}
    groups = sorted({group_of(name) for name in sittings.names})
    rows = {group: row_of(group, sittings) for group in groups if group not in unfinished}
    if not rows:
        return (f"no group has run whole; of {groups[0]} the first that lacks is {unfinished[groups[0]]}: go on with "
                "scripts/test --long --resume")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    block, _, after = rest.partition(END)
    rows = {found[1]: found[0] for found in ROW.finditer(block) if found[1] in groups} | rows
    told = f"{len(rows)} of the {len(groups)} groups have run whole, on {os.cpu_count()} processors:"
    lines = [BEGIN, told, "", "| group | tests | minutes, one at a time | skipped | ended | at commit | failed |",
             "|---|---:|---:|---:|---|---|---|", *(rows[group] for group in sorted(rows)), END]
    PAGE.write_text(before + "\n".join(lines) + after)
    return ""


def row_of(group, sittings):
    tests = {name for name in sittings.names if group_of(name) == group}
    ended = {name: one for name, one in sittings.ended.items() if name_in_source(name) in tests}
    seconds = sum(one["seconds"] for one in ended.values())
    skipped = sum(one["outcome"] == "skip" for one in ended.values())
    failed = ", ".join(f"`{name}`" for name, one in sorted(ended.items()) if one["outcome"] == "FAIL")
    commits = " and ".join(sorted({one["commit"] for one in ended.values()}))
    return (f"| `{group}` | {len(ended):,} | {seconds / 60:.1f} | {skipped} | {datetime.date.today()} | {commits} | "
            f"{failed or '-'} |")
