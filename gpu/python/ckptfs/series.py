"""What scripts ask of a series of steps: the newest complete one, the state of each. Needs neither torch nor libckptfs.

    step = ckptfs.latest("/ckpt/steps")        # None: no step is complete
    if ckptfs.state(step.path).complete: ...

Each call is one question to the daemon of the mount. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import socket
from typing import Any

from . import mounts

__all__ = ["Step", "latest", "state", "steps"]


@dataclasses.dataclass(frozen=True)
class Step:
    """A step as the daemon saw it when it was asked."""

    path: pathlib.Path
    tag: str
    number: int  # 0: its name has none
    state: str  # complete, sealed, weights, incomplete, unknown, damaged or being removed
    reason: str  # why it is not complete; else empty
    kind: str  # what wrote it: hf, deepspeed, dcp, ...
    completed: int  # when, in seconds since 1970; if it is not complete, when it changed last
    pinned: bool
    kept_by: tuple[str, ...]  # rules and protections that keep it; empty if a rule removes it

    @property
    def complete(self) -> bool:
        """Can a training go on from it?"""
        return self.state in ("complete", "sealed")


def latest(series: str | os.PathLike[str]) -> Step | None:
    """Returns the complete step that a training saved last, or None: `ckptfs latest` says which one that is.

    OSError: nobody answers for the mount, or the series is not there. ValueError: the path is on no mount.
    """
    mount, path = _place(series)
    answer = _ask(mount, path)
    tag = answer["newest"].get(path, "")
    return next((step for step in _steps(mount, answer) if step.tag == tag), None)


def steps(series: str | os.PathLike[str]) -> list[Step]:
    """Returns the steps of the series, sorted by number and tag. Errors as latest()."""
    mount, path = _place(series)
    return _steps(mount, _ask(mount, path))


def state(step: str | os.PathLike[str]) -> Step:
    """Returns what is known of one step. Errors as latest()."""
    mount, path = _place(step)
    return _steps(mount, _ask(mount, path))[0]


def _steps(mount: pathlib.Path, answer: dict[str, Any]) -> list[Step]:
    return [Step(path=mount.joinpath(one["series"].lstrip("/"), one["tag"]), tag=one["tag"], number=one.get("number", 0),
                 state=one["state"], reason=one.get("reason", ""), kind=one["kind"],
                 completed=one.get("completed", one["mtime"]), pinned=one["pinned"],
                 kept_by=tuple(one["by"]) if one.get("stays") else ()) for one in answer["steps"]]


def _place(path: str | os.PathLike[str]) -> tuple[pathlib.Path, str]:
    """Returns the mount point above the path, and the path from there."""
    path = pathlib.Path(path).resolve()
    mount = next((place for place in (path, *path.parents) if os.path.ismount(place)), pathlib.Path("/"))
    if not mounts.is_ckptfs(mount.stat().st_dev):
        raise ValueError(f"{path}: it is not on a ckptfs mount; `ckptfs status` lists them")
    return mount, f"/{path.relative_to(mount)}"


def _ask(mount: pathlib.Path, path: str) -> dict[str, Any]:
    """io/control_message.h has the protocol."""
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(os.getxattr(mount, "user.ckptfs.socket"))
        daemon.sendall(json.dumps({"command": "states", "arguments": {"path": path}}).encode() + b"\n")
        with daemon.makefile("rb") as replies:
            reply = json.loads(replies.readline() or b'{"ok": false, "errno": 104, "error": "the daemon has ended"}')
    if not reply["ok"]:
        raise OSError(reply["errno"], reply["error"])
    found: dict[str, Any] = reply["result"]
    return found
