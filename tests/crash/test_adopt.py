"""Power loss, kills and errors while files are adopted: no file shows what nobody wrote."""

import concurrent.futures
import contextlib
import errno
import os
import shutil
import threading
import time

import pytest

from checking import equal, noise, opened, pwrite_all, raises, read, same_bytes, true, write, write_all
from mounting import CKPTFS_DEBUG, KIB, MIB, run, wait_until

pytestmark = pytest.mark.builds("faults")

CHUNK = 64 * KIB
DATA = noise(4 * MIB, 1)
CHANGED = DATA[:MIB] + noise(MIB, 2) + DATA[2 * MIB :]  # a copy with some changes


def write_source(mount, path, data=DATA):
    """Until the mount has heard of the close: what is open for writing is not adopted."""
    write(path, data)
    wait_until("the close is heard of", lambda: mount.status()["open_files"] == 0)


def begin(source, target):
    """Returns a copier's descriptors: of the source, for reading, and of the new file."""
    return os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)


def copy(source, target, data, sync=False):
    reader, writer = begin(source, target)
    try:
        for at in range(0, len(data), CHUNK):
            write_all(writer, data[at : at + CHUNK])
        if sync:
            os.fsync(writer)
    finally:
        os.close(writer)
        os.close(reader)


def target_in(mount, folder):
    (mount.path / folder).mkdir()
    return mount.path / folder / "tensor"


def close_unheard(descriptors):
    for descriptor in descriptors:
        with contextlib.suppress(OSError):  # a close asks the daemon, which is dead
            os.close(descriptor)


def test_power_is_lost(crashing_mount, mode):
    mount = crashing_mount(image="1G", mode=mode, faults="boot_id=before")
    source = target_in(mount, "from")
    write_source(mount, source)
    run("sync", "-f", mount.store.inner)

    copy(source, target_in(mount, "synced"), CHANGED, sync=True)
    again = target_in(mount, "again")
    copy(source, again, DATA)
    with opened(again, os.O_WRONLY | os.O_APPEND) as file:
        write_all(file, b"more")
        os.fsync(file)
    copy(source, target_in(mount, "closed"), CHANGED)
    descriptors = begin(source, target_in(mount, "under way"))
    for at in range(0, 2 * MIB, CHUNK):
        write_all(descriptors[1], CHANGED[at : at + CHUNK])
    equal(mount.counted("adoptions"), 4, "adoptions")
    os.sync()  # the kernel does that by itself, too

    mount.lose_power(lambda: close_unheard(descriptors))
    mount.faults = "boot_id=after"
    mount.start()

    same_bytes(read(mount.path / "synced/tensor"), CHANGED, "synced")
    same_bytes(read(again), DATA + b"more", "closed, written to again, and synced")
    same_bytes(read(mount.path / "closed" / "tensor"), CHANGED, "closed, and synced by the kernel")
    same_bytes(read(mount.path / "under way" / "tensor"), CHANGED[: 2 * MIB], "under way, and synced by the kernel")


@pytest.mark.parametrize("chunk", (CHUNK, 100_001))
def test_power_is_lost_before_a_sync(crashing_mount, mode, chunk):
    """A copy that differs in its middle may end early, where it was not synced. It has no hole there."""
    mount = crashing_mount(image="1G", mode=mode)
    source, target = target_in(mount, "from"), target_in(mount, "to")
    write_source(mount, source)
    run("sync", "-f", mount.store.inner)
    reader, writer = begin(source, target)
    os.fsync(writer)  # so that it has its name
    for at in range(0, len(CHANGED), chunk):
        write_all(writer, CHANGED[at : at + chunk])
    os.close(writer)
    os.close(reader)
    equal(mount.counted("adoptions"), 1, "adoptions")
    with opened(mount.store.inner / "other", os.O_WRONLY | os.O_CREAT) as other:
        os.fsync(other)  # and with it the log of XFS, which has the length that a clone gave the copy
    mount.lose_power()
    mount.start()
    content = read(target)
    true(len(content) >= 2 * MIB, f"{len(content)} bytes are there")
    same_bytes(content, CHANGED[: len(content)], "what was not synced")


