"""What scripts ask of a series of steps: the newest complete one, the state of each. Needs neither torch nor libckptfs.

    step = ckptfs.latest("/ckpt/steps")        # None: no step is complete
    if ckptfs.state(step.path).complete: ...

Each call is one question to the daemon of the mount. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pathlib
import socket
import time
from collections.abc import Iterator
from typing import Any

from . import mounts

__all__ = ["Event", "Step", "latest", "state", "steps", "watch"]

_BETWEEN_QUESTIONS = 0.25  # seconds
_MAY_PASS = (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE, errno.ENODATA,
             errno.EOPNOTSUPP, errno.ECONNABORTED)  # while the daemon is started anew


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
    """Returns the complete step of a series that a training saved last (what `ckptfs latest` prints), or None.

    A step of `ckptfs save` alone, whose kind is "swap state only", is returned only if no other is complete.

    OSError: nobody answers for the mount, or the series is not there. ValueError: the path is on no mount, or is a mount
    that has several series.
    """
    mount, path = _place(series)
    answer = _ask(mount, "states", {"path": path})
    newest = answer["newest"]
    if len(newest) > 1:
        raise ValueError(f"several series have steps; name one: {', '.join(newest)}")
    tag = next(iter(newest.values()), "")
    return next((step for step in _steps(mount, answer) if step.tag == tag), None)


def steps(series: str | os.PathLike[str]) -> list[Step]:
    """Returns the steps of a series, sorted by number and tag. Errors are those of latest()."""
    mount, path = _place(series)
    return _steps(mount, _ask(mount, "states", {"path": path}))


def state(step: str | os.PathLike[str]) -> Step:
    """Returns what is known of one step. ValueError: it is none. Other errors are those of latest()."""
    mount, path = _place(step)
    found = [one for one in _steps(mount, _ask(mount, "states", {"path": path})) if one.path == mount / path[1:]]
    if not found:
        raise ValueError(f"{os.fspath(step)}: it is no step; `ckptfs ls` lists them")
    return found[0]


@dataclasses.dataclass(frozen=True)
class Event:
    """What happened to a step."""

    number: int  # watch(..., since=number) goes on behind it
    time: float  # seconds since 1970
    what: str  # began, completed, set_aside, renamed, thinned, pushed or removed
    path: pathlib.Path  # of the step, then
    tag: str
    owner: int  # uid of the step's; in a folder where many may write another user's step is not to be loaded
    detail: str  # its new name, what it is called in the remote, or what removed it


def watch(series: str | os.PathLike[str], since: int | None = None) -> Iterator[Event]:
    """Yields what happens to the steps of a series, without an end. With `since` it begins behind the event of that number.

    No event is lost and none comes twice, also while the daemon is started anew. That a step began or is complete needs a
    rule on the series. OSError: the store no longer has the event behind `since`, or never had it.
    """
    mount, path = _place(series)
    question: dict[str, Any] = {"path": path} if since is None else {"path": path, "since": since}
    asked = False  # from then on a daemon that does not answer is waited for
    while True:
        try:
            answer = _ask(mount, "events", question)
            asked = True
        except OSError as error:
            if error.errno not in _MAY_PASS or not asked:
                raise
            time.sleep(_BETWEEN_QUESTIONS)
            continue
        if answer["lost"]:
            raise OSError(errno.ENODATA, f"{answer['lost']} events behind number {question['since']} are kept no more")
        for one in answer["events"]:
            yield Event(number=one["number"], time=one["time"], what=one["event"], tag=one["tag"], owner=one["owner"],
                        detail=one["detail"], path=mount.joinpath(one["series"].lstrip("/"), one["tag"]))
        more = "since" in question and question["since"] != answer["since"]
        question["since"] = answer["since"]
        if not more:
            time.sleep(_BETWEEN_QUESTIONS)


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
    return mount, "/" if path == mount else f"/{path.relative_to(mount)}"


def _ask(mount: pathlib.Path, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """io/control_message.h has the protocol."""
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(os.getxattr(mount, "user.ckptfs.socket"))
        daemon.sendall(json.dumps({"command": command, "arguments": arguments}).encode() + b"\n")
        with daemon.makefile("rb") as replies:
            line = replies.readline()
    if not line.endswith(b"\n"):
        raise ConnectionResetError(errno.ECONNRESET, "the daemon has ended")
    reply = json.loads(line)
    if not reply["ok"]:
        raise OSError(reply["errno"], reply["error"])
    found: dict[str, Any] = reply["result"]
    return found
