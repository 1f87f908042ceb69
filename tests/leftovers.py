"""Makes scratch folders for tests, and ends what a test left behind: processes, mounts, loop devices."""

import contextlib
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time


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


def mounts_below(folder):
    """Returns (device number, mount point, type) of the mounts below a folder, innermost last."""
    found = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        fields = before.split()
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        if point.startswith(f"{folder}/"):
            found.append((fields[2], point, after.split()[0]))
    return found


def loops_below(folder):
    """Returns the loop devices whose file is below a folder."""
    found = []
    for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if backing.read_text().startswith(f"{folder}/"):
                found.append(f"/dev/{backing.parts[3]}")
    return found


def clean(folder):
    """Unmounts and detaches what is left below a folder. Returns a list of what that was."""
    complaints = []
    for device, point, kind in reversed(mounts_below(folder)):
        complaints.append(f"mount of {kind} at {point}")
        connection = pathlib.Path("/sys/fs/fuse/connections") / device.split(":")[1] / "abort"
        if kind.startswith("fuse") and connection.exists():
            with contextlib.suppress(OSError):
                connection.write_text("1")
        subprocess.run(["umount", "-l", point], capture_output=True, check=False)
    for loop in loops_below(folder):
        if not complaints:
            complaints.append(f"loop device {loop}")
        subprocess.run(["losetup", "-d", loop], capture_output=True, check=False)
    return complaints


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
    point = pathlib.Path("/tmp") / f"ckptfs-test-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
    subprocess.run(["umount", "-l", point], capture_output=True, check=False)  # a mount of a run that was killed
    point.mkdir(mode=0o755, exist_ok=True)
    subprocess.run(["mount", "--bind", folder, point], check=True)
    try:
        subprocess.run(["mount", "--make-private", point], check=True)  # else each mount in it would appear twice
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=False)
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
