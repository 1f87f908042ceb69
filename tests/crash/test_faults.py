"""The daemon dies at named points: between the clones and the record of a save, in a seal, in a removal, and others."""

import contextlib
import errno
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from checking import equal, noise, opened, raises, read, same_bytes, true, write
from mounting import CKPTFS_DEBUG, MIB, Failure, Skip, run, wait_until
from training import check_step, step_of, write_state
from viewing import RESUME, SERIES, full_step

pytestmark = pytest.mark.builds("faults")


def prepare(mount):
    """Makes a store with a saved step and newer live files. Returns both contents."""
    saved = step_of(write_state(mount.path))
    mount.save("before")
    write(mount.path / "plain", noise(50000))
    return saved, write_state(mount.path, 1)


def dies(mount, action):
    """Runs the action, which fails because the daemon dies."""
    try:
        action()
    except OSError as problem:
        true(problem.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV), f"cut off by {problem}")
    wait_until(f"the daemon dies at {mount.faults}", lambda: not mount.alive(), 20)


def blobs_of(mount):
    return sum(1 for path in mount.store.blobs.rglob("*") if path.is_file())


def in_save(mount, published):
    """The save is complete if it was published. Otherwise nothing of it is there, and it can be repeated."""
    saved, live = prepare(mount)
    blobs = mount.store.filled_blobs()
    yield lambda: mount.save("cut")
    if not published:
        equal(os.listdir(mount.path / "steps"), ["before"], "steps")
        wait_until("the clones of the lost save are gone", lambda: blobs_of(mount) <= blobs)
        mount.save("cut")
    check_step(mount.path / "steps/cut", step_of(live), "cut")
    check_step(mount.path / "steps/before", saved, "before")
    mount.save("next")
    check_step(mount.path / "steps/next", step_of(live), "next")


def in_unlink(mount):
    """The name is gone, or not. No blob is left over, and none is missing."""
    saved, live = prepare(mount)
    yield lambda: os.unlink(mount.path / "plain")
    with contextlib.suppress(FileNotFoundError):
        same_bytes(read(mount.path / "plain"), noise(50000), "plain")
        os.unlink(mount.path / "plain")
    check_step(mount.path / "steps/before", saved, "before")
    for name, data in live.items():
        same_bytes(read(mount.path / name), data, name)
    wait_until("no blob but those of names", lambda: blobs_of(mount) == len(live) + len(saved))


def in_seal(mount):
    """The step is complete, sealed or not. Then it can be sealed."""
    saved, live = prepare(mount)
    write(mount.path / "steps/before/model", noise(70000))
    saved["model"] = noise(70000)
    yield lambda: mount.seal("steps/before")
    check_step(mount.path / "steps/before", saved, "before")
    mount.seal("steps/before")
    with contextlib.suppress(PermissionError):
        os.close(os.open(mount.path / "steps/before/model", os.O_WRONLY))
        raise Failure("a sealed file was opened for writing")
    check_step(mount.path / "steps/before", saved, "before, sealed")
    for name, data in live.items():
        same_bytes(read(mount.path / name), data, name)


def in_create(mount):
    """No blob is left without a name, and no name without a blob."""
    saved, live = prepare(mount)
    yield lambda: write(mount.path / "new", b"x" * 1000)
    if (mount.path / "new").exists():
        true(len(read(mount.path / "new")) <= 1000, "readable")
        os.unlink(mount.path / "new")
    check_step(mount.path / "steps/before", saved, "before")
    wait_until("no blob but those of names", lambda: blobs_of(mount) == len(live) + len(saved) + 1)
    write(mount.path / "new", b"again")
    equal(read(mount.path / "new"), b"again", "content")


def in_thin(mount, thin):
    """The step is full, and can be thinned, or it is thin. None: either."""
    step, _ = full_step(mount, 1)
    full_step(mount, 2)
    names, model = set(os.listdir(step)), read(step / "model.safetensors")
    view = mount.path / "views" / SERIES / step.name
    wanted = read(view / "model.bf16.safetensors")
    yield lambda: run(mount.binary, "thin", "--to", "bf16", step, check=False, cwd="/")
    if "optimizer.pt" in os.listdir(step):
        true(thin is not True, "the step is thin")
        equal(set(os.listdir(step)), names, "the files of a full step")
        same_bytes(read(step / "model.safetensors"), model, "the weights of a full step")
        run(mount.binary, "thin", "--to", "bf16", step)
    else:
        true(thin is not False, "the step is full")
    equal(set(os.listdir(step)), (names - set(RESUME)) | {"ckptfs-thinned.json"}, "the files of a thin step")
    same_bytes(read(step / "model.safetensors"), wanted, "the weights of a thin step")
    same_bytes(read(view / "model.bf16.safetensors"), wanted, "the view of a thin step")
    equal(mount.ask(step, "state"), "weights", "state")
    kept = len(os.listdir(step)) + len(names)
    wait_until("no blob but those of names", lambda: mount.store.filled_blobs() == kept)


