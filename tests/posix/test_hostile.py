"""A hostile user beside a victim: each door and each promise once, then all at random while the victim works."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import subprocess
import time

import pytest

import attacker
import hostile
from checking import equal, in_child, opened, read, same_bytes, true
from mounting import CKPTFS, Store, by_level, mounted, run, wait_until
from training import step_of, write_state

OTHER_ATTEMPTS = [attempt for attempt in hostile.ATTEMPTS if attempt not in hostile.DATA_ATTEMPTS]


@pytest.fixture(scope="module")
def ground(work, disk, mode):
    """A mount with the victim's files and the page, for all attempts in this mode. fsck is last."""
    token = work / "token"
    token.touch(mode=0o600)
    token.write_text("a" * 32 + "\n")
    store = Store(disk / mode)
    options = ("http=127.0.0.1:0", f"http_token={token}")
    with mounted(store, work / f"mnt-{mode}", mode=mode, options=options) as mount:
        attacker.make_ground(mount.path)
        yield mount
    store.fsck()


def once(mount, attempt):
    """The mount survives the attempt."""
    pid, socket_path = mount.pid, mount.ask(".", "socket")
    in_child(lambda: attempt(attacker.Attacker(socket_path)), uid=attacker.ATTACKER, folder=mount.path)
    equal(mount.status()["pid"], pid, "the daemon that answers")


@pytest.mark.together
@pytest.mark.parametrize("attempt", hostile.DATA_ATTEMPTS, ids=lambda attempt: attempt.__name__)
def test_attempt_on_data(ground, attempt):
    once(ground, attempt)


@pytest.mark.together
@pytest.mark.one_mode
@pytest.mark.parametrize("attempt", OTHER_ATTEMPTS, ids=lambda attempt: attempt.__name__)
def test_attempt(ground, attempt):
    once(ground, attempt)


def train(seconds):
    """The victim's process: writes its state, saves it, reads the step back; how many steps."""
    folder = pathlib.Path("victim") / f"{attacker.NAME}_training"
    folder.mkdir(mode=0o700)
    (folder / "steps").mkdir()
    write_state(folder, 0, ranks=1, groups=("0_2",), size=300_000)
    os.setxattr(folder / "steps", "user.ckptfs.source", f"/{folder}/zero_stage_3".encode())
    end, count = time.monotonic() + seconds, 0
    while count == 0 or time.monotonic() < end:
        count += 1
        state = write_state(folder, count, ranks=1, groups=("0_2",), size=300_000)
        os.setxattr(folder / "steps", "user.ckptfs.save", f"global_step{count}".encode())
        for name, data in step_of(state).items():
            same_bytes(read(folder / "steps" / f"global_step{count}" / name), data, name)
    equal(len(os.listdir(folder / "steps")), count, "steps of the victim's")
    return count


@pytest.mark.together
def test_beside_a_victim(ground):
    pid, socket_path, seconds = ground.pid, ground.ask(".", "socket"), by_level(1, 60)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        attackers = [pool.submit(in_child, lambda seed=seed: hostile.play(socket_path, seconds, seed),
                                 uid=attacker.ATTACKER, folder=ground.path) for seed in range(2)]
        steps = in_child(lambda: train(seconds), uid=attacker.VICTIM, folder=ground.path)
        counts = [one.result() for one in attackers]
    print(f"      {steps} steps of the victim's beside {counts} attempts")
    equal(ground.status()["pid"], pid, "the daemon that answers")


@pytest.mark.together
def test_the_log_has_no_forged_line(ground):
    for line in ground.log.read_text(errors="surrogateescape").splitlines():
        true(line.startswith("[20") and "[error] FORGED" not in line[30:50], f"a line of the log: {line!r}")


@pytest.mark.together
def test_the_victims_files_are_what_they_were(ground):
    for number, name in enumerate(attacker.SWAP_FILES):
        for folder, seed in (("open", 10), (f"{attacker.NAME}_run", 20)):
            data = read(ground.path / "victim" / folder / attacker.TENSORS / name)
            same_bytes(data, attacker.secret_bytes(seed + number), f"{folder}/{name}")
    equal(sorted(os.listdir(ground.path / "shared/global_step1")), ["notes.txt"], "the victim's step")


def hold_a_freeze(socket_path):
    """A request to freeze files that it could still write to, and the connection that waits for it."""
    me = attacker.Attacker(socket_path)
    folder = me.fresh("held")
    answer, _ = me.ask("begin", series=f"/{folder}", tag="global_step1", attempt="a")
    paths = [f"{answer['result']['path']}/{number}" for number in range(60)]
    for path in paths:
        with open(path[1:], "wb"):
            _, descriptors = me.ask("blobs", paths=[path], write=True)
            equal(len(descriptors), 1, "descriptors")
    os.chdir("/")
    connection = me.connect()
    connection.sendall(json.dumps({"command": "freeze", "arguments": {"paths": paths}}).encode() + b"\n")
    with contextlib.suppress(OSError):
        connection.recv(1 << 16)


def test_ends_beside_a_freeze(disk, work):
    store = Store(disk / "ending")
    with mounted(store, work / "mnt-ending") as mount:
        attacker.make_ground(mount.path)
        socket_path = mount.ask(".", "socket")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            holder = pool.submit(
                in_child, lambda: hold_a_freeze(socket_path), uid=attacker.ATTACKER, folder=mount.path
            )
            while mount.status()["counters"]["operations"].get("create", 0) < 60 and not holder.done():
                time.sleep(0.01)
            mount.stop()
            holder.result()
    store.fsck()


