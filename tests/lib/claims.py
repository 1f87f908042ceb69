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

FOLDER = pathlib.Path(tempfile.gettempdir()) / f"ckptfs-test-claims-{os.geteuid()}"
SPARE_GIB = 4  # for tests that claim none


def try_lock(name):
    """Returns a descriptor that holds the claim of this name until it is closed, or None if a process has it."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    if FOLDER.is_symlink() or FOLDER.stat().st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "another user has made the folder of the tests' claims: remove it", str(FOLDER))
    return _lock(os.open(FOLDER / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _lock(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BlockingIOError:
        os.close(file)
        return None


def _claimed_gib(device):
    """Returns what is claimed of the disk. Removes claims whose process was killed."""
    total = 0
    for path in FOLDER.glob(f"disk-{device}-*"):
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            file = _lock(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            if file is None:
                total += int(path.name.rsplit("-", 1)[1])
            else:
                path.unlink()
                os.close(file)
    return total


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
                problem = f"the test needs {gib} GiB of disk and {SPARE_GIB} to spare, {free} are free"
                raise OSError(errno.ENOSPC, problem, str(folder))
        time.sleep(0 if name else 0.5)
    try:
        yield
    finally:
        (FOLDER / name).unlink(missing_ok=True)
        os.close(claim)


@contextlib.contextmanager
def _one_at_a_time(name):
    while (file := try_lock(name)) is None:
        time.sleep(0.01)
    try:
        yield
    finally:
        os.close(file)
