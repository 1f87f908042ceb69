"""The command: help, usage, errors, the life of a mount and of its image, and the output of each subcommand."""

import contextlib
import errno
import json
import os
import pathlib
import pty
import shutil
import signal
import stat
import subprocess
import sys

import pytest

from checking import equal, noise, raises, read, same_bytes, true, write
from hugging import safetensors
from mounting import CKPTFS, CKPTFS_DEBUG, Mount, Store, abandon, free_bytes, mounted, run, wait_until, xfs
from training import STAGE, step_of, write_state

pytestmark = pytest.mark.mode("direct")

COMMANDS = ("mount", "umount", "save", "ls", "show", "du", "diff", "policy", "rm", "verify", "status", "fsck", "doctor")
NOBODY = 65534
IMAGE = "512M"


def ckptfs(*words, **options):
    return run(CKPTFS, *words, check=False, **options)


def status_is(done, status, *said, what=""):
    """Checks the exit status, and that stderr has these words."""
    if done.returncode != status:
        raise AssertionError(f"{what or done.args}: status {done.returncode}, wanted {status}: {done.stdout}{done.stderr}")
    for words in said:
        true(words in done.stderr, f"{done.args}: stderr lacks {words!r}: {done.stderr}")
    if status != 0:
        true(done.stderr.startswith("ckptfs: ") or "\nckptfs: " in done.stderr, f"{done.args}: whose error? {done.stderr}")
    return done


def mount_types_at(point):
    """Returns the types of the mounts at the path, the topmost last."""
    types = []
    for line in pathlib.Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        words = line.split(" ")
        if words[4].encode().decode("unicode_escape") == str(point):
            types.append(words[words.index("-") + 1])
    return types


def folder(work, name):
    made = work / name
    made.mkdir()
    return made


def daemon_of(point):
    return json.loads(run(CKPTFS, "status", "--json", point).stdout)["pid"]


