"""A full store: saves and opens without room fail with an error and leave nothing; removals free space."""

import contextlib
import errno
import os
import resource
import shutil
import time

import pytest

import saving
from agent import Agent
from checking import equal, noise, opened, raises, read, same_bytes, true, write, write_all
from mounting import CKPTFS, MIB, Store, free_bytes, mounted, run, wait_until, xfs
from training import STAGE, check_step, optimizer_file, step_of, write_state

SIZE = 2 * MIB  # of a swap file
COUNT = 7  # swap files: six of the optimizer, one of parameters
STATE = SIZE * COUNT


@pytest.fixture
def mount(crashing_mount, mode):
    """A mount on a small image."""
    return crashing_mount(image="512M", mode=mode)


def stays_full(mount, wanted_free):
    """Returns whether the free space is small and stays so. The kernel sends RELEASE after close has returned, and
    only then XFS frees what it allocated ahead."""
    for _ in range(10):
        if free_bytes(mount.path) > wanted_free:
            return False
        time.sleep(0.05)
    return True


def fill(folder, wanted_free, mount):
    """Writes ordinary files into the folder until at most that much is free for users.

    It writes many small files, because XFS allocates ahead of a growing file, and frees that when the file is closed.
    No two files are alike, or dedup would make room again.
    """
    folder.mkdir()
    for number in range(10000):
        if stays_full(mount, wanted_free):
            return
        left = free_bytes(mount.path) - wanted_free
        try:
            with opened(folder / f"{number}", os.O_WRONLY | os.O_CREAT) as file:
                for _ in range(max(1, min(8, left // MIB))):
                    write_all(file, os.urandom(MIB))
                os.fsync(file)
        except OSError as problem:
            equal(problem.errno, errno.ENOSPC, "what a full disk says")
            return


def fill_all(path, mount):
    """Fills the file system below to the last block, as far as ordinary writes can."""
    try:
        with opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
            for chunk in (MIB, 64 * 1024, 4096):
                with raises(errno.ENOSPC, what="what a full disk says"):
                    while True:
                        os.write(file, os.urandom(chunk))
    except OSError as problem:  # of the open, which is a change
        equal(problem.errno, errno.ENOSPC, "what a full store says")
    run("sync", "-f", mount.store.inner)


def prepare(mount):
    """Makes a saved step that shares nothing with the live files any more. Returns both contents."""
    saved = step_of(write_state(mount.path, 0, 1, size=SIZE))
    mount.save("first")
    return saved, write_state(mount.path, 1, 1, size=SIZE)


def check_live(mount, live):
    for name, data in live.items():
        same_bytes(read(mount.path / name), data, name)


def test_a_save_fails_whole(mount):
    """After a save all live state is owed again. If that is not free, the save fails with ENOSPC and leaves nothing."""
    saved, live = prepare(mount)
    fill(mount.path / "filler", STATE // 2, mount)
    with raises(errno.ENOSPC, what="the save"):
        mount.save("second")
    true("free" in mount.ask("steps", "last_error"), f"last_error: {mount.ask('steps', 'last_error')}")
    equal(os.listdir(mount.path / "steps"), ["first"], "steps")
    done = run(mount.binary, "save", "third", mount.path, check=False)
    equal(done.returncode, 1, "status of the command")
    true(len(done.stderr.strip()) > 20, f"it says why: {done.stderr!r}")
    check_step(mount.path / "steps/first", saved)
    check_live(mount, live)
    with Agent() as agent:  # a file that shares nothing owes nothing
        for name in live:
            live[name] = noise(SIZE, 99)
            agent.aio(mount.path / name, live[name])
    check_live(mount, live)
    shutil.rmtree(mount.path / "filler")
    wait_until("the filler's space is free", lambda: free_bytes(mount.path) > 2 * STATE)
    mount.save("second")
    check_step(mount.path / "steps/second", step_of(live))
    check_step(mount.path / "steps/first", saved)


def opens(path):
    try:
        with opened(path, os.O_WRONLY):
            return True
    except OSError as problem:
        equal(problem.errno, errno.ENOSPC, "the refusal")
        return False


def test_an_open_for_writing_fails_loudly(mount):
    """Live files that share everything with a step owe everything. With less free, the open fails with ENOSPC, not
    the write."""
    live = write_state(mount.path, 0, 1, size=SIZE)
    mount.save("first")
    fill(mount.path / "filler", 0, mount)
    name = mount.path / optimizer_file(0)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_CREAT | os.O_DIRECT):
        with raises(errno.ENOSPC, what=f"open with {flags:o}"):
            os.open(name, flags)
    with Agent() as agent, raises(errno.ENOSPC, what="as DeepSpeed opens it"):
        agent.aio(name, noise(SIZE))
    check_live(mount, live)
    check_step(mount.path / "steps/first", step_of(live))
    run("rm", "-r", mount.path / "steps/first")
    shared = [mount.path / each for each in live]

    def share_nothing():
        return all(map(opens, shared)) and mount.status()["space"]["owed"] == 0

    wait_until("the live files share nothing any more, and can be opened", share_nothing)
    live = write_state(mount.path, 1, 1, size=SIZE)
    check_live(mount, live)
    shutil.rmtree(mount.path / "filler")
    wait_until("space is free again", lambda: free_bytes(mount.path) > STATE)
    live = write_state(mount.path, 2, 1, size=SIZE)
    check_live(mount, live)
    mount.save("second")
    check_step(mount.path / "steps/second", step_of(live))


def save(mount):
    mount.save("first")


def copy(mount):
    """Copies the live state, as a user does to look into it."""
    run("cp", "-r", mount.path / STAGE, mount.path / "copy")


@pytest.mark.parametrize("share", (save, copy))
def test_what_several_writers_owe_is_added_up(mount, share):
    """The debt of one writer fits, that of all writers does not: an open is refused, and the others can overwrite."""
    live = write_state(mount.path, 0, 1, size=SIZE)
    share(mount)
    fill(mount.path / "filler", STATE * 2 // 3, mount)
    files, refused = {}, 0
    try:
        for name in live:
            try:
                files[name] = os.open(mount.path / name, os.O_WRONLY)
            except OSError as problem:
                equal(problem.errno, errno.ENOSPC, f"open of {name}")
                refused += 1
        true(refused > 0 and files, f"{refused} of {COUNT} opens are refused")
        for name, file in files.items():
            live[name] = noise(SIZE, 50)
            equal(os.pwrite(file, live[name], 0), SIZE, "an overwrite that was let in")
            os.fsync(file)
    finally:
        for file in files.values():
            os.close(file)
    check_live(mount, live)


def copied_by_range(source, target, begin=0, length=SIZE):
    with opened(source, os.O_RDONLY) as from_, opened(target, os.O_WRONLY | os.O_CREAT) as to:
        equal(os.copy_file_range(from_, to, length, begin, begin), length, "bytes copied")


def copied_by_reading(source, target):
    """As shutil does it: the copy is adopted."""
    with opened(source, os.O_RDONLY) as from_, opened(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as to:
        while data := os.read(from_, MIB // 4):
            write_all(to, data)


@pytest.mark.parametrize("share, least", (
    (copied_by_range, SIZE),
    (lambda source, target: copied_by_range(source, target, MIB // 2, MIB), MIB),  # of a part
    (lambda source, target: run("cp", source, target), SIZE),
    (copied_by_reading, 1),
    (lambda source, target: (write(target, noise(SIZE, 9)), copied_by_range(target, source)), SIZE),  # into it
), ids=("range", "part", "cp", "read", "into"))
def test_what_a_live_file_shares_is_owed(mount, share, least):
    """Whatever shared its blocks: there is room for its next overwrite, which nobody would see fail."""
    source, target = mount.path / optimizer_file(0), mount.path / "copies" / os.path.basename(optimizer_file(0))
    source.parent.mkdir(parents=True)
    target.parent.mkdir()
    write(source, noise(SIZE, 1))
    run("sync", "-f", mount.store.inner)
    os.close(os.open(source, os.O_WRONLY))  # its blocks are on the disk now, so that its close counts nothing
    wait_until("it owes nothing", lambda: mount.status()["space"]["owed"] == 0)
    share(source, target)
    shared = SIZE - int(mount.ask(source, "bytes.exclusive"))
    true(shared >= least, f"{shared} bytes are shared")
    wait_until(f"{shared} bytes are owed", lambda: mount.status()["space"]["owed"] >= shared, 5)
    with Agent() as agent:
        agent.aio(source, noise(SIZE, 2))
    wait_until("it shares nothing any more", lambda: mount.status()["space"]["owed"] == 0)


@pytest.mark.builds("faults")
@pytest.mark.parametrize("back", (False, True), ids=("from a swap file", "back into it"))
@pytest.mark.parametrize("copied", (copied_by_range, copied_by_reading))
def test_what_a_copy_shares_is_owed_as_it_returns(crashing_mount, mode, copied, back):
    """However long it takes to count it. Else who opens the file right then is not refused, and fails in a write."""
    mount = crashing_mount(image="512M", mode=mode, faults="tree.finished_writing=sleep:300")
    source = mount.path / optimizer_file(0)
    source.parent.mkdir(parents=True)
    write(source, noise(SIZE, 1))
    run("sync", "-f", mount.store.inner)
    os.close(os.open(source, os.O_WRONLY))
    wait_until("it owes nothing", lambda: mount.status()["space"]["owed"] == 0)
    copy = mount.path / "copies" / source.name
    copy.parent.mkdir()
    if back:
        write(copy, noise(SIZE, 2))
    copied(*((copy, source) if back else (source, copy)))
    true(mount.status()["space"]["owed"] >= SIZE, "what it shares is owed")


def test_what_is_allocated_ahead_leaves_what_is_owed(mount):
    """A save past the mount, and fallocate, are refused before they take the space that live swap files will need."""
    live = write_state(mount.path, 0, 1, size=SIZE)
    mount.save("first")
    fill(mount.path / "filler", STATE * 3 // 2, mount)
    steps = mount.path / "steps"
    saving.save(steps, "large", "a", size=STATE, status=1)
    with opened(mount.path / "ahead", os.O_WRONLY | os.O_CREAT) as file:
        with raises(errno.ENOSPC, what="fallocate"):
            os.posix_fallocate(file, 0, STATE)
        os.posix_fallocate(file, 0, SIZE)
        os.posix_fallocate(file, 0, SIZE)  # the blocks exist already
        with raises(errno.ENOSPC, what="fallocate behind them"):
            os.posix_fallocate(file, SIZE, STATE)
        done = run("fallocate", "--zero-range", "--length", STATE, mount.path / "ahead", check=False)
        true(done.returncode != 0 and "No space left" in done.stderr, f"fallocate --zero-range: {done.stderr}")
    saving.save(steps, "small", "a", size=SIZE)
    saving.check(steps / "small", size=SIZE)
    equal(sorted(name for name in os.listdir(steps) if not name.startswith("partial-")), ["first", "small"], "steps")
    with Agent() as agent:
        for name in live:
            live[name] = noise(SIZE, 60)
            agent.aio(mount.path / name, live[name])
    check_live(mount, live)


def test_removal_frees(mount):
    """On a completely full store, rm -r of a step works and frees its own blocks, and writing continues."""
    saved, live = prepare(mount)
    fill_all(mount.path / "filler", mount)
    check_step(mount.path / "steps/first", saved)
    check_live(mount, live)
    before = free_bytes(mount.store.inner)
    true(before < 2 * MIB, f"the disk is full but for {before} bytes")
    run("rm", "-r", mount.path / "steps/first")
    equal(os.listdir(mount.path / "steps"), [], "steps")
    wait_until("the step's own bytes are free", lambda: free_bytes(mount.store.inner) > before + STATE * 9 // 10, 10)
    with Agent() as agent:  # they owe nothing, because their blocks are their own
        for name in live:
            live[name] = noise(SIZE, 77)
            agent.aio(mount.path / name, live[name])
    check_live(mount, live)
    for filler in mount.path.glob("filler*"):
        filler.unlink()
    wait_until("all is free again", lambda: free_bytes(mount.path) > STATE, 10)
    mount.save("second")
    check_step(mount.path / "steps/second", step_of(live))


def test_a_full_store_can_be_mounted(mount):
    """A completely full store is unmounted and mounted again: everything is there, and a removal works."""
    saved, live = prepare(mount)
    fill_all(mount.path / "filler", mount)
    mount.remount()
    check_step(mount.path / "steps/first", saved)
    check_live(mount, live)
    mount.kill()
    mount.start()
    check_step(mount.path / "steps/first", saved)
    run("rm", "-r", mount.path / "steps/first")
    before = STATE * 9 // 10
    wait_until("the step's own bytes are free", lambda: free_bytes(mount.store.inner) > before, 10)
    check_live(mount, live)


def change(mount):
    """Makes more changes than one log of the index holds. Returns the errno that ended them, or 0."""
    for number in range(100):
        try:
            os.setxattr(mount.path / "steps", f"user.x{number}", os.urandom(60000))
        except OSError as problem:
            return problem.errno
    return 0


@pytest.mark.one_mode
def test_removals_work_without_ballast(mount):
    """The ballast for ordinary changes is used up, and the disk filled again. Removals are recorded, here and after
    a crash. Other changes fail with ENOSPC until there is room."""
    prepare(mount)
    mount.save("second")
    fill_all(mount.path / "filler", mount)
    failed = 0
    for _ in range(30):
        failed = change(mount)
        if failed != 0:
            break
        fill_all(mount.path / "filler", mount)
    equal(failed, errno.ENOSPC, "what a change says in the end")
    fill_all(mount.path / "filler", mount)
    equal(mount.status()["space"]["ballast"], 16 * MIB, "what is left for removals")
    mount.kill()
    mount.start()
    run("rm", "-r", mount.path / "steps/first")
    run(CKPTFS, "rm", mount.path / "steps/second")
    wait_until("the steps' own bytes are free", lambda: free_bytes(mount.store.inner) > STATE // 4, 30)
    mount.remount()
    for filler in mount.path.glob("filler*"):
        filler.unlink()
    wait_until("changes are recorded again", lambda: change(mount) == 0)


def hold_files(folder, uid, told, until):
    """In a process of its own: opens files until that fails, reports the errno and the number of files, and waits."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    number, held = 0, []
    try:
        while len(held) < 1000:
            held.append(os.open(folder / str(len(held)), os.O_CREAT | os.O_RDWR))
    except OSError as problem:
        number = problem.errno
    os.write(told, f"{number} {len(held)}\n".encode())
    os.read(until, 1)


@pytest.mark.one_mode
def test_removals_work_without_inodes(scratch, mode):
    """A user makes empty files until there are no inodes. The index needs some for whatever it records."""
    with xfs(scratch, 320 * MIB, options=("-i", "maxpct=1")) as disk:
        store = Store(disk / "store")
        with mounted(store, scratch / "mnt", mode=mode) as mount:
            step, folder = mount.path / "steps/checkpoint-1", mount.path / "empty"
            step.mkdir(parents=True)
            folder.mkdir()
            for name in ("trainer_state.json", "model.safetensors"):
                write(step / name, b"content")
            with raises(errno.ENOSPC):
                for number in range(20000):
                    write(folder / str(number), b"")
            made = len(os.listdir(folder))
            true(any("inodes left" in one for one in mount.status()["warnings"]), "status warns")
            os.unlink(folder / "0")
            run(CKPTFS, "rm", step)
            mount.remount()
            equal((os.listdir(step.parent), len(os.listdir(folder))), ([], made - 1), "what is left")
            shutil.rmtree(folder)
            wait_until("there is room", lambda: mount.status()["space"]["inodes_free"] > 500)
            write(mount.path / "file", b"content")
        store.fsck()


@contextlib.contextmanager
def files_held(folder, uid):
    """Opens as many files as the mount allows this user. Yields the errno that ended it, and the number."""
    folder.mkdir()
    os.chown(folder, uid, uid)
    told, tell = os.pipe()
    until, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        with contextlib.suppress(BaseException):
            hold_files(folder, uid, tell, until)
        os._exit(0)
    os.close(tell)
    os.close(until)
    try:
        number, count = os.read(told, 100).split()
        yield int(number), int(count)
    finally:
        os.close(end)
        os.close(told)
        os.waitpid(child, 0)


def test_descriptors_that_users_hold(mount):
    """One user cannot use all of the daemon's descriptors, and all users cannot use those that the daemon itself
    needs."""
    limit = 800
    _, most = resource.prlimit(mount.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(mount.pid, resource.RLIMIT_NOFILE, (limit, most))
    write_state(mount.path, 0, 1, size=SIZE)
    with files_held(mount.path / "first", 5001) as (number, count):
        equal(number, errno.EMFILE, "what a user is told")
        true(count <= limit // 4, f"one user holds {count} files")
        with files_held(mount.path / "second", 5002) as (number, count):
            true(number in (errno.EMFILE, errno.ENFILE) and count > 10, f"another holds {count} files, then {number}")
            with files_held(mount.path / "third", 0) as (number, _):
                equal(number, errno.ENFILE, "what root is told")
                for _ in range(3):  # the index opens new files
                    equal(change(mount), 0, "a change")
                mount.save("step")
    wait_until("all is closed", lambda: mount.status()["open_files"] == 0)
    write(mount.path / "after", b"goes on")
