"""What script tests expect, and how they read, write, and become another user."""

import contextlib
import errno
import os
import pickle
import random
import select
import time

from mounting import PATIENCE, Failure


def equal(got, wanted, what=""):
    if got != wanted:
        raise Failure(f"{what}: got {short(got)}, wanted {short(wanted)}")


def true(condition, what):
    if not condition:
        raise Failure(what)


def short(value):
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:100]}... ({len(value) if hasattr(value, '__len__') else '?'})"


def same_bytes(got, wanted, what):
    """Checks that the contents are equal. Reports the first difference."""
    if got == wanted:
        return
    common = min(len(got), len(wanted))
    at = next((index for index in range(common) if got[index] != wanted[index]), common)
    raise Failure(
        f"{what}: {len(got)} bytes against {len(wanted)} wanted; they differ from offset {at} on: "
        f"{bytes(got[at:at + 16]).hex()} against {bytes(wanted[at:at + 16]).hex()}"
    )


@contextlib.contextmanager
def raises(number, *others, what=""):
    """Checks that the body fails with this errno (or one of these)."""
    wanted = (number, *others)
    names = "/".join(errno.errorcode[one] for one in wanted)
    try:
        yield
    except OSError as problem:
        if problem.errno not in wanted:
            raise Failure(
                f"{what}: {errno.errorcode.get(problem.errno, problem.errno)} instead of {names}: " f"{problem}"
            ) from problem
    else:
        raise Failure(f"{what}: no error instead of {names}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o644):
    file = os.open(path, flags, mode)
    try:
        write_all(file, data)
    finally:
        os.close(file)


def write_all(file, data):
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def pwrite_all(file, data, offset):
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done


@contextlib.contextmanager
def opened(path, flags, mode=0o644):
    file = os.open(path, flags, mode)
    try:
        yield file
    finally:
        os.close(file)


def fork_off(function):
    """Runs it in a process of its own, which is nobody's child: a child of this process would count as this one, if it
    writes (fs/steps/step_writers.cc)."""
    parent = os.fork()
    if parent == 0:
        try:
            parent = os.getpid()
            if os.fork() == 0:
                while os.getppid() == parent:
                    time.sleep(0.001)
                function()
        finally:
            os._exit(0)
    os.waitpid(parent, 0)


def wait_for_end(pid):
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        select.select([process], [], [])
        os.close(process)


def in_child(function, *, uid=None, gid=None, folder=None):
    """Returns or raises what function() does in a process of its own, as this or another user."""
    reader, writer = os.pipe()

    def act():
        os.close(reader)
        if folder is not None:
            os.chdir(folder)
        if uid is not None:
            os.setgroups([])
            os.setgid(gid if gid is not None else uid)
            os.setuid(uid)
        try:
            answer = ("value", function())
        except BaseException as problem:  # noqa: BLE001 - the parent raises it
            answer = ("error", problem if isinstance(problem, (OSError, Failure)) else Failure(repr(problem)))
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump((os.getpid(), *answer), pipe)

    fork_off(act)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    if not data:
        raise Failure("the child process ended without an answer")
    pid, kind, value = pickle.loads(data)
    wait_for_end(pid)
    if kind == "error":
        raise value
    return value


def noise(length, seed=1):
    """Returns bytes without a pattern. The same seed gives the same bytes."""
    return random.Random(seed).randbytes(length)


def wait_for_seal(mount, step, may_fail=False, seconds=5.0):
    """Seals. Retries EBUSY for a while, because the kernel reports a close to the mount after close() has returned.

    Returns False if it stayed EBUSY and may_fail allows that.
    """
    end = time.monotonic() + (0.2 if may_fail else seconds * PATIENCE)
    while True:
        try:
            mount.seal(step)
            return True
        except OSError as problem:
            if problem.errno != errno.EBUSY or (time.monotonic() > end and not may_fail):
                raise
            if time.monotonic() > end:
                return False
        time.sleep(0.01)
