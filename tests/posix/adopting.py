"""What tests of adopted copies share."""

import os

from checking import write
from mounting import run, used_bytes


def used(mount):
    """Returns the bytes that the store takes, with all written that the kernel holds back."""
    run("sync", "-f", mount.store.inner)
    return used_bytes(mount.store.inner)


def two_steps(mount, tag, contents):
    """Makes a step with these files, and beside it one that has none yet. Returns both."""
    old, new = mount.path / "steps" / f"{tag}1", mount.path / "steps" / f"{tag}2"
    for step in (old, new):
        (step / "sub").mkdir(parents=True)
        os.chmod(step / "sub", 0o777)
    for name, data in contents.items():
        write(old / name, data)
    return old, new