def state_of(pid):
    """Returns the letter of the process's state, or X if there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def ended(pid):
    return state_of(pid) in "ZX"


# --- without a mount


def test_help_texts():
    done = status_is(ckptfs("--help"), 0)
    for command in COMMANDS:
        true(command in done.stdout, f"--help does not name {command}")
        text = status_is(ckptfs(command, "--help"), 0).stdout
        true("Example" in text and f"ckptfs {command}" in text, f"{command} --help has no example: {text}")
        equal("--json" in text, command not in ("mount", "umount"), f"{command} --help: --json")
    true(status_is(ckptfs("--version"), 0).stdout.startswith("ckptfs "), "--version")


def test_usage_errors(scratch):
    for words in ((), ("frob",), ("mount",), ("mount", "/a"), ("mount", "/a", "/b", "/c"), ("ls", "/a", "/b"),
                  ("save",), ("fsck",), ("status", "--frob"), ("mount", "--sector", "1024", "/a", "/b"),
                  ("mount", "--log-level", "loud", "/a", "/b"), ("mount", "--sparse", "/a", "/b")):
        status_is(ckptfs(*words), 2)
    status_is(ckptfs("mount", "-o", "rw,frobnicate", scratch / "s", scratch), 2, "frobnicate", "odirect=safe|raw", "quiet=")
    for size in ("0", "5X", "1M"):
        status_is(ckptfs("mount", "--image", size, scratch / "s", scratch), 2)
    true(not (scratch / "s").exists(), "a usage error made the store")


def test_doctor(scratch):
    done = ckptfs("doctor", "--json", scratch)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    names = ("kernel", "libfuse", "/dev/fuse", "privileges", "request size", "wake-ups", "file system", "loop devices")
    for name in (*names, "mkfs.xfs"):
        true(name in checks, f"doctor does not look at {name}")
    equal(done.returncode, int(any(check["verdict"] == "FAIL" for check in checks.values())), "exit status")
    for check in checks.values():
        equal(check["verdict"] == "ok", check["advice"] == "", f"{check['name']}: advice where something is missing")
    equal(checks["file system"]["verdict"], "warn", f"no reflink on {scratch}: {checks['file system']}")
    true("--image" in checks["file system"]["advice"], "the advice is an image")
    equal(os.listdir(scratch), [], "what doctor left behind")
    text = ckptfs("doctor", scratch).stdout
    true("\033" not in text and "-> " in text and "warn" in text, f"as text: {text}")
    equal(ckptfs("doctor", scratch / "nowhere").returncode, 1, "of a folder that is not there")


def test_doctor_on_xfs(scratch):
    with xfs(scratch, name="doctored") as disk:
        done = ckptfs("doctor", "--json", disk)
        check = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "file system")
        equal(check["verdict"], "ok", str(check))
        true("xfs" in check["found"] and "reflink" in check["found"], str(check))


def test_paths_that_are_no_mount(scratch):
    for command in ("ls", "du", "status", "umount"):
        status_is(ckptfs(command, scratch), 1, str(scratch), "not on a ckptfs mount")
    status_is(ckptfs("save", "tag", scratch), 1, str(scratch), "not on a ckptfs mount")
    status_is(ckptfs("fsck", scratch / "nowhere"), 1, str(scratch / "nowhere"))


def test_refusals_of_mount(scratch):
    store, point = scratch / "refused", folder(scratch, "point")
    status_is(ckptfs("mount", store, scratch / "nowhere"), 1, str(scratch / "nowhere"), "mkdir")
    write(scratch / "file", b"")
    status_is(ckptfs("mount", store, scratch / "file"), 1, "no directory")
    status_is(ckptfs("mount", point / "store", point), 1, "below the mountpoint")
    status_is(ckptfs("mount", point, point), 1, "below the mountpoint")
    inner = folder(point, "inner")
    status_is(ckptfs("mount", point, inner), 1, "in the store")
    status_is(ckptfs("mount", "--log", point / "log", store, point), 1, "log", "below the mountpoint")
    copy = scratch / "ckptfs"
    shutil.copy(CKPTFS, copy)
    status_is(run(copy, "mount", store, point, check=False, user=NOBODY, group=NOBODY, cwd="/"), 1, str(scratch), "sudo")
    equal(mount_types_at(point), [], "something was mounted")
    true(not store.exists(), "a refused mount made the store")


def test_no_reflink_is_refused_with_the_advice(scratch):
    point = folder(scratch, "plain")
    done = status_is(ckptfs("mount", scratch / "on-tmpfs", point), 1, "--image", "share blocks")
    equal(done.stdout, "", "stdout")
    equal(mount_types_at(point), [], "something was mounted")


# --- on an image


@pytest.fixture
def on(scratch):
    return OnImage(scratch)


class OnImage:
    """A store on an image of its own, with a mount point whose name has a space."""

    def __init__(self, work):
        self.work, self.store, self.point = work, work / "store", folder(work, "the mount")
        self.log = work / "daemon.log"

    def mount(self, *words):
        return run(CKPTFS, "mount", "--log", self.log, *words, self.store, self.point, check=False)

    def umount(self):
        return status_is(ckptfs("umount", self.point), 0)

    def image_is_down(self):
        equal(mount_types_at(self.store / "fs"), [], "the image is still mounted")
        equal(run("losetup", "-j", self.store / "image.xfs").stdout, "", "a loop device is left")

    def kill(self):
        pid = daemon_of(self.point)
        os.kill(pid, signal.SIGKILL)
        wait_until("the daemon's end", lambda: ended(pid))
        wait_until("the mount is dead", self.is_dead)

    def is_dead(self):
        """Returns whether the mount is dead. A request that a dying thread was just receiving fails with EIO."""
        try:
            os.getxattr(self.point, "user.ckptfs.socket")  # stat could still be answered from the kernel's cache
        except OSError as problem:
            return problem.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        return False


def test_image_made_and_found_again(on):
    status_is(on.mount("--image", IMAGE), 0)
    equal(mount_types_at(on.point), ["fuse.ckptfs"], "the mount")
    equal(mount_types_at(on.store / "fs"), ["xfs"], "the image")
    info = os.stat(on.store / "image.xfs")
    true(info.st_blocks * 512 >= info.st_size, "the image is not allocated in full")
    write(on.point / "file", noise(100000))
    number = os.stat(on.point / "file").st_ino
    on.umount()
    equal(mount_types_at(on.point), [], "still mounted")
    on.image_is_down()
    status_is(on.mount(), 0)
    same_bytes(read(on.point / "file"), noise(100000), "after the next mount")
    equal(os.stat(on.point / "file").st_ino, number, "its inode number")
    status_is(ckptfs("mount", "--image", "1G", on.store, folder(on.work, "other size")), 1, "image")
    equal(mount_types_at(on.store / "fs"), ["xfs"], "the image that another daemon uses")
    on.umount()
    on.image_is_down()
    status_is(on.mount("--image", "1G"), 1, "512M")
    on.image_is_down()


def test_a_start_that_fails_says_why(on):
    folder(on.work, "is-a-folder")
    status_is(run(CKPTFS, "mount", "--log", on.work / "is-a-folder", on.store, on.point, check=False), 1, "is-a-folder")
    equal(mount_types_at(on.point), [], "something was mounted")


def test_second_daemon_is_refused(on):
    status_is(on.mount("--image", IMAGE, "--sparse"), 0)
    other = folder(on.work, "second")
    status_is(on.mount(), 1, str(on.point), "already", "umount")
    status_is(ckptfs("mount", on.store, other), 1, str(on.store))
    equal(mount_types_at(other), [], "the second mount")
    equal(mount_types_at(on.store / "fs"), ["xfs"], "the first one's image")
    write(on.point / "still", b"alive")
    status_is(ckptfs("fsck", on.store), 1)
    on.umount()
    on.image_is_down()
    status_is(ckptfs("fsck", on.store), 0)
    on.image_is_down()


def test_dead_mount_is_replaced(on):
    status_is(on.mount("--image", IMAGE, "--sparse"), 0)
    write(on.point / "kept", noise(5000))
    on.kill()
    for command in ("ls", "status"):
        status_is(ckptfs(command, on.point), 1, "daemon is dead", "ckptfs umount")
    status_is(on.mount(), 0, "detached")
    equal(mount_types_at(on.point), ["fuse.ckptfs"], "one mount")
    same_bytes(read(on.point / "kept"), noise(5000), "after kill -9")
    equal(json.loads(run(CKPTFS, "status", "--json", on.point).stdout)["recovery"]["clean"], False, "recovery.clean")
    on.umount()
    on.image_is_down()


def test_dead_mount_is_unmounted(on):
    status_is(on.mount("--image", IMAGE, "--sparse"), 0)
    on.kill()
    done = on.umount()
    true("died" in done.stdout and "image" in done.stdout, f"not said: {done.stdout}")
    equal(mount_types_at(on.point), [], "the dead mount")
    on.image_is_down()


def test_a_sparse_image_has_what_its_host_has(on):
    with xfs(on.work, size=1 << 30, name="host") as host:
        on.store = host / "store"
        status_is(on.mount("--image", "8G", "--sparse"), 0)
        try:
            with open(host / "others", "wb") as others:
                os.posix_fallocate(others.fileno(), 0, free_bytes(host) - (400 << 20))
            free = free_bytes(on.point)
            true(free <= free_bytes(host), f"free: {free} on a host with {free_bytes(host)}")
            status = json.loads(run(CKPTFS, "status", "--json", on.point).stdout)["space"]
            true(status["raw_free"] <= free_bytes(host), f"status: {status}")
        finally:
            on.umount()
        on.image_is_down()


@pytest.mark.builds("asan")
def test_unmounted_by_umount_and_mounted_again(on):
    """umount(8) does not know of the daemon, which must still write the end of the store and of its image."""
    for image in ("--image=" + IMAGE, None):
        if image is None:
            on.store = on.work / "disk/store"
        with xfs(on.work) if image is None else contextlib.nullcontext():
            environment = dict(os.environ, CKPTFS_FAULTS="store.close=sleep:2500")
            words = [CKPTFS_DEBUG, "mount", "--log", on.log, *([image, "--sparse"] if image else []), on.store, on.point]
            status_is(run(*words, check=False, env=environment), 0)
            write(on.point / "file", noise(5000))
            run("umount", on.point)
            status_is(on.mount(), 0, str(on.store), "waiting for the daemon")
            same_bytes(read(on.point / "file"), noise(5000), "after the next mount")
            equal(json.loads(run(CKPTFS, "status", "--json", on.point).stdout)["recovery"]["clean"], True, "clean")
            on.umount()
    on.image_is_down()


# --- on a mount; `shared` is one for all


@pytest.mark.builds("asan")
def test_umount_fails_where_not_all_is_written_down(disk, work):
    with mounted(Store(disk / "unwritten"), work / "mnt-unwritten", mode="direct", binary=CKPTFS_DEBUG,
                 faults="store.close=error:EIO") as mount:
        status_is(ckptfs("umount", mount.path), 1, "not everything was written down", "Input/output error", "log")
        mount.wait_for_end()


def test_a_lazy_umount_leaves(shared):
    with open(shared.path / "held", "wb") as held:
        done = status_is(ckptfs("umount", "--lazy", shared.path), 0, "until these",
                         f"pid {os.getpid()} (", f"kill {shared.pid}")
        true("--lazy" in done.stderr, f"it says that it leaves: {done.stderr}")
        equal(mount_types_at(shared.path), [], "still mounted")
        held.write(b"served")
    shared.wait_for_end()
    shared.start()
    equal(read(shared.path / "held"), b"served", "what was written behind the umount")
    status_is(ckptfs("umount", "--lazy", shared.path), 0)
    shared.wait_for_end()
    shared.start()


def test_the_kernels_options(shared):
    write(shared.path / "program", b"#!/bin/sh\nexit 0\n")
    os.chmod(shared.path / "program", 0o755)
    state = write_state(shared.path)
    shared.save("kept")
    shared.stop()
    status_is(ckptfs("mount", "-o", "remount,ro", shared.store.folder, shared.path), 2, "remount", "umount")
    status_is(ckptfs("mount", "-o", "ro,noatime,noexec", shared.store.folder, shared.path), 0)
    try:
        for change in (lambda: write(shared.path / "new", b""), lambda: write(shared.path / "program", b""),
                       lambda: os.mkdir(shared.path / "folder"), lambda: os.unlink(shared.path / "program"),
                       lambda: os.setxattr(shared.path / "steps", "user.ckptfs.save", b"other")):
            with raises(errno.EROFS, what="a change"):
                change()
        for words in (("save", "other", shared.path), ("rm", shared.path / "steps/kept"),
                      ("policy", shared.path / "steps", "--set", "keep_last=1")):
            status_is(ckptfs(*words), 1, "read-only")
        with raises(errno.EACCES, what="noexec"):
            subprocess.run([shared.path / "program"], check=False)
        equal(len(list((shared.path / "steps/kept").rglob("*.swp"))), len(state), "the step's files")
    finally:
        status_is(ckptfs("umount", shared.path), 0)
    shared.start()
    (shared.path / "folder").mkdir()


def test_busy_umount_names_the_holders(shared):
    (shared.path / "sub").mkdir()
    write(shared.path / "held", b"x" * 4096)
    program = "import mmap,os,sys\nf=os.open(sys.argv[1],os.O_RDWR)\nm=mmap.mmap(f,4096)\nprint(flush=True)\nsys.stdin.read()\n"
    holder = subprocess.Popen([sys.executable, "-c", program, shared.path / "held"], cwd=shared.path / "sub",
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        done = status_is(ckptfs("umount", shared.path), 1, str(shared.path), "busy", f"pid {holder.pid} (python",
                         str(shared.path / "held"), f"working directory: {shared.path / 'sub'}")
        equal(done.stderr.count(f"{shared.path / 'held'}\n"), 1, "times that the file is named")
        true(shared.alive(), "the daemon went although the mount was busy")
    finally:
        holder.communicate()
    same_bytes(read(shared.path / "held"), b"x" * 4096, "after the refused umount")


def test_busy_umount_names_mounts_on_top(shared):
    (shared.path / "top").mkdir()
    run("mount", "-t", "tmpfs", "none", shared.path / "top")
    try:
        status_is(ckptfs("umount", shared.path), 1, "mounted on top", str(shared.path / "top"))
    finally:
        run("umount", shared.path / "top")


def test_umount_waits_for_the_daemon(shared):
    pid = shared.pid
    status_is(ckptfs("umount", shared.path), 0)
    true(ended(pid), "umount returned before the daemon's end")
    shared.pid = None
    shared.start()


def test_umount_names_the_containers_that_have_it_too(shared):
    """The command that it prints must end the mount in the container."""
    container = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "1000"])
    try:
        wait_until("the container is there", lambda: pathlib.Path(f"/proc/{container.pid}/comm").read_text() == "sleep\n")
        unmounting = subprocess.Popen([CKPTFS, "umount", shared.path], stderr=subprocess.PIPE, text=True)
        said = [unmounting.stderr.readline() for _ in range(3)]
        true(str(shared.path) in said[0] and "containers" in said[0], f"it says so: {said}")
        true("# of sleep" in said[1] and f"kill {shared.pid}" in said[2], f"it says who: {said}")
        equal(unmounting.poll(), None, "umount waits")
        run("bash", "-c", said[1])
        equal(unmounting.wait(30), 0, "umount's status")
    finally:
        container.kill()
        container.wait()
    shared.wait_for_end()
    shared.start()


def test_a_daemon_that_serves_containers_only_leaves_its_old_place_alone(shared):
    container = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "1000"])
    try:
        wait_until("the container is there", lambda: pathlib.Path(f"/proc/{container.pid}/comm").read_text() == "sleep\n")
        unmounting = subprocess.Popen([CKPTFS, "umount", shared.path], stderr=subprocess.PIPE, text=True)
        true("containers" in unmounting.stderr.readline(), "umount says so")
        unmounting.kill()
        unmounting.communicate()
        with mounted(Store(shared.store.folder.parent / "next-store"), shared.path):
            os.kill(shared.pid, signal.SIGTERM)
            wait_until("the daemon ends", lambda: "unmounted already" in shared.read_log())
            write(shared.path / "file", b"x")
            equal(mount_types_at(shared.path), ["fuse.ckptfs"], "what is mounted there now")
            container.kill()
            shared.wait_for_end()
    finally:
        container.kill()
        container.wait()
    shared.start()


def test_umount_of_a_folder_inside(shared):
    (shared.path / "inside").mkdir()
    status_is(ckptfs("umount", shared.path / "inside"), 1, "no mountpoint")
    true(os.path.ismount(shared.path), "it was unmounted all the same")


def test_umount_without_the_control_socket(shared):
    socket = os.getxattr(shared.path, "user.ckptfs.socket").decode()
    os.remove(socket)
    status_is(ckptfs("status", shared.path), 1, "control socket")
    status_is(ckptfs("umount", shared.path), 0, "did not answer")
    shared.wait_for_end()
    shared.start()


def test_umount_under_a_daemon_that_hangs(shared):
    os.kill(shared.pid, signal.SIGSTOP)
    try:
        status_is(ckptfs("umount", shared.path), 0, "did not answer")
    finally:
        os.kill(shared.pid, signal.SIGCONT)
    shared.wait_for_end()
    shared.start()


def test_a_daemon_that_is_stopped_is_named(shared):
    """A command says which daemon does not answer, instead of waiting for it. Other mounts are looked at all the same."""
    second = shared.path.parent / "second-mount"
    with mounted(Store(shared.store.folder.parent / "second-store"), second):
        os.kill(shared.pid, signal.SIGSTOP)
        try:
            wait_until("the daemon is stopped", lambda: state_of(shared.pid) == "T")
            for words in (("status",), ("save", "global_step1")):
                status_is(ckptfs(*words, shared.path, timeout=30), 1, str(shared.path), "does not answer")
            status_is(ckptfs("ls", shared.path / "steps", timeout=30), 1, str(shared.path), "does not answer")
            status_is(ckptfs("status", second), 0)
            checks = json.loads(ckptfs("doctor", "--json", shared.path.parent, timeout=30).stdout)["checks"]
            found = [check["found"] for check in checks if check["name"] == "mount"]
            true(any(str(shared.path) in one and "does not answer" in one for one in found), f"the stopped one: {found}")
            true(f"{second}: its daemon answers" in found, f"the other one: {found}")
            checks = json.loads(ckptfs("doctor", "--json", shared.path, timeout=30).stdout)["checks"]
            found = [check for check in checks if check["name"] == "file system"]
            true(found[0]["verdict"] == "FAIL" and "does not answer" in found[0]["found"], f"of a folder on it: {found}")
        finally:
            os.kill(shared.pid, signal.SIGCONT)
    status_is(ckptfs("status", shared.path), 0)


def test_only_mount_or_named(shared):
    text = pathlib.Path("/proc/self/mountinfo").read_text(errors="replace")
    count = len({line.split(" ")[2] for line in text.splitlines() if " - fuse.ckptfs " in line})
    done = ckptfs("ls")
    if count == 1:
        status_is(done, 0)
    else:
        status_is(done, 1, "say which one", str(shared.path))
    second = shared.path.parent / "second-mount"
    with mounted(Store(shared.store.folder.parent / "second-store"), second):
        status_is(ckptfs("ls"), 1, "say which one", str(shared.path), str(second))
        status_is(ckptfs("ls", second), 0)


def test_status_and_socket(shared):
    status = json.loads(status_is(ckptfs("status", "--json", shared.path), 0).stdout)
    for key in ("mountpoint", "store", "mount_id", "pid", "version", "passthrough", "odirect", "alignment", "space",
                "recovery", "counters", "open_files", "warnings"):
        true(key in status, f"status --json lacks {key}")
    equal(status["mountpoint"], str(shared.path), "mountpoint")
    equal(status["pid"], shared.pid, "pid")
    socket = os.getxattr(shared.path, "user.ckptfs.socket").decode()
    equal(socket, f"/run/ckptfs/{status['mount_id']}.sock", "socket")
    equal(stat.S_IMODE(os.stat(socket).st_mode), 0o666, "the socket's mode")
    text = status_is(ckptfs("status", shared.path), 0).stdout
    for words in (str(shared.path), str(shared.store.folder), "mode", "space", f"pid {shared.pid}", "at the start"):
        true(words in text, f"status lacks {words}: {text}")
    shared.stop()
    true(not os.path.exists(socket), "the socket is still there after umount")
    shared.start()


def test_how_the_daemon_lives(shared):
    proc = pathlib.Path(f"/proc/{shared.pid}")
    capabilities = next(line for line in (proc / "status").read_text().splitlines() if line.startswith("CapEff"))
    may = int(capabilities.split()[1], 16) >> 24 & 1  # CAP_SYS_RESOURCE
    if may:
        equal((proc / "oom_score_adj").read_text().strip(), "-900", "oom_score_adj")
    else:
        log = shared.log.read_text()
        for words in ("oom_score_adj", "PR_SET_IO_FLUSHER", "RLIMIT_NOFILE"):
            true(words in log, f"what the daemon may not do is not in its log: {words}")
    equal([os.readlink(proc / "fd" / str(number)) for number in range(3)], ["/dev/null"] * 3, "stdio")
    equal(os.readlink(proc / "cwd"), "/", "working directory")
    equal(os.getsid(shared.pid), shared.pid, "session")
    limits = (proc / "limits").read_text()
    soft, hard = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3:5]
    equal(soft, hard, "descriptors: soft and hard limit")
    true(int(soft) >= 65536 or not may, f"descriptors: {soft}")


def test_save_and_ls(mount):
    status_is(ckptfs("save", "early", mount.path), 1, what="a save without swap files")
    state = write_state(mount.path)
    text = status_is(ckptfs("save", "global_step1", mount.path), 0).stdout
    true(f"{len(state)} swap files" in text and "swap state only" in text and "durable" in text, f"save says: {text}")
    result = json.loads(status_is(ckptfs("save", "--json", "second", mount.path), 0).stdout)
    equal((result["files"], result["cloned"]), (len(state), 0), "a second save of an unchanged state")
    status_is(ckptfs("save", "second", mount.path), 0, what="the same tag, nothing changed")
    write_state(mount.path, 1)
    status_is(ckptfs("save", "second", mount.path), 1, "second")
    for tag in ("latest", "..", "a/b", "a\nb"):
        status_is(ckptfs("save", tag, mount.path), 1)
    status_is(ckptfs("save", "--series", mount.path / "nowhere", "x", mount.path), 1, "nowhere")

    rows = json.loads(status_is(ckptfs("ls", "--json", mount.path), 0).stdout)["steps"]
    equal([row["tag"] for row in rows], ["global_step1", "second"], "tags")
    equal((rows[0]["series"], rows[0]["files"], rows[0]["kind"]), ("/steps", len(state), "swap state only"), "row")
    equal(rows[0]["bytes"], sum(map(len, state.values())), "bytes")
    equal(json.loads(ckptfs("ls", "--json", mount.path / "steps").stdout)["steps"], rows, "of the series")
    equal(json.loads(ckptfs("ls", "--json", mount.path / "steps/second").stdout)["steps"], rows[1:], "of one step")
    text = status_is(ckptfs("ls", mount.path), 0).stdout
    true("TAG" in text and "global_step1" in text and "\033" not in text, f"ls says: {text}")
    equal(len({line.find("swap state only") for line in text.splitlines() if "swap state" in line}), 1, "column")
    (mount.path / "folder").mkdir()
    status_is(ckptfs("ls", mount.path / "folder"), 1, "neither a series nor a step")
    status_is(ckptfs("ls", mount.path / "nowhere"), 1, "nowhere")

    # Another series: by its path on the machine, and by its path from the mount's root.
    (mount.path / "runs").mkdir()
    status_is(ckptfs("save", "--series", mount.path / "runs", "r1"), 0)
    status_is(ckptfs("save", "--series", "/runs", "r2", mount.path), 0)
    equal([row["tag"] for row in json.loads(ckptfs("ls", "--json", mount.path / "runs").stdout)["steps"]], ["r1", "r2"],
          "the other series")


def nobodys_command(mount):
    """Returns a function that runs ckptfs as nobody. It runs a copy, because nobody may not enter the build folder."""
    copy = mount.path.parent / "ckptfs"
    if not copy.exists():
        shutil.copy(CKPTFS, copy)

    def as_nobody(*words, groups=()):
        return run(copy, *words, check=False, user=NOBODY, group=NOBODY, extra_groups=list(groups), cwd="/")

    return as_nobody


def test_show(mount):
    state = step_of(write_state(mount.path))
    status_is(ckptfs("save", "s1", mount.path), 0)
    step = mount.path / "steps/s1"
    write(step / "model.safetensors", safetensors({"b": ("F32", [3, 2], bytes(24)), "a.weight": ("BF16", [4], bytes(8))}))
    (step / "config.json").write_text("{}")
    told = json.loads(status_is(ckptfs("show", "--json", step), 0).stdout)
    equal((told["step"]["series"], told["step"]["tag"], told["step"]["files"]), ("/steps", "s1", len(state) + 2), "step")
    files = {file["path"]: file for file in told["files"]}
    equal(len(files), len(state) + 2, "files")
    for path, data in state.items():
        equal((files[path]["apparent"], files[path]["exclusive"]), (len(data), 0), f"{path} is shared")
    equal([(tensor["name"], tensor["shape"], tensor["dtype"], tensor["bytes"]) for tensor in told["tensors"]],
          [("b", [3, 2], "float32", 24), ("a.weight", [4], "bfloat16", 8)], "tensors")
    text = status_is(ckptfs("show", step), 0).stdout
    for words in ("/steps/s1", "EXCLUSIVE", "model.safetensors", "TENSOR", "a.weight", "[3, 2]", "[4]"):
        true(words in text, f"show lacks {words!r}: {text}")
    true("TENSOR" not in status_is(ckptfs("show", "--files", step), 0).stdout, "--files")
    true("EXCLUSIVE" not in status_is(ckptfs("show", "--tensors", step), 0).stdout, "--tensors")
    status_is(ckptfs("show", "--tensors", "--files", step), 2)
    status_is(ckptfs("show", mount.path / "steps"), 1, "no step", "ckptfs ls")
    status_is(ckptfs("show", mount.path / "steps/nothing"), 1, "nothing")
    # A user who may list the step but read no file of it gets names and sizes, but no tensors, and is told why.
    (step / "model.safetensors").chmod(0o600)
    done = nobodys_command(mount)("show", "--json", step)
    equal(json.loads(done.stdout)["files"], told["files"], "files, as somebody else sees them")
    true("tensors" not in json.loads(done.stdout), "tensors of files that one may not read")
    status_is(done, 1, "tensors are not shown", "ermission denied")


def test_disk_use(mount):
    size = sum(map(len, write_state(mount.path).values()))
    status_is(ckptfs("save", "s1", mount.path), 0)
    status_is(ckptfs("save", "s2", mount.path), 0)
    told = json.loads(status_is(ckptfs("du", "--json", mount.path), 0).stdout)
    equal([(row["series"], row["tag"], row["apparent"]) for row in told["steps"]],
          [("/steps", "s1", size), ("/steps", "s2", size)], "rows")
    equal((told["steps"][0]["exclusive"], told["live"]["exclusive"]), (0, 0), "all is shared")
    equal((told["series"]["/steps"]["apparent"], told["live"]["apparent"]), (2 * size, size), "together, and live")
    equal(json.loads(ckptfs("du", "--json", mount.path / "steps").stdout)["steps"], told["steps"], "of the series")
    equal(json.loads(ckptfs("du", "--json", mount.path / "steps/s2").stdout)["steps"], told["steps"][1:], "of one step")
    text = status_is(ckptfs("du", mount.path), 0).stdout
    for words in ("TAG", "EXCLUSIVE", "s1", "(together)", "live swap files", "everything else"):
        true(words in text, f"du lacks {words!r}: {text}")
    true("live swap files" not in status_is(ckptfs("du", mount.path / "steps/s1"), 0).stdout, "one step alone")
    shutil.rmtree(mount.path / STAGE)
    alone = json.loads(ckptfs("du", "--json", mount.path).stdout)
    equal(alone["series"]["/steps"]["shared"] + alone["series"]["/steps"]["exclusive"], told["steps"][0]["shared"],
          "what both steps use")
    status_is(ckptfs("du", mount.path / "nowhere"), 1, "nowhere")


def on_a_terminal(*words, **options):
    """Returns the exit code, and the output of a command on its own terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen([str(word) for word in words], stdin=its, stdout=its, stderr=its, start_new_session=True, **options)
    os.close(its)
    text = b""
    with contextlib.suppress(OSError):  # EIO: the command has closed the terminal
        while part := os.read(ours, 4096):
            text += part
    os.close(ours)
    return process.wait(60), text.decode()


