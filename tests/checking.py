"""A small framework for the system tests: cases, their expectations, and how a file of them is run.

Each case prints one line. The exit status is 1 if a case failed, else 77 if a case was skipped; then the reason is on
the last line.
"""

import argparse
import contextlib
import errno
import os
import pickle
import random
import shutil
import sys
import time
import traceback

from mounting import LEVEL, MODES, Failure, Plain, Skip, Store, mounted, workspace, xfs


class Report:
    """Runs cases and counts them."""

    def __init__(self, selection=None):
        self.selection = selection
        self.passed, self.failed, self.skipped = [], [], []

    def modes(self):
        """Returns the open modes that this machine supports."""
        if tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 9):
            return MODES
        self.skip("passthrough", "kernel: passthrough needs Linux 6.9")
        return tuple(mode for mode in MODES if mode != "passthrough")

    def skip(self, name, reason):
        self.skipped.append(str(reason))
        print(f"skip  {name}: {reason}", flush=True)

    def wants(self, name):
        return not self.selection or any(word in name for word in self.selection)

    def run(self, name, function, *arguments):
        if not self.wants(name):
            return
        start = time.monotonic()
        try:
            function(*arguments)
        except Skip as reason:
            self.skip(name, reason)
        except Exception as problem:  # any problem is this case's failure, and the other cases still run
            self.failed.append(name)
            print(f"FAIL  {name}: {type(problem).__name__}: {problem}", flush=True)
            traceback.print_exc(limit=-4)
        else:
            self.passed.append(name)
            print(f"ok    {name} ({time.monotonic() - start:.2f} s)", flush=True)

    def finish(self):
        print(f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped", flush=True)
        if self.failed:
            print("failed: " + ", ".join(self.failed))
            sys.exit(1)
        if self.skipped:
            print("; ".join(dict.fromkeys(self.skipped)))
            sys.exit(77)
        if not self.passed:
            print("no case was run")
            sys.exit(1)
        sys.exit(0)


def arguments(description, **more):
    """Parses the options that every test file has: names of cases, --plain; and `more`, name=(default, help)."""
    parser = argparse.ArgumentParser(description=description.strip().splitlines()[0])
    parser.add_argument("cases", nargs="*", help="run only the cases whose name holds one of these words")
    parser.add_argument("--plain", action="store_true", help="against plain XFS: checks the test itself")
    for name, (default, text) in more.items():
        parser.add_argument(f"--{name}", default=default, type=type(default) if default is not None else str, help=text)
    return parser.parse_args()


def guarded(main):
    """Runs main(). Skips, with the reason, if the machine lacks something that all of it needs."""
    try:
        main()
    except Skip as reason:
        print(reason)
        sys.exit(77)


# --- expectations


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


def in_child(function, *, uid=None, gid=None, folder=None):
    """Returns or raises what function() does in a process of its own, as this or another user."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            if folder is not None:
                os.chdir(folder)
            if uid is not None:
                os.setgroups([])
                os.setgid(gid if gid is not None else uid)
                os.setuid(uid)
            try:
                answer = ("value", function())
            except BaseException as problem:
                answer = ("error", problem if isinstance(problem, (OSError, Failure)) else Failure(repr(problem)))
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(answer, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        raise Failure("the child process ended without an answer")
    kind, value = pickle.loads(data)
    if kind == "error":
        raise value
    return value


def noise(length, seed=1):
    """Returns bytes without a pattern. The same seed gives the same bytes."""
    return random.Random(seed).randbytes(length)


# --- Cases that run once in each open mode, all on one mount, each in its own folder


def run_cases(report, cases, mount, label):
    for function in cases:
        name = f"{label}: {function.__name__}"
        if report.wants(name):
            if not mount.alive():
                mount.start()  # replaces the dead mount; the case in which it died has failed
            folder = mount.path / function.__name__
            folder.mkdir()
            os.chmod(folder, 0o755)
            report.run(name, function, folder, mount)


def main_in_each_mode(description, name, cases, mount_options=()):
    """cases: functions of (folder, mount). With --plain the mount is plain XFS."""
    guarded(lambda: _run_in_each_mode(description, name, cases, mount_options))


def _run_in_each_mode(description, name, cases, mount_options):
    options = arguments(description)
    report = Report(options.cases)
    with workspace(name) as work, xfs(work) as disk:
        if options.plain:
            run_cases(report, cases, Plain(disk / "plain"), "plain")
        else:
            for mode in report.modes():
                store = Store(disk / mode)
                with mounted(store, work / f"mnt-{mode}", mode=mode, options=mount_options) as mount:
                    run_cases(report, cases, mount, mode)
                report.run(f"{mode}: fsck", store.fsck)
    report.finish()


def main_with_fresh_stores(description, name, cases, in_one_mode=()):
    """cases: functions of (mount), each on a new store, in each open mode, with a fsck behind it.

    in_one_mode: those of them that the mode cannot change. They run in the first mode only, but at the long level.
    """
    guarded(lambda: _run_with_fresh_stores(description, name, cases, in_one_mode))


def _run_with_fresh_stores(description, name, cases, in_one_mode):
    options = arguments(description)
    report = Report(options.cases)

    def run_one(function, disk, work, mode):
        store = Store(disk / f"{mode}-{function.__name__}")
        with mounted(store, work / f"mnt-{mode}-{function.__name__}", mode=mode) as mount:
            function(mount)
        store.fsck()
        shutil.rmtree(store.folder)

    with workspace(name) as work, xfs(work) as disk:
        modes = report.modes()
        for mode in modes:
            for function in cases:
                if mode == modes[0] or LEVEL == "long" or function not in in_one_mode:
                    report.run(f"{mode}: {function.__name__}", run_one, function, disk, work, mode)
    report.finish()


def wait_for_seal(mount, step, may_fail=False, seconds=5.0):
    """Seals. Retries EBUSY for a while, because the kernel reports a close to the mount after close() has returned.

    Returns False if it stayed EBUSY and may_fail allows that.
    """
    end = time.monotonic() + (0.2 if may_fail else seconds)
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
