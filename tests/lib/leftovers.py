"""Ends what a test left behind: processes, mounts, loop devices. Makes scratch folders."""

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

PREFIX = "ckptfs-test-"


def end_session(process, grace):
    """Ends the processes that are left in the session of `process`: SIGTERM, then SIGKILL after `grace` seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + grace
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    process.wait()


# --- what there is below a folder


def mount_table():
    """Returns (mount point, line of the table) of all mounts."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        fields = [(line.split(" ")[4].encode("utf-8", "surrogateescape"), line) for line in lines]
    return [(point.decode("unicode_escape"), line) for point, line in fields]


def mounts_below(folder):
    """Returns the mount points at or below the folder, the last mounted first."""
    return [point for point, _ in reversed(mount_table()) if point == str(folder) or point.startswith(f"{folder}/")]


def daemons_of(folder):
    """Returns the processes of a ckptfs binary whose arguments name something in the folder."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"ckptfs") and any(os.fsencode(f"{folder}/") in word for word in words):
                found.append(int(entry.name))
    return found


def loops_of(folder):
    """Returns the loop devices whose file is below the folder."""
    found = []
    for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if backing.read_text().startswith(f"{folder}/"):
                found.append(f"/dev/{backing.parts[3]}")
    return found


def connections_below(folder):
    """Returns the numbers of the FUSE connections of the ckptfs mounts below the folder."""
    return [line.split(" ")[2].split(":")[1] for point, line in mount_table()
            if " - fuse.ckptfs " in line and point.startswith(f"{folder}/")]


# --- ending it


def _run(*command):
    return subprocess.run(command, capture_output=True, check=False)


def abort_connections(numbers):
    """Makes requests to these connections' daemons fail, so that a killed daemon can end."""
    if not numbers:
        return
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}fusectl-") as control:
        _run("mount", "-t", "fusectl", "none", control)
        try:
            for number in numbers:
                with contextlib.suppress(OSError):  # the connection has ended
                    pathlib.Path(control, number, "abort").write_text("1", encoding="ascii")
        finally:
            _run("umount", control)


def kill_daemons(folder):
    """Kills the daemons of the folder. Requests that wait for one of them fail."""
    connections = connections_below(folder)
    for pid in daemons_of(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    abort_connections(connections)


def clean(folder):
    """Ends daemons, mounts and loop devices below a folder. Returns what there was, in words."""
    complaints = [f"daemon {pid}" for pid in daemons_of(folder)]
    complaints += [f"mount {point}" for point in mounts_below(folder) if point != str(folder)]
    complaints += [f"loop device {device}" for device in loops_of(folder)]
    if not complaints:
        return []
    kill_daemons(folder)
    # A device is detached with its last mount, and then releases the mount that its file is on.
    for device in loops_of(folder):
        _run("losetup", "-d", device)
    _unmount_below(folder)
    return complaints


def _unmount_below(folder):
    """Unmounts while the kernel still uses a mount; after 5 seconds lazily."""
    for attempt in range(51):
        points = [point for point in mounts_below(folder) if point != str(folder)]
        if not points:
            return
        for point in points:
            _run("umount", *(["-l"] if attempt == 50 else []), point)
        time.sleep(0.1)


# --- scratch folders


def others_reach(folder):
    """Returns whether every user of the machine may enter the folder. Not so below root's home, for example."""
    return all(above.stat().st_mode & 0o001 for above in (folder, *folder.parents))


@contextlib.contextmanager
def reachable(folder):
    """Makes the folder if it is missing. Yields a path to it that all users may use, because tests become other
    users."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    if os.geteuid() != 0 or others_reach(folder):
        yield folder
        return
    point = pathlib.Path("/tmp") / f"{PREFIX}{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
    clean(point)  # what a run that was killed left
    _run("umount", "-l", point)
    point.mkdir(mode=0o755, exist_ok=True)
    subprocess.run(["mount", "--bind", folder, point], check=True)
    try:
        subprocess.run(["mount", "--make-private", point], check=True)  # else each mount in it would appear twice
        yield point
    finally:
        _run("umount", "-l", point)
        point.rmdir()


@contextlib.contextmanager
def scratch_folder(parent, name):
    """Yields a fresh folder, and a list that at the end has what was left mounted in it. Both are cleaned away."""
    folder = parent / re.sub(r"[^\w.-]+", "_", name)
    clean(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    complaints = []
    try:
        yield folder, complaints
    finally:
        complaints += clean(folder)
        shutil.rmtree(folder, ignore_errors=True)