def write_again_what_failed(source, target):
    """A write of other bytes fails, perhaps after it reached the disk. Then the predicted bytes are written there."""
    reader, writer = begin(source, target)
    at = 0
    try:
        while at < len(DATA):
            try:
                at += os.write(writer, CHANGED[at : at + CHUNK])
            except OSError:
                break
        write_all(writer, DATA[at:])
    finally:
        os.close(writer)
        os.close(reader)


def test_a_disk_that_refuses(crashing_mount, mode):
    """A clone, a comparison or a write fails. The result is an error or a plain copy, never unwritten bytes."""
    mount = crashing_mount(image="1G", mode=mode, binary=CKPTFS_DEBUG)
    for faults, outcome in (
        ("adopt.clone_range=error:EIO", "plain"),
        ("adopt.clone_range_end=error:EIO", "plain"),
        ("tree.write_out=error:EIO", "suspect"),
        ("fs.write=error:ENOSPC", "error"),
        ("adopt.read=3:error:EIO", "plain"),
        ("fs.write=1:error:ENOSPC", "again"),
    ):
        source = target_in(mount, "from")
        write_source(mount, source)
        mount.faults = faults
        mount.remount_after_fsck()
        target = target_in(mount, "to")
        if outcome == "again":
            write_again_what_failed(source, target)
            same_bytes(read(target), DATA, faults)
        elif outcome == "suspect":
            copy(source, target, CHANGED)
            equal(mount.ask(target, "state"), "suspect", "the copy")
        elif outcome == "error":
            with raises(errno.ENOSPC, what=faults):
                copy(source, target, CHANGED)
            same_bytes(read(target), CHANGED[:MIB], faults)
        else:
            copy(source, target, CHANGED)
            same_bytes(read(target), CHANGED, faults)
            equal(mount.counted("adoption_fallbacks"), 1, "fallbacks")
        mount.faults = None
        mount.kill()
        mount.start()
        wanted = CHANGED[:MIB] if outcome == "error" else DATA if outcome == "again" else CHANGED
        same_bytes(read(target), wanted, f"{faults}, after a kill")
        for name in ("from", "to"):
            shutil.rmtree(mount.path / name)


def begin_a_copy_that_is_looked_at(mount, second):
    """Begins a copy whose second WRITE waits in the daemon. Returns source, target, both descriptors, and the thread."""
    source, target = target_in(mount, "from"), target_in(mount, "to")
    write_source(mount, source)
    reader, writer = begin(source, target)
    write_all(writer, DATA[:CHUNK])
    waiting = threading.Thread(target=lambda: write_all(writer, second))
    waiting.start()
    time.sleep(0.5)
    return source, target, reader, writer, waiting


def end_a_copy(reader, writer, data):
    for at in range(2 * CHUNK, len(data), CHUNK):
        write_all(writer, data[at : at + CHUNK])
    os.close(writer)
    os.close(reader)


def test_a_source_that_changes_while_it_is_looked_at(crashing_mount, mode):
    """A WRITE was found equal to the source after the source was opened for writing, so what is shared may be something
    else."""
    new = noise(len(DATA), 3)
    mount = crashing_mount(image="1G", mode=mode, faults="adopt.read=2:sleep:2000")
    source, target, reader, writer, waiting = begin_a_copy_that_is_looked_at(mount, new[CHUNK : 2 * CHUNK])
    with opened(source, os.O_RDWR) as other:
        pwrite_all(other, new, 0)
    waiting.join()
    end_a_copy(reader, writer, new)
    same_bytes(read(target), DATA[:CHUNK] + new[CHUNK:], "the copy")
    equal(mount.counted("adoptions"), 1, "adoptions")


def test_a_source_that_ends_while_it_is_looked_at(crashing_mount, mode):
    """The source is compared where it is mapped. If the source becomes shorter, the daemon must not die."""
    mount = crashing_mount(image="1G", mode=mode, faults="adopt.read=2:sleep:2000")
    source, target, reader, writer, waiting = begin_a_copy_that_is_looked_at(mount, DATA[CHUNK : 2 * CHUNK])
    os.truncate(source, 0)
    waiting.join()
    end_a_copy(reader, writer, DATA)
    same_bytes(read(target), DATA, "the copy")
    equal((mount.counted("adoptions"), mount.alive()), (1, True), "adoptions, and the daemon lives")


