"""Runs commands, each in a session of its own and with its output in a log. All can be ended at once."""

import dataclasses
import os
import subprocess
import threading
import time

import leftovers
from outcomes import ROOT

GRACE = 15  # seconds that a command gets to clean up after SIGTERM
PAUSE = 0.05  # seconds between two looks at a command

_lock = threading.Lock()
_running = set()  # guarded by _lock
_stopped = threading.Event()


class Stopped(Exception):
    """The run ends: nothing is begun any more."""


@dataclasses.dataclass
class Ended:
    code: int | None  # None: it took longer than its timeout
    seconds: float
    processor: float  # seconds of processor time, with its children that have ended


def check_stopped():
    if _stopped.is_set():
        raise Stopped


def execute(command, log, timeout=None, env=None):
    """Runs the command to its end, and returns how it ended."""
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as out, _lock:
        check_stopped()
        process = subprocess.Popen([str(word) for word in command], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=out, start_new_session=True)
        _running.add(process)
    try:
        processor = _wait(process, start + timeout if timeout else None)
        code = process.returncode
    finally:
        leftovers.end_session(process, GRACE)
        with _lock:
            _running.discard(process)
    check_stopped()
    return Ended(code, time.monotonic() - start, processor)


def _wait(process, deadline):
    """Waits for the end of the process or for the deadline. Returns its processor time, which Popen does not tell."""
    while deadline is None or time.monotonic() < deadline:
        try:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        except ChildProcessError:  # stop_all has ended it
            return 0
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime
        time.sleep(PAUSE)
    return 0


def stop_all():
    """Ends the commands that other threads run."""
    with _lock:
        _stopped.set()
        processes = list(_running)
    for process in processes:
        leftovers.end_session(process, GRACE)