@pytest.mark.builds("faults")
def test_syncs_hold_up_nobody(disk, work):
    """On a slow disk more files are synced at once than threads serve requests."""
    store = Store(disk / "syncing")
    with mounted(store, work / "mnt-syncing", faults="write_back.sync=sleep:2000") as mount:
        def sync(number):
            with opened(mount.path / str(number), os.O_WRONLY | os.O_CREAT) as file:
                os.write(file, b"x")
                os.fsync(file)

        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            syncing = [pool.submit(sync, number) for number in range(40)]
            wait_until("all are there", lambda: len(os.listdir(mount.path)) >= 40)
            time.sleep(0.2)
            os.mkdir(mount.path / "made")
            true(not any(one.done() for one in syncing), "it waited for none of them")
            for one in syncing:
                one.result()
    store.fsck()


def is_read_to_its_limit(mount):
    """A step of many large files is refused, in words and within some seconds, and keeps nobody waiting."""
    folder = "attacker/run/global_step1"
    in_child(lambda: hostile.make_endless_step(folder, 3000), uid=attacker.ATTACKER, folder=mount.path)
    row = json.loads(run(CKPTFS, "ls", "--json", mount.path / "attacker/run", timeout=60).stdout)["steps"][0]
    equal(row["state"], "unknown", "the state of a step that takes too long to read")
    true("more than 2048 MiB" in row["reason"], f"the reason: {row}")


def peak_memory(mount):
    """MiB that the daemon has had at once."""
    status = pathlib.Path(f"/proc/{mount.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) // 1024


def many_readings_at_once(mount):
    """Lists of as many series at once as one user has connections, each with a step that takes memory to be read.

    One is read at a time, and what that frees goes back to the system: 70 MiB were seen. Two at a time, and what
    malloc kept of them, were 280.
    """
    for number in range(16):
        folder = f"attacker/many{number}/global_step1"
        in_child(lambda: hostile.make_endless_step(folder, 10), uid=attacker.ATTACKER, folder=mount.path)
    before = peak_memory(mount)
    lists = [subprocess.Popen([CKPTFS, "ls", mount.path / f"attacker/many{number}"], stdout=subprocess.DEVNULL)
             for number in range(16)]
    equal([one.wait(120) for one in lists], [0] * 16, "what the lists end with")
    grown = peak_memory(mount) - before
    print(f"      {grown} MiB more for lists of 16 series at once")
    true(grown < 160, f"lists of 16 series took {grown} MiB")


def spread_models_are_bounded(mount):
    """Names of experts, layers and tensor parallel ranks count for what a map may take."""
    in_child(lambda: hostile.make_spread_steps("attacker/spread"), uid=attacker.ATTACKER, folder=mount.path)
    before = peak_memory(mount)
    rows = json.loads(run(CKPTFS, "ls", "--json", mount.path / "attacker/spread", timeout=60).stdout)["steps"]
    grown = peak_memory(mount) - before
    print(f"      {grown} MiB more for spread models")
    true(not any(row["state"] == "complete" for row in rows), f"complete: {rows}")
    true(grown < 160, f"spread models took {grown} MiB")


def what_users_hold_is_bounded(mount):
    before = peak_memory(mount)
    for hold in (hostile.holds_lists_of_names, hostile.holds_versions_of_a_view):
        count = in_child(hold, uid=attacker.ATTACKER, folder=mount.path)
        grown = peak_memory(mount) - before
        print(f"      {hold.__name__}: {count} opened, {grown} MiB more")
        true(grown < 320, f"{hold.__name__}: the daemon took {grown} MiB more")
        os.listdir(mount.path / "attacker/names")
    # The kernel tells the mount of a close after close() returned.
    wait_until("the attacker sees all names when all is closed", lambda: in_child(
        hostile.names_that_are_listed, uid=attacker.ATTACKER, folder=mount.path / "attacker/names") == 8000, 10, 0.05)


def test_memory_is_bounded(disk, work):
    store = Store(disk / "bounded")
    with mounted(store, work / "mnt-bounded") as mount:
        attacker.make_ground(mount.path)
        spread_models_are_bounded(mount)
        many_readings_at_once(mount)
        what_users_hold_is_bounded(mount)
    store.fsck()


def test_ends_beside_a_step_without_end(disk, work):
    """Who reads a step, for a view, for a list and for rotation, lets the mount end."""
    store = Store(disk / "endless")
    with mounted(store, work / "mnt-endless") as mount:
        attacker.make_ground(mount.path)
        is_read_to_its_limit(mount)
        for number in range(2, 20):
            folder = f"attacker/run/global_step{number}"
            in_child(lambda: hostile.make_endless_step(folder, 100), uid=attacker.ATTACKER, folder=mount.path)
        asking = subprocess.Popen([CKPTFS, "ls", mount.path / "attacker/run"], stdout=subprocess.DEVNULL)
        time.sleep(1)
        true(asking.poll() is None, "the list is there already")
        begin = time.monotonic()
        mount.stop()
        took = time.monotonic() - begin
        true(took < 8, f"the mount took {took:.1f} s to end")
        asking.wait(10)
    store.fsck()
