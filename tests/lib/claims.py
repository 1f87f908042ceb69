"""What tests that run at the same time take from the machine: each claims it first, so that none takes another's.

A claim is a lock on a file, so it ends with its process, however that ends.
"""

import contextlib
import errno
import fcntl
import os
import pathlib
import tempfile
import time

FOLDER = pathlib.Path(tempfile.gettempdir()) / "ckptfs-test-claims"
SPARE_GIB = 4  # for tests that claim none


def try_lock(name):
    """Returns a descriptor that holds the claim of this name until it is closed, or None if a process has it."""
    FOLDER.mkdir(exist_ok=True)
    file = os.open(FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BlockingIOError:
        os.close(file)
        return None


def _is_held(name):
    file = try_lock(name)
    if file is not None:
        os.close(file)
    return file is None


def _claimed_gib(device):
    return sum(int(name.rsplit("-", 1)[1]) for name in os.listdir(FOLDER)
               if name.startswith(f"disk-{device}-") and _is_held(name))


@contextlib.contextmanager
def disk(folder, gib):
    """Waits until the folder's disk has so much room beside what other tests claim there, and SPARE_GIB. Raises OSError
    (ENOSPC) if it lacks room although nobody else claims any."""
    device, name = os.stat(folder).st_dev, ""
    while not name:
        with _one_at_a_time(f"room-{device}"):
            others = _claimed_gib(device)
            figures = os.statvfs(folder)
            free = figures.f_bavail * figures.f_frsize >> 30
            if free >= others + gib + SPARE_GIB:
                name = f"disk-{device}-{os.getpid()}-{gib}"
                claim = try_lock(name)
            elif not others:
                raise OSError(errno.ENOSPC, f"the test needs {gib} GiB of disk and {SPARE_GIB} to spare, {free} are free", str(folder))
        time.sleep(0 if name else 0.5)
    try:
        yield
    finally:
        (FOLDER / name).unlink()
        os.close(claim)


@contextlib.contextmanager
def _one_at_a_time(name):
    while (file := try_lock(name)) is None:
        time.sleep(0.01)
    try:
        yield
    finally:
        os.close(file)
