"""Which paths lie on a ckptfs mount."""

from __future__ import annotations

import os
import pathlib

__all__ = ["holds", "is_ckptfs"]

_known: dict[int, bool] = {}  # st_dev -> is that a ckptfs mount?


def is_ckptfs(device: int) -> bool:
    """Is the device, an st_dev, a ckptfs mount? Any thread may ask."""
    if device not in _known:
        _known[device] = _is_mounted(f"{os.major(device)}:{os.minor(device)}")
    return _known[device]


def _is_mounted(device: str) -> bool:
    for line in pathlib.Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if before.split(" ")[2] == device:
            return after.startswith("fuse.ckptfs ")
    return False


def holds(path: str | os.PathLike[str]) -> bool:
    """Does the path, or the folder where it would be made, lie on a ckptfs mount?"""
    path = pathlib.Path(path).absolute()
    there = next((place for place in (path, *path.parents) if place.exists()), None)
    return there is not None and is_ckptfs(there.stat().st_dev)
