"""A long run in several sittings: what has ended so far, the shares, and the record in docs/developing.md.

build/long-run.json has the outcome of each test that has ended, whichever share it is in. docs/developing.md has the
last long run that ended whole: its table tells how long the next one will take.
"""

import collections
import datetime
import json
import os
import re
import subprocess

from outcomes import BUILD, ROOT

STATE = BUILD / "long-run.json"
PAGE = ROOT / "docs" / "developing.md"
BEGIN, END = "<!-- the last long run: scripts/test --long --record writes it -->", "<!-- its end -->"
ROW = re.compile(r"^\| `([\w/]+)` \| ([\d,]+) \| ([\d.]+) \|$", re.MULTILINE)
MINUTES_UNKNOWN = 0.1  # of a test in a group that no long run has met


def group_of(name):
    """`posix` of posix/test_seal.py::test_x, `unit/meta` of unit/meta.Suite.Case, lints by their name."""
    return name.split(".")[0] if name.startswith(("unit/", "tsan/", "lint/")) else name.split("/")[0]


def piece_of(name):
    """What is not divided between shares: a file of script tests, an executable of unit tests, a lint."""
    return name.split("::")[0] if "::" in name else group_of(name)


class Sittings:
    """What of a long run has ended. One thread at a time calls it."""

    def __init__(self):
        self.ended = json.loads(STATE.read_text()) if STATE.exists() else {}
        self.commit = git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")

    def forget(self, names):
        for name in names:
            self.ended.pop(name, None)

    def note(self, name, outcome, seconds):
        self.ended[name] = {"outcome": outcome, "seconds": round(seconds, 2), "commit": self.commit}
        part = STATE.with_suffix(".part")
        part.write_text(json.dumps(self.ended, indent=0))
        part.rename(STATE)

    def has_passed(self, name):
        return name in self.ended and self.ended[name]["outcome"] != "FAIL"

    def count(self):
        """Counts of all sittings, in words."""
        outcomes = collections.Counter(one["outcome"] for one in self.ended.values())
        return f"{outcomes['ok']:,} passed, {outcomes['FAIL']} failed, {outcomes['skip']} skipped"


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


# --- how long it takes


def known_minutes():
    """Returns group -> minutes of one of its tests, by the last long run."""
    block = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    return {group: float(minutes) / max(1, int(tests.replace(",", ""))) for group, tests, minutes in ROW.findall(block)}


def estimate(names, jobs):
    """Returns the minutes that these tests will take, without the builds."""
    known = known_minutes()
    return sum(known.get(group_of(name), MINUTES_UNKNOWN) for name in names) / jobs


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


def record(names, sittings):
    """Writes the long run into docs/developing.md. Returns what is missing, in words, or nothing."""
    known = {piece_of(name) for name in sittings.ended}
    missing = sorted({piece_of(name) for name in names} - known)
    if missing:
        return f"{len(missing)} have not run, the first is {missing[0]}: go on with --resume"
    seconds, tests = collections.Counter(), collections.Counter()
    for name, one in sittings.ended.items():
        seconds[group_of(name)] += one["seconds"]
        tests[group_of(name)] += 1
    commits = sorted({one["commit"] for one in sittings.ended.values()})
    failed = sorted(name for name, one in sittings.ended.items() if one["outcome"] == "FAIL")
    rows = [f"| `{group}` | {tests[group]:,} | {seconds[group] / 60:.1f} |" for group in sorted(tests)]
    lines = [BEGIN, f"The last one ended on {datetime.date.today()}, at commit {' and '.join(commits)}, on {os.cpu_count()} processors: "
             f"{sittings.count()}." + (f" Failed: {', '.join(failed)}." if failed else ""), "",
             "| group | tests | minutes, one at a time |", "|---|---:|---:|", *rows, END]
    page = PAGE.read_text()
    before, rest = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(before + "\n".join(lines) + rest)
    return ""
