"""What tests of a remote's rules share. In a folder a day passes when every file there becomes a day older: the store's
clock is that of its file system."""

import os
import subprocess

from mounting import BUILD
from seaweed import environment

OBJECTS = BUILD / "helpers" / "objects"
DAY = 86_400
ID = "[0-9a-f]" * 16  # of a push
ORDER = "[0-9a-f]" * 24  # of a save; a later one has the lower text


def pass_days(folder, days):
    """All that is there becomes older."""
    for path in [folder, *folder.rglob("*")]:
        stat = path.lstat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - int(days * DAY * 10**9)))


def names(listed):
    return [one["step"] for one in listed["steps"]]


def push_folders(folder, tag):
    """What the pushes of a step have there, one folder each."""
    return sorted(folder.glob(f"{tag}.{ID}"))


def files_of(folder, tag, slot=None):
    """Of all pushes of a step; of one slot's, in a remote of several."""
    within = "**/*" if slot is None else f"slot-{slot}/**/*"
    return sorted(path for push in push_folders(folder, tag) for path in push.glob(within) if path.is_file())


def decisions(folder, tag, kind="steps"):
    """The objects that say what was decided about a step, the oldest save first; or its tombstones (KIND: "gone")."""
    return sorted((folder / ".ckptfs" / kind).glob(f"{ORDER}.{tag}.{ID}"), reverse=True)


def objects_of(url, options, prefix):
    words = [str(word) for word in (OBJECTS, url, *options, "list", prefix)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=600, check=True)
    return [line.split("\t")[0] for line in done.stdout.splitlines()]
