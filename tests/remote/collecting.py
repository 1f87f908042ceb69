"""What tests of a remote's rules share. In a folder a day passes when every file there becomes a day older: the store's
clock is that of its file system."""

import os
import subprocess

from mounting import BUILD
from seaweed import environment

OBJECTS = BUILD / "helpers" / "objects"
DAY = 86_400


def pass_days(folder, days):
    """All that is there becomes older."""
    for path in [folder, *folder.rglob("*")]:
        stat = path.lstat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - int(days * DAY * 10**9)))


def names(listed):
    return [one["step"] for one in listed["steps"]]


def packs_of(folder, tag):
    return list((folder / "packs" / tag).rglob("[0-9]")) if (folder / "packs" / tag).exists() else []


def objects_of(url, options, prefix):
    words = [str(word) for word in (OBJECTS, url, *options, "list", prefix)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=600, check=True)
    return [line.split("\t")[0] for line in done.stdout.splitlines()]