SCENES = {
    "thin.written": lambda mount: in_thin(mount, False),
    "thin.before_publish": lambda mount: in_thin(mount, False),
    "thin.after_batch": lambda mount: in_thin(mount, None),
    "thin.after_publish": lambda mount: in_thin(mount, True),
    "save.after_clones": lambda mount: in_save(mount, False),
    "save.before_publish": lambda mount: in_save(mount, False),
    "save.after_publish": lambda mount: in_save(mount, True),
    "unlink.after_batch": in_unlink,
    "reaper.before_remove": in_unlink,
    "reaper.after_remove": in_unlink,
    "seal.before_publish": in_seal,
    "create.after_blob": in_create,
}


@pytest.mark.parametrize("point", SCENES)
def test_dies_at(crashing_mount, point, mode):
    """Plays the scene up to its crash on a mount without faults, then the crash, then the rest on the next mount."""
    mount = crashing_mount(mode=mode, binary=CKPTFS_DEBUG)
    scene = SCENES[point](mount)
    action = next(scene)
    mount.faults = f"{point}=kill"
    mount.remount()
    dies(mount, action)
    mount.faults = None
    mount.start()
    next(scene, None)


# --- durable writes


@pytest.mark.mode("direct")
def test_writes_that_sync(crashing_mount, mode):
    """RWF_DSYNC and RWF_SYNC through the daemon, on an ordinary file and on one that is adopted."""
    mount = crashing_mount(mode=mode, faults="write_back.sync=error:EIO")
    for name in ("a", "b"):
        (mount.path / "steps" / name).mkdir()
    write(mount.path / "steps/a/model.pt", noise(MIB))
    with opened(mount.path / "steps/a/model.pt", os.O_RDONLY) as source, \
            opened(mount.path / "steps/b/model.pt", os.O_WRONLY | os.O_CREAT) as copy, \
            opened(mount.path / "plain", os.O_WRONLY | os.O_CREAT) as plain:
        for file in (copy, plain):
            os.pwrite(file, os.pread(source, MIB // 2, 0), 0)
        for flags in (os.RWF_DSYNC, os.RWF_SYNC):
            for file in (copy, plain):
                with raises(errno.EIO, what="a write that is to be synced"):
                    os.pwritev(file, [os.pread(source, MIB // 4, MIB // 2)], MIB // 2, flags)
        os.pwrite(plain, b"unsynced", 0)
    equal(mount.counted("adoptions"), 1, "adoptions")
    mount.kill()  # an unmount would sync


# --- an error that no program looked at


def test_an_error_stays_until_the_file_is_written_anew(crashing_mount, mode):
    """An allocation failed. Whatever is done to the file then, write_error tells it, and the step is damaged."""
    mount = crashing_mount(mode=mode, faults="fs.fallocate=1:error:ENOSPC")
    step, _ = full_step(mount, 1)
    model = step / "model.safetensors"
    size = model.stat().st_size
    wait_until("the step is complete", lambda: mount.ask(step, "state") == "complete")
    with opened(model, os.O_RDWR) as file:
        with raises(errno.ENOSPC, what="fallocate"):
            os.posix_fallocate(file, 0, 4 * MIB)
        told = mount.ask(model, "write_error")
        for what, act in {
            "ftruncate, longer": lambda: os.ftruncate(file, 4 * MIB),
            "ftruncate, shorter": lambda: os.ftruncate(file, size),
            "ftruncate, as long": lambda: os.ftruncate(file, size),
            "truncate, longer": lambda: os.truncate(model, 4 * MIB),
            "truncate, shorter": lambda: os.truncate(model, size),
            "fallocate": lambda: os.posix_fallocate(file, 0, 4 * MIB),
            "ftruncate behind it": lambda: os.ftruncate(file, size),
            "a write": lambda: os.pwrite(file, b"x", 0),
            "chmod": lambda: os.chmod(model, 0o600),
            "fsync": lambda: os.fsync(file),
        }.items():
            act()
            equal(mount.ask(model, "write_error"), told, f"write_error after {what}")
    os.close(os.open(model, os.O_WRONLY))
    os.rename(model, step / "other")
    os.rename(step / "other", model)
    equal(mount.ask(model, "write_error"), told, "write_error after an open and a rename")
    equal(mount.ask(step, "state"), "damaged", "the step's state")
    os.truncate(model, 0)
    with raises(errno.ENODATA, what="write_error of a file that was emptied"):
        mount.ask(model, "write_error")


# --- killed while the kernel holds a folder's lock for a request


def start_waiting(*command):
    """Starts a child process that will wait for the daemon."""
    return subprocess.Popen([sys.executable, "-c", *map(str, command)], stdout=subprocess.PIPE, text=True)


def requests(mount, operation):
    return mount.status()["counters"]["operations"].get(operation, 0)


def steps_to_remove(mount):
    write_state(mount.path)
    for tag in ("a", "b"):
        mount.save(tag)
        os.stat(mount.path / "steps" / tag)  # the kernel caches the name


@pytest.mark.one_mode  # the locks are those of names
def test_killed_in_a_save_beside_a_removal(crashing_mount, mode):
    """The kernel holds the series' lock for the trainer's setxattr. The daemon never waits for it, and ends at once."""
    mount = crashing_mount(mode=mode, faults="save.before_publish=3:sleep:600000")
    steps_to_remove(mount)
    before = requests(mount, "setxattr")
    trainer = start_waiting("import os, sys\ntry: os.setxattr(sys.argv[1], 'user.ckptfs.save', b'cut')\n"
                            "except OSError as problem: print(problem.errno)", mount.path / "steps")
    wait_until("the save has begun", lambda: requests(mount, "setxattr") > before)
    run(mount.binary, "rm", mount.path / "steps/a", cwd="/")
    os.kill(mount.pid, signal.SIGKILL)
    wait_until("the daemon ends", lambda: not mount.alive(), 20)
    true(int(trainer.communicate(timeout=20)[0]) in (errno.ENOTCONN, errno.ECONNABORTED), "the trainer is told")
    mount.faults = None
    mount.start()
    equal(sorted(os.listdir(mount.path / "steps")), ["b"], "steps")


@pytest.mark.one_mode
@pytest.mark.parametrize("command", ("mount", "umount", "umount -l"))
def test_killed_with_a_name_on_its_way(crashing_mount, mode, command):
    """The daemon is just notifying the kernel of a name. The kernel waits for the lock that an unanswered request
    holds, so the daemon cannot end. The next mount or umount releases both, also where umount -l took the mount out of
    the table of mounts."""
    mount = crashing_mount(mode=mode, faults="unlink.after_batch=sleep:600000")
    steps_to_remove(mount)
    write(mount.path / "steps/note", b"")
    user = start_waiting("import os, sys\ntry: os.unlink(sys.argv[1])\n"
                         "except OSError as problem: print(problem.errno)", mount.path / "steps/note")
    wait_until("the unlink has begun", lambda: requests(mount, "unlink") > 0)
    run(mount.binary, "rm", mount.path / "steps/a", cwd="/")
    os.kill(mount.pid, signal.SIGKILL)
    mount.faults = None
    if command == "umount":
        run(mount.binary, "umount", mount.path, timeout=60)
        mount.wait_for_end()
    elif command == "umount -l":
        run("umount", "-l", mount.path)
    mount.start()
    true(int(user.communicate(timeout=20)[0]) in (errno.ENOTCONN, errno.ECONNABORTED), "the user is told")
    equal(sorted(os.listdir(mount.path / "steps")), ["b"], "steps")


HOLD_A_FOLDER = """
import ctypes, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
faults = libc.syscall(323, os.O_CLOEXEC)  # userfaultfd
page = mmap.mmap(-1, 1 << 16)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
for request, argument in ((0xC018AA3F, struct.pack("=QQQ", 0xAA, 0, 0)),
                          (0xC020AA00, struct.pack("=QQQQ", address, 1 << 16, 1, 0))):
    if faults < 0 or libc.ioctl(faults, ctypes.c_ulong(request), ctypes.create_string_buffer(argument)) != 0:
        print("no userfaultfd:", os.strerror(ctypes.get_errno()), flush=True)
        sys.exit()
folder = os.open(sys.argv[1], os.O_RDONLY)
print("listing", flush=True)
libc.syscall(217, folder, ctypes.c_void_p(address), 1 << 16)  # getdents64
"""


@contextlib.contextmanager
def held(folder):
    """Another program keeps the kernel's lock of the folder: it lists it into a page that never comes."""
    holder = start_waiting(HOLD_A_FOLDER, folder)
    try:
        said = holder.stdout.readline().strip()
        if said != "listing":
            raise Skip(f"needs root's userfaultfd: {said}")
        wait_until("it waits in the kernel", lambda: "userfault" in pathlib.Path(f"/proc/{holder.pid}/wchan").read_text())
        yield
    finally:
        holder.kill()
        holder.communicate()


def is_zombie(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.one_mode
@pytest.mark.parametrize("number", (signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)),
                         ids=("kill", "term"))
def test_a_folder_that_a_program_holds(crashing_mount, mode, number):
    """The daemon cannot tell the kernel of a name there. It tells of others', it ends, and the store can be mounted."""
    mount = crashing_mount(mode=mode)
    for series in ("held", "others"):
        for tag in ("checkpoint-1", "checkpoint-2"):
            (mount.path / series / tag).mkdir(parents=True)
            write(mount.path / series / tag / "trainer_state.json", b"{}")
            os.stat(mount.path / series / tag)
    pid = mount.pid
    with held(mount.path / "held"):
        run(mount.binary, "rm", mount.path / "held/checkpoint-1", cwd="/")
        run(mount.binary, "rm", mount.path / "others/checkpoint-1", cwd="/")
        wait_until("the kernel knows", lambda: not (mount.path / "others/checkpoint-1").exists())
        os.kill(pid, number)
        wait_until("the daemon's files are closed", lambda: is_zombie(pid), 30)
        mount.start()
        equal([sorted(os.listdir(mount.path / series)) for series in ("held", "others")], [["checkpoint-2"], ["checkpoint-2"]], "steps")
        equal(is_zombie(pid), True, "its last thread waits, or else this tests nothing")
    wait_until("the daemon has ended", lambda: not pathlib.Path(f"/proc/{pid}").exists() or is_zombie(pid))