def test_others_are_served_beside_a_copy(crashing_mount, mode):
    """While a WRITE of a copy takes long, requests of others are answered."""
    mount = crashing_mount(image="1G", mode=mode, faults="adopt.read=300:sleep:4000")
    source, target = target_in(mount, "from"), target_in(mount, "to")
    data = DATA * 6
    write_source(mount, source, data)
    reader, writer = begin(source, target)
    written = []

    def copy_all():
        for at in range(0, len(data), CHUNK):
            write_all(writer, data[at : at + CHUNK])
            written.append(at)

    copier = threading.Thread(target=copy_all)
    copier.start()
    try:
        wait_until("the WRITE that takes long", lambda: len(written) == 299, 60)
        for attempt in range(10):
            equal((mount.path / f"nothing-{attempt}").exists(), False, "what nobody made")
        equal(len(written), 299, "WRITEs that were answered meanwhile")
    finally:
        copier.join()
        os.close(writer)
        os.close(reader)
    same_bytes(read(target), data, "the copy")


def test_blocks_that_cannot_be_cloned(crashing_mount, mode):
    """If a block of a new step's file, which may be mapped, cannot be cloned, the file is written plainly from there
    on."""
    mount = crashing_mount(image="1G", mode=mode, faults="adopt.clone_range=2:error:EIO")
    for tag, data in (("checkpoint-1", DATA), ("checkpoint-2", CHANGED)):
        (mount.path / "steps" / tag).mkdir(parents=True)
        with opened(mount.path / "steps" / tag / "model", os.O_RDWR | os.O_CREAT) as file:
            for at in range(0, len(data), CHUNK):
                write_all(file, data[at : at + CHUNK])
    target = mount.path / "steps/checkpoint-2/model"
    same_bytes(read(target), CHANGED, "the new step's file")
    counters = mount.status()["counters"]
    equal(counters["adoption_fallbacks"], 1, "fallbacks")
    equal(counters["bytes_adopted"], CHUNK, "bytes adopted before the refusal")
    mount.faults = None
    mount.kill()
    mount.start()
    same_bytes(read(target), CHANGED, "after a kill")


@pytest.mark.parametrize("clone_fails", (False, True))
def test_a_guess_that_changes_before_a_write_that_fails(crashing_mount, mode, clone_fails):
    """Blocks shared with a file that was changed meanwhile, and that then could not be written, are not content. A clone
    that fails may have shared some, too."""
    # after the writes of the first step, and the one that changes it
    failing = 1 if mode == "passthrough" else len(DATA) // CHUNK + 2
    faults = f"adopt.clone_range=sleep:1500;fs.write={failing}:error:ENOSPC"
    if clone_fails:
        faults += ";adopt.clone_range_end=error:EIO"
    mount = crashing_mount(image="1G", mode=mode, faults=faults)
    for tag in ("checkpoint-1", "checkpoint-2"):
        (mount.path / "steps" / tag).mkdir(parents=True)
    source, target = (mount.path / "steps" / tag / "model" for tag in ("checkpoint-1", "checkpoint-2"))
    with opened(source, os.O_WRONLY | os.O_CREAT) as file:
        for at in range(0, len(DATA), CHUNK):
            write_all(file, DATA[at : at + CHUNK])
    with opened(target, os.O_RDWR | os.O_CREAT) as file, concurrent.futures.ThreadPoolExecutor(1) as pool:
        writing = pool.submit(os.pwrite, file, DATA[:CHUNK], 0)
        time.sleep(0.5)
        with opened(source, os.O_WRONLY) as other:
            equal(os.pwrite(other, CHANGED[-CHUNK:], 0), CHUNK, "written to the source")
        with raises(errno.ENOSPC, what="the write"):
            writing.result()
    content = read(target)
    same_bytes(content, bytes(len(content)), "what was not written")