@pytest.mark.builds("asan")
def test_what_takes_long_says_so(disk, work):
    """After a second a line shows progress; it disappears at the end. Without a terminal there is no such line."""
    mount = Mount(Store(disk / "slow"), work / "slow", mode="direct", binary=CKPTFS_DEBUG, faults="save.before_publish=sleep:2600")
    try:
        mount.start()
        write_state(mount.path, ranks=1, groups=("0_2",))
        code, text = on_a_terminal(CKPTFS, "save", "s1", mount.path)
        equal(code, 0, text)
        true("\rsaving: 1 s" in text.replace("\033[K", "") and "saving: 2 s" in text, f"a save says: {text!r}")
        true("\r\033[K" in text[text.rindex("saving: "):], f"the line stays: {text!r}")
        true("durable" in text, f"what it says then: {text!r}")
        write_state(mount.path, 1, ranks=1, groups=("0_2",))
        done = run(CKPTFS, "save", "s2", mount.path)
        equal(done.stderr, "", "stderr that is no terminal")
        code, text = on_a_terminal(CKPTFS, "ls", mount.path)
        true("\033[32mcomplete\033[0m" in text, f"colour on a terminal: {text!r}")
    finally:
        abandon(mount)


def test_permissions(mount):
    write_state(mount.path)
    os.chmod(mount.path, 0o755)
    os.chmod(mount.path / "steps", 0o755)
    as_nobody = nobodys_command(mount)
    copy = mount.path.parent / "ckptfs"
    if not copy.exists():
        shutil.copy(CKPTFS, copy)

    status_is(as_nobody("ls", mount.path), 0)
    status_is(as_nobody("status", mount.path), 0)
    status_is(as_nobody("save", "n1", mount.path), 1, "permission denied", "/steps")
    os.chown(mount.path / "steps", 0, 4242)
    os.chmod(mount.path / "steps", 0o775)
    status_is(as_nobody("save", "n1", mount.path), 1, "permission denied")
    status_is(as_nobody("save", "n1", mount.path, groups=[4242]), 1, "uid 65534 may save")  # the state is root's
    for folder, _, files in os.walk(mount.path / "zero_stage_3"):
        for path in (pathlib.Path(folder), *(pathlib.Path(folder) / name for name in files)):
            os.chown(path, NOBODY, NOBODY)
    status_is(as_nobody("save", "n1", mount.path, groups=[4242]), 0)
    equal(os.stat(mount.path / "steps/n1").st_uid, NOBODY, "the step's owner")
    os.chmod(mount.path / "steps", 0o700)
    for command in ("ls", "du"):
        rows = json.loads(as_nobody(command, "--json", mount.path).stdout)["steps"]
        equal(rows, [], f"steps that nobody may not see, by {command}")
        status_is(as_nobody(command, mount.path / "steps"), 1)
    status_is(as_nobody("umount", mount.path), 1, "root")


