"""Half a million files in a thousand steps: what looking at them makes the daemon read and hold."""

import json
import os
import pathlib

import pytest

from checking import equal, true
from mounting import CKPTFS, GIB, KIB, MIB, Store, mounted, run, xfs
from training import write_state

pytestmark = [pytest.mark.disk(8), pytest.mark.timeout(900), pytest.mark.long, pytest.mark.alone]

STEPS, GROUPS = 1000, 84  # a group is three swap files, and a rank has one of its parameters
FILES = 2 * (3 * GROUPS + 1)


def read_bytes(pid):
    """What the process has asked of read(2) and its like, from wherever it came."""
    for line in pathlib.Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("no rchar")


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("no VmRSS")


@pytest.fixture
def mount(work):
    with xfs(work, size=8 * GIB) as disk:
        with mounted(Store(disk / "store"), work / "mnt", mode="direct", options=("scrub=0",)) as made:
            yield made


def test_many_steps(mount):
    write_state(mount.path, groups=[f"{3 * n}_{3 * n + 2}" for n in range(GROUPS)], size=4 * KIB)
    for number in range(STEPS):
        mount.save(f"global_step{number}")
    # A table's filter as one block was larger than the cache took: each look-up read all of it, 600 KiB.
    before = read_bytes(mount.pid)
    for file in (mount.path / f"steps/global_step{STEPS // 2}").rglob("*"):
        file.stat()
    per_file = (read_bytes(mount.pid) - before) / FILES
    true(per_file < 8 * KIB, f"looking at one step read {per_file:.0f} bytes a file")
    before = read_bytes(mount.pid)
    rows = json.loads(run(CKPTFS, "ls", "--json", mount.path, timeout=300).stdout)["steps"]
    equal((len(rows), {row["files"] for row in rows}), (STEPS, {FILES}), "steps, and their files")
    per_file = (read_bytes(mount.pid) - before) / (STEPS * FILES)
    true(per_file < 2 * KIB, f"ckptfs ls read {per_file:.0f} bytes a file")
    before = read_bytes(mount.pid)
    count = sum(len(files) for _, _, files in os.walk(mount.path / "steps"))
    run("ls", "-lR", mount.path / "steps", timeout=300)
    equal(count, STEPS * FILES, "files that are walked")
    per_file = (read_bytes(mount.pid) - before) / (STEPS * FILES)
    true(per_file < 2 * KIB, f"ls -lR made the daemon read {per_file:.0f} bytes a file")
    allowed = 256 * MIB + KIB * mount.status()["remembered_inodes"]
    true(resident(mount.pid) < allowed, f"the daemon holds {resident(mount.pid) / MIB:.0f} MiB of {allowed / MIB:.0f}")
    run(CKPTFS, "rm", *[mount.path / f"steps/global_step{number}" for number in range(0, STEPS, 100)])
    equal(len(os.listdir(mount.path / "steps")), STEPS - 10, "steps that are left")
