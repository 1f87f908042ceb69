"""Files that are on the disk when a function returns."""

from __future__ import annotations

import os
import pathlib
import uuid

__all__ = ["replace", "sync", "sync_one"]


def sync(folder: pathlib.Path, share: int = 0, shares: int = 1) -> None:
    """fsync of the folder and of all in it; with `shares` callers, each of them does its own share."""
    paths = sorted(path for path in [folder, *folder.rglob("*")] if not path.is_symlink())
    for path in paths[share::shares]:
        sync_one(path)


def sync_one(path: str | os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: pathlib.Path, text: str) -> None:
    """The file holds the old text or the new one, whatever happens, and whoever else replaces it."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.ckptfs")
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    sync_one(path.parent)