def test_foreground(shared):
    shared.stop()
    log = shared.path.parent / "foreground.txt"
    with open(log, "wb") as stderr:
        daemon = subprocess.Popen([CKPTFS, "mount", "-f", shared.store.folder, shared.path], stderr=stderr)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        wait_until("the mount", lambda: mount_types_at(shared.path) == ["fuse.ckptfs"])
        write(shared.path / f"by-{number}", b"x")
        daemon.send_signal(number)
        equal(daemon.wait(60), 0, f"exit status after signal {number}")
        equal(mount_types_at(shared.path), [], "still mounted")
        with open(log, "ab") as stderr:
            daemon = subprocess.Popen([CKPTFS, "mount", "-f", shared.store.folder, shared.path], stderr=stderr)
    wait_until("the mount", lambda: mount_types_at(shared.path) == ["fuse.ckptfs"])
    equal(json.loads(run(CKPTFS, "status", "--json", shared.path).stdout)["recovery"]["clean"], True, "ended cleanly")
    status_is(ckptfs("umount", shared.path), 0)
    equal(daemon.wait(60), 0, "exit status after umount")
    true(str(shared.path) in log.read_text(), "the log is not on stderr")
    shared.start()


def test_as_fstab_calls_it(shared):
    shared.stop()
    status_is(ckptfs(shared.store.folder, shared.path, "-o", "rw,nofail,_netdev,x-systemd.automount,dev,suid"), 0)
    equal(mount_types_at(shared.path), ["fuse.ckptfs"], "the mount")
    status_is(ckptfs("umount", shared.path), 0)
    shared.start()


def test_fsck_of_a_store(mount):
    write_state(mount.path)
    status_is(ckptfs("fsck", mount.store.folder), 1, str(mount.store.folder), what="of a mounted store")
    mount.stop()
    report = json.loads(status_is(ckptfs("fsck", "--json", mount.store.folder), 0).stdout)
    equal((report["problems"], report["orphans"], report["clean_unmount"]), ([], [], True), "fsck --json")
    true(report["blobs"] > 0 and report["bytes"] > 0, f"fsck --json: {report}")
    true("no problems" in status_is(ckptfs("fsck", mount.store.folder), 0).stdout, "in words")
    blob = max((file for file in mount.store.blobs.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    kept = blob.rename(mount.store.folder.parent / "taken-away")
    true(ckptfs("fsck", mount.store.folder).returncode == 1, "a missing blob is no problem?")
    kept.rename(blob)
    status_is(ckptfs("fsck", mount.store.folder), 0)
    mount.start()
