"""`ckptfs mount` and `ckptfs umount`: the life of a mount, of its daemon and of its image."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from calling import ckptfs, daemon_of, ended, mount_types_at, status_is
from checking import equal, noise, opened, raises, read, same_bytes, true, write
from mounting import CKPTFS, CKPTFS_DEBUG, Store, free_bytes, mounted, run, wait_until, xfs
from training import write_state

pytestmark = pytest.mark.mode("direct")

NOBODY = 65534
IMAGE = "512M"


def folder(work, name):
    made = work / name
    made.mkdir()
    return made


def test_refusals_of_mount(scratch):
    store, point = scratch / "refused", folder(scratch, "point")
    status_is(ckptfs("mount", store, scratch / "nowhere"), 1, str(scratch / "nowhere"), "mkdir")
    status_is(ckptfs("mount", scratch / "no" / "disk" / "store", point), 1, f"mkdir -p {scratch / 'no' / 'disk'}")
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


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_limits_of_the_shell_do_not_end_the_daemon(on, kind):
    """They are meant for one program. A write beyond `ulimit -f` would kill the daemon of all users."""
    status_is(on.mount("--image", IMAGE), 0)
    on.umount()
    words = {"soft": "ulimit -S -f 65536 -t 3600 -v 9000000", "hard": "ulimit -f 65536"}[kind]
    status_is(run("bash", "-c", f'{words}; exec "$@"', "mount", CKPTFS, "mount", "--log", on.log, "-o",
                  "passthrough=off", on.store, on.point,
                  check=False), 0)
    pid = daemon_of(on.point)
    limits = {line[:26].strip(): line[26:].split()[0] for line in pathlib.Path(f"/proc/{pid}/limits").read_text().splitlines()}
    raised = limits["Max file size"] == "unlimited"
    true(raised or kind == "hard", f"limits: {limits}")  # a hard one can be raised where there is CAP_SYS_RESOURCE
    if kind == "soft":
        equal({limits[f"Max {what}"] for what in ("cpu time", "address space", "data size")}, {"unlimited"}, "other limits")
    with opened(on.point / "file", os.O_CREAT | os.O_WRONLY) as file:
        with contextlib.nullcontext() if raised else raises(errno.EFBIG):
            os.pwrite(file, noise(1 << 20), 70 << 20)
    equal(daemon_of(on.point), pid, "the daemon")
    on.umount()


def test_image_made_and_found_again(on):
    done = status_is(on.mount("--image", IMAGE), 0)
    equal(done.stdout, f"{on.store} is mounted at {on.point}\n", "what is said")
    equal(mount_types_at(on.point), ["fuse.ckptfs"], "the mount")
    equal(mount_types_at(on.store / "fs"), ["xfs"], "the image")
    for place in (on.store, on.point):
        [check] = [check for check in json.loads(ckptfs("doctor", "--json", place).stdout)["checks"]
                   if check["name"] == "file system"]
        equal((check["verdict"], check["advice"]), ("ok", ""), f"doctor of {place}: {check}")
    true(str(on.point) in status_is(ckptfs("ls", on.point), 0).stdout, "ls names the folder to save into")
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


def test_what_programs_are_told(on):
    """--json: of a mount its status, of its end how the daemon went; of what fails nothing but the words on stderr."""
    def umount(*words, status=0):
        return status_is(ckptfs("umount", "--json", *words, on.point), status).stdout

    def told(daemon):
        return {"mountpoint": str(on.point), "store": str(on.store), "daemon": daemon}

    status = json.loads(status_is(on.mount("--json", "--image", IMAGE), 0).stdout)
    equal(status.keys(), json.loads(ckptfs("status", "--json", on.point).stdout).keys(), "the fields")
    equal((status["mountpoint"], status["pid"]), (str(on.point), daemon_of(on.point)), "the mount")
    equal(status_is(on.mount("--json"), 1, "already").stdout, "", "of a mount that is there")
    equal(json.loads(umount()), told("ended"), "the end")
    equal(umount(status=1), "", "of no mount")
    status_is(on.mount("--json", "--foreground"), 2, "--json")
    status_is(on.mount(), 0)
    with open(on.point / "held", "wb"):
        equal(umount(status=1), "", "of one that is busy")
        equal(json.loads(umount("--lazy")), told("serves"), "a lazy end")
    wait_until("the daemon has gone", lambda: on.mount().returncode == 0)
    on.kill()
    equal(json.loads(umount()), told("dead"), "of a dead one")
    on.image_is_down()


def test_status_warns_before_the_disk_is_full(on):
    def warns():
        return any("less than a twentieth" in warning for warning in json.loads(ckptfs("status", "--json", on.point).stdout)["warnings"])

    status_is(on.mount("--image", IMAGE), 0)
    true(not warns(), "there is room")
    with open(on.point / "file", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, free_bytes(on.point) - (8 << 20))
    true(warns(), "there is none, and nobody has swap files")
    on.umount()


@pytest.mark.builds("faults")
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


@pytest.mark.builds("faults")
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
                      ("policy", shared.path / "steps", "--set", "keep_last=1"),
                      ("verify", "--accept", shared.path / "steps/kept")):
            status_is(ckptfs(*words), 1, "read-only")
        with raises(errno.EACCES, what="noexec"):
            subprocess.run([shared.path / "program"], check=False)
        equal(len(list((shared.path / "steps/kept").rglob("*.swp"))), len(state), "the step's files")
    finally:
        status_is(ckptfs("umount", shared.path), 0)
    shared.start()
    (shared.path / "folder").mkdir()


def test_a_mount_point_that_is_made_read_only(shared):
    """The kernel tells the file system nothing of it. The commands ask the mount table."""
    write_state(shared.path)
    shared.save("held")
    run("mount", "-o", "remount,bind,ro", shared.path)
    try:
        with raises(errno.EROFS, what="a change"):
            write(shared.path / "new", b"")
        for words in (("save", "other", shared.path), ("rm", shared.path / "steps/held"),
                      ("thin", shared.path / "steps/held"), ("policy", shared.path / "steps", "--set", "keep_last=1"),
                      ("verify", "--accept", shared.path / "steps/held")):
            status_is(ckptfs(*words), 1, "read-only", "remount,bind,rw")
        true((shared.path / "steps/held").is_dir(), "the step is there")
    finally:
        run("mount", "-o", "remount,bind,rw", shared.path)
    status_is(ckptfs("rm", shared.path / "steps/held"), 0)


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
