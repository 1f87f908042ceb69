"""A mount by an ordinary user, through fusermount3: its whole life, what others see of it, and what is refused."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile

import pytest

from checking import equal, in_child, raises, read, true, write
from mounting import CKPTFS, Store, fuse_for_all, is_mountpoint, mounted, run, wait_until
from training import step_of, write_state

USER, OTHER = 65534, 65533
PASSED = ("PATH", "LC_ALL", "LANG")  # the variables of our environment that are passed on; none describes a session

# Runs in a mount namespace of its own: WORK USER COMMAND...
BESIDE_NO_OTHER = """
import os, subprocess, sys
work, user = sys.argv[1], int(sys.argv[2])
with open("/proc/self/mountinfo") as lines:
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines if " - fuse.ckptfs " in line]
for point in points:
    if not point.startswith(work + "/"):
        subprocess.run(["umount", "-l", point], check=False)
os.setgroups([])
os.setgid(user)
os.setuid(user)
os.execv(sys.argv[3], sys.argv[3:])
"""


class UserMount:
    """A folder of the disk that the user owns, a mount point, and the command as the user runs it."""

    def __init__(self, work, disk, name, runtime):
        self.home = disk / name
        self.store, self.path, self.log = self.home / "store", self.home / "mnt", self.home / "log"
        self.runtime = runtime / name  # $XDG_RUNTIME_DIR; the path of a socket must be short
        for folder in (self.home, self.path, self.runtime):
            folder.mkdir()
            os.chown(folder, USER, USER)
        self.binary = work / "ckptfs"  # nobody may not enter the build folder
        if not self.binary.exists():
            shutil.copy(CKPTFS, self.binary)
            self.binary.chmod(0o755)

    def run(self, *words, user=USER, check=True, **options):
        environment = {name: os.environ[name] for name in PASSED if name in os.environ} | {"SUDO_UID": "1", "SUDO_GID": "1"}
        if self.runtime:
            environment["XDG_RUNTIME_DIR"] = str(self.runtime)
        return run(self.binary, *words, check=check, user=user, group=user, extra_groups=[], cwd="/", env=environment, **options)

    def mount(self, *words, check=True):
        return self.run("mount", "--log", self.log, "-o", "quiet=0s", *words, self.store, self.path, check=check)

    def status(self):
        return json.loads(self.run("status", "--json", self.path).stdout)

    def run_beside_no_other(self, work, *words, user=USER):
        """Like run(), but sees no other ckptfs mounts than those below `work`, because the machine may have some."""
        return run("unshare", "--mount", "--propagation", "private", sys.executable, "-c", BESIDE_NO_OTHER, work, user,
                   self.binary, *words, check=False, cwd="/")

    def ended(self, pid):
        with contextlib.suppress(FileNotFoundError):
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        return True


@pytest.fixture
def runtime(work, disk):
    """The folder of runtime folders, for a test in which all users may open /dev/fuse."""
    with fuse_for_all(), tempfile.TemporaryDirectory(prefix="ckptfs-run-") as folder:
        for shown in (work, disk, pathlib.Path(folder)):
            shown.chmod(0o755)
        yield pathlib.Path(folder)


def as_user(function, user=USER):
    return in_child(function, uid=user, gid=user)


def test_whole_life(work, disk, runtime):
    here = UserMount(work, disk, "life", runtime)
    here.mount()
    status = here.status()
    equal(status["passthrough"]["active"], False, "passthrough")
    true("not permitted" in status["passthrough"]["reason"], f"why not: {status['passthrough']}")

    def train():
        equal(os.stat(here.path).st_uid, USER, "the root's owner")
        state = write_state(here.path)
        os.setxattr(here.path / "steps", "user.ckptfs.save", b"global_step1")
        write_state(here.path, 1)
        for name, data in step_of(state).items():
            equal(read(here.path / "steps/global_step1" / name), data, name)
        os.setxattr(here.path / "steps/global_step1", "user.ckptfs.seal", b"1")
        with raises(errno.EPERM, errno.EACCES):
            write(here.path / "steps/global_step1/new", b"x")
        true(os.listdir(here.path / "views/steps/global_step1"), "a view")

    as_user(train)
    here.run("save", "global_step2", here.path)
    rows = json.loads(here.run("ls", "--json", here.path).stdout)["steps"]
    equal([row["tag"] for row in rows], ["global_step1", "global_step2"], "steps")
    here.run("rm", here.path / "steps/global_step1")
    true("swap state only" in here.run("show", here.path / "steps/global_step2").stdout, "show")
    here.run("umount", here.path)
    true(not is_mountpoint(here.path), "unmounted")
    true(here.ended(status["pid"]), "the daemon has ended")
    here.run("fsck", here.store)
    here.mount()
    equal(as_user(lambda: None) or json.loads(here.run("ls", "--json", here.path).stdout)["steps"][0]["tag"], "global_step2", "again")
    here.run("umount", here.path)


def test_others_see_nothing(work, disk, runtime):
    here = UserMount(work, disk, "others", runtime)
    here.mount()

    def look():
        with raises(errno.EACCES):
            os.listdir(here.path)

    as_user(look, OTHER)
    look()  # as root
    path = as_user(lambda: os.getxattr(here.path, "user.ckptfs.socket").decode())
    true(path.startswith(str(here.runtime)), f"the control socket: {path}")

    def connect():
        with raises(errno.EACCES), socket.socket(socket.AF_UNIX) as client:
            client.connect(path)

    as_user(connect, OTHER)
    equal(here.run("ls", here.path, user=OTHER, check=False).returncode, 1, "ckptfs ls by another user")
    done = here.run("umount", here.path, user=OTHER, check=False)
    true(done.returncode == 1 and "sudo" in done.stderr, f"umount by another user: {done}")
    # The mount of one user must not hide another user's only mount.
    with mounted(Store(disk / "everybodys"), work / "everybodys", mode="direct") as mount:
        for user, whose in ((0, "root's"), (OTHER, "another user's")):
            done = here.run_beside_no_other(work, "status", "--json", user=user)
            true(done.returncode == 0, f"{whose} only mount: {done}")
            equal(json.loads(done.stdout)["mountpoint"], str(mount.path), f"{whose} only mount")
        done = here.run_beside_no_other(work, "status")
        true("several" in done.stderr, f"the user has two: {done}")
    here.run("umount", here.path)


def test_dead_and_ended(work, disk, runtime):
    here = UserMount(work, disk, "dead", runtime)
    here.mount()
    as_user(lambda: write(here.path / "file", b"kept"))
    os.kill(here.status()["pid"], signal.SIGKILL)
    wait_until("the mount is dead", lambda: run("stat", here.path, check=False).returncode != 0)
    true("had died" in here.mount().stderr, "what replaces it says so")
    equal(as_user(lambda: equal(read(here.path / "file"), b"kept", "after the daemon was killed")), None)
    os.kill(here.status()["pid"], signal.SIGKILL)
    wait_until("the mount is dead", lambda: run("stat", here.path, check=False).returncode != 0)
    true("had died" in here.run("umount", here.path).stdout, "umount of a dead mount")
    true(not is_mountpoint(here.path), "it is gone")
    for number in (signal.SIGTERM, signal.SIGINT):
        here.mount()
        pid = here.status()["pid"]
        os.kill(pid, number)
        wait_until(f"the end by signal {number}", lambda: here.ended(pid), 20)
        true(not is_mountpoint(here.path), f"unmounted by signal {number}")
        true("is unmounted" in here.log.read_text().splitlines()[-1], "a clean end")
    with contextlib.ExitStack() as stack:
        here.mount()
        pid = here.status()["pid"]
        holder = subprocess.Popen(["sleep", "60"], cwd="/", user=USER, group=USER, extra_groups=[],
                                  preexec_fn=lambda: os.chdir(here.path))
        stack.callback(holder.wait)
        stack.callback(holder.kill)
        done = here.run("umount", here.path, check=False)
        true(done.returncode == 1 and "busy" in done.stderr and str(holder.pid) in done.stderr, f"a busy mount: {done}")
        true(not here.ended(pid), "the daemon goes on")
    here.run("umount", here.path)


def test_refusals(work, disk, runtime):
    here = UserMount(work, disk, "refused", runtime)

    def refused(done, *words, code=1):
        equal(done.returncode, code, f"{done.args}: {done.stderr}")
        for word in words:
            true(word in done.stderr, f"{word!r} is not in {done.stderr}")
        true(not is_mountpoint(here.path), "mounted all the same")

    refused(here.mount("--image", "512M", check=False), "root", "sudo")
    refused(here.mount("-o", "passthrough=on", check=False), "passthrough=on")
    refused(here.mount("-o", "allow_other", check=False), "fuse.conf")
    os.chown(here.path, 0, 0)
    refused(here.mount(check=False), str(here.path))
    os.chown(here.path, USER, USER)
    folder = here.runtime / "ckptfs"
    folder.mkdir()  # owned by root
    refused(here.mount(check=False), str(folder), "others may use it")
    folder.rmdir()
    here.run("mount", here.store, here.path)
    here.run("umount", here.path)
    done = run(CKPTFS, "mount", here.store, here.path, check=False)
    refused(done, f"belongs to uid {USER}", "chown -R 0")
    here.runtime = pathlib.Path("/nowhere")  # the folder does not exist, so /tmp is used
    fallback = pathlib.Path(f"/tmp/ckptfs-{USER}")
    if not fallback.exists():
        try:
            here.run("mount", here.store, here.path)
            equal(stat.S_IMODE(fallback.stat().st_mode), 0o700, "its folder in /tmp")
            here.run("umount", here.path)
            os.chown(fallback, OTHER, OTHER)  # another user has taken the name
            here.run("mount", here.store, here.path)
            used = pathlib.Path(as_user(lambda: os.getxattr(here.path, "user.ckptfs.socket").decode())).parent
            equal((used.stat().st_uid, stat.S_IMODE(used.stat().st_mode)), (USER, 0o700), "the other folder in /tmp")
            here.run("umount", here.path)
            used.rmdir()
        finally:
            fallback.rmdir()
    with mounted(Store(disk / "roots"), work / "roots", mode="direct") as mount:
        done = here.run("umount", mount.path, check=False)
        true(done.returncode == 1 and "sudo" in done.stderr, f"umount of root's mount: {done}")
