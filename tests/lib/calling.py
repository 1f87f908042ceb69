"""Calls the command ckptfs, checks how it ended, and finds what it left."""

import json
import pathlib

from checking import true
from mounting import CKPTFS, run


def ckptfs(*words, **options):
    return run(CKPTFS, *words, check=False, **options)


def status_is(done, status, *said, what=""):
    """Checks the exit status, and that stderr has these words."""
    if done.returncode != status:
        raise AssertionError(f"{what or done.args}: status {done.returncode}, wanted {status}: {done.stdout}{done.stderr}")
    for words in said:
        true(words in done.stderr, f"{done.args}: stderr lacks {words!r}: {done.stderr}")
    if status != 0:
        true(done.stderr.startswith("ckptfs: ") or "\nckptfs: " in done.stderr, f"{done.args}: whose error? {done.stderr}")
    return done


def mount_types_at(point):
    """Returns the types of the mounts at the path, the topmost last."""
    types = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        words = line.split(" ")
        if words[4].encode().decode("unicode_escape") == str(point):
            types.append(words[words.index("-") + 1])
    return types


def daemon_of(point):
    return json.loads(run(CKPTFS, "status", "--json", point).stdout)["pid"]


def state_of(pid):
    """Returns the letter of the process's state, or X if there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def ended(pid):
    return state_of(pid) in "ZX"
