"""Runs commands, each in a session of its own and with its output in a log. All can be ended at once."""

import subprocess
import threading
import time

import leftovers
from outcomes import ROOT

GRACE = 15  # seconds that a command gets to clean up after SIGTERM

_lock = threading.Lock()
_running = set()  # guarded by _lock
_stopped = threading.Event()


class Stopped(Exception):
    """The run ends: nothing is begun any more."""


def check_stopped():
    if _stopped.is_set():
        raise Stopped


def execute(command, log, timeout=None, env=None):
    """Runs the command to its end. Returns (exit code, or None after the timeout; seconds)."""
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as out, _lock:
        check_stopped()
        process = subprocess.Popen([str(word) for word in command], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=out, start_new_session=True)
        _running.add(process)
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        leftovers.end_session(process, GRACE)
        with _lock:
            _running.discard(process)
    check_stopped()
    return code, time.monotonic() - start


def stop_all():
    """Ends the commands that other threads run."""
    with _lock:
        _stopped.set()
        processes = list(_running)
    for process in processes:
        leftovers.end_session(process, GRACE)
