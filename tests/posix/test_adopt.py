"""Files copied by READs and WRITEs cost no second copy, and are files like any other at every moment of it."""

import contextlib
import ctypes
import mmap
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest

from adopting import two_steps, used
from checking import equal, noise, opened, pwrite_all, read, same_bytes, true, write, write_all
from mounting import KIB, MIB, wait_until
from training import name_in_step, optimizer_file, write_state

pytestmark = pytest.mark.timeout(900)

MOUNT_OPTIONS = ("quiet=30s",)
CHUNK = 64 * KIB  # as sendfile's


def plain_copyfile(source, target):
    """As shutil.copyfile of Python up to 3.13, whatever Python this is."""
    with open(source, "rb") as from_, open(target, "wb") as to:
        offset = 0
        while sent := os.sendfile(to.fileno(), from_.fileno(), offset, 8 * MIB):
            offset += sent


class Copier:
    """A copy under way: the source stays open for reading, as a copier's does, and content is written bit by bit."""

    def __init__(self, source, target, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        self.source = os.open(source, os.O_RDONLY)
        self.target = os.open(target, flags, 0o644)
        self.path = target
        self.done = 0

    def write(self, data, chunk=CHUNK):
        for at in range(0, len(data), chunk):
            write_all(self.target, data[at : at + chunk])
        self.done += len(data)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.target)
        os.close(self.source)


def source_of(folder, size=4 * MIB, seed=1, name="tensor"):
    (folder / "from").mkdir(exist_ok=True)
    (folder / "to").mkdir(exist_ok=True)
    data = noise(size, seed)
    write(folder / "from" / name, data)
    return data, folder / "from" / name, folder / "to" / name


def test_a_copied_tree_takes_no_space(folder, shared):
    tree = folder / "from"
    tree.mkdir()
    contents = {f"{i}.tensor.swp": noise(4 * MIB + i * 1000, i) for i in range(6)}
    contents["small"] = b"small"
    for name, data in contents.items():
        write(tree / name, data)
    before, adoptions = used(shared), shared.counted("adoptions")
    shutil.copytree(tree, folder / "to", copy_function=plain_copyfile)
    grown = used(shared) - before
    true(grown < MIB, f"the copy took {grown} bytes")
    equal(shared.counted("adoptions") - adoptions, 6, "adoptions")
    for name, data in contents.items():
        same_bytes(read(folder / "to" / name), data, name)
        equal(os.stat(folder / "to" / name).st_size, len(data), "size")
    # And back, over files that are there, as DeepSpeed's load does.
    for name in contents:
        write(tree / name, b"other" * 100000)
    # A file that is still open, as far as the mount has heard, is not adopted.
    wait_until("the closes are heard of", lambda: shared.status()["open_files"] == 0, 5)
    before = used(shared)
    shutil.copytree(folder / "to", tree, copy_function=plain_copyfile, dirs_exist_ok=True)
    true(used(shared) - before < MIB, "the way back takes space")
    for name, data in contents.items():
        same_bytes(read(tree / name), data, f"{name}, back")


LATENCY = pathlib.Path("/dev/cpu_dma_latency")


def latency_asked_for():
    return struct.unpack("i", LATENCY.read_bytes()[:4])[0]


@pytest.mark.alone  # the copies of other tests keep the processors from halting, too
def test_processors_do_not_halt_during_a_copy(folder, shared):
    data, source, target = source_of(folder, 64 * MIB)
    def asked_for():
        """While a copy goes on. Where others keep the processors busy its requests may come too far apart to count."""
        found = []
        with Copier(source, target) as copier:
            for begin in range(0, len(data), MIB):
                copier.write(data[begin : begin + MIB])
                found.append(latency_asked_for() if LATENCY.exists() else None)
        target.unlink()
        return found

    if not LATENCY.exists():
        asked_for()
        true("not kept from halting" in shared.read_log(), "there is no such device, and nobody says so")
        return
    wait_until("processors do not halt", lambda: min(asked_for()) <= 2, 60)
    wait_until("they may halt again", lambda: latency_asked_for() > 2, 10)


def test_what_shows_ends_where_it_was_written(folder, shared):
    data, source, target = source_of(folder)
    with Copier(source, target) as copier:
        equal(os.stat(target).st_size, 0, "size at first")
        copier.write(data[: MIB + 100])
        equal(os.stat(target).st_size, MIB + 100, "size under way")
        equal([entry.stat().st_size for entry in os.scandir(target.parent)], [MIB + 100], "size in a listing")
        adoptions = shared.counted("adoptions")
        same_bytes(read(target), data[: MIB + 100], "content under way")
        copier.write(data[MIB + 100 :])
        equal(shared.counted("adoptions"), adoptions, "adoptions")
    same_bytes(read(target), data, "content")


def test_what_differs_is_written(folder, shared):
    data, source, target = source_of(folder, 4 * MIB + 77)
    changed = bytearray(data)
    changed[0] ^= 1
    changed[MIB + 5 : MIB + 50000] = noise(49995, 3)
    changed[-1] ^= 1
    adopted = shared.counted("bytes_adopted")
    with Copier(source, target) as copier:
        copier.write(changed, 100 * KIB + 1)
    same_bytes(read(target), changed, "content")
    same_bytes(read(source), data, "the source")
    wait_until("the copy counts", lambda: shared.counted("bytes_adopted") - adopted > 3 * MIB, 5)


def test_shorter_and_longer_copies(folder):
    for length in (100, MIB, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 6 * MIB):
        data, source, target = source_of(folder, name=f"f{length}")
        copy = (data + noise(2 * MIB, 5))[:length]
        with Copier(source, target) as copier:
            copier.write(copy)
        equal(os.stat(target).st_size, length, "size")
        same_bytes(read(target), copy, f"{length} bytes")


def test_a_source_that_changes_meanwhile(folder):
    """What is written counts, whatever the source holds by then."""
    data, source, target = source_of(folder)
    new = noise(4 * MIB, 9)
    with Copier(source, target) as copier:
        copier.write(data[:MIB])
        with opened(source, os.O_RDWR) as writer:
            pwrite_all(writer, new, 0)
            copier.write(new[MIB : 2 * MIB])
            with mmap.mmap(writer, 0) as mapping:
                mapping[2 * MIB : 3 * MIB] = noise(MIB, 10)
                copier.write(data[2 * MIB : 3 * MIB])
        copier.write(data[3 * MIB :])
    same_bytes(read(target), data[:MIB] + new[MIB : 2 * MIB] + data[2 * MIB :], "content")


def test_a_source_that_is_truncated_meanwhile(folder):
    data, source, target = source_of(folder)
    with Copier(source, target) as copier:
        copier.write(data[:MIB])
        os.truncate(source, 2 * MIB)
        os.truncate(source, 4 * MIB)
        copier.write(data[MIB : 2 * MIB])
        copier.write(bytes(MIB))
        os.truncate(source, 0)
        copier.write(data[3 * MIB :])
    same_bytes(read(target), data[: 2 * MIB] + bytes(MIB) + data[3 * MIB :], "content")


def test_a_source_that_a_leaked_mapping_changes(folder):
    """A mapping whose descriptor is closed goes on changing the source: python's mmap would keep one."""
    data, source, target = source_of(folder)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    with opened(source, os.O_RDWR) as writer:
        at = libc.mmap(None, len(data), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, writer, 0)
    true(at != ctypes.c_void_p(-1).value, "mmap")
    with Copier(source, target) as copier:
        copier.write(data[:MIB])
        new = noise(4 * MIB, 11)
        ctypes.memmove(at, new, 4 * MIB)
        copier.write(new[MIB:])
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.munmap(at, len(data))
    same_bytes(read(target), data[:MIB] + new[MIB:], "content")


def operations(random_, target, model, copier):
    """One thing that is not the next write, done to the file and to its model."""
    offset, length = random_.randrange(5 * MIB), random_.randrange(1, 200 * KIB)
    data = random_.randbytes(length)

    def put(at, content):
        if len(model) < at:
            model.extend(bytes(at - len(model)))
        model[at : at + len(content)] = content

    def resize(size):
        del model[size:]
        model.extend(bytes(size - len(model)))

    def by_pwrite():
        pwrite_all(copier.target, data, offset)
        put(offset, data)

    def by_another_open():
        with opened(target, os.O_RDWR) as file:
            pwrite_all(file, data, offset)
        put(offset, data)

    def by_truncate():
        os.truncate(target, offset)
        resize(offset)

    def by_ftruncate():
        os.ftruncate(copier.target, offset)
        resize(offset)

    def by_fallocate():
        os.posix_fallocate(copier.target, offset, length)
        resize(max(len(model), offset + length))

    def by_append():
        with opened(target, os.O_WRONLY | os.O_APPEND) as file:
            write_all(file, data)
        put(len(model), data)

    def by_mapping():
        if not model:
            return
        with opened(target, os.O_RDWR) as file, mmap.mmap(file, 0) as mapping:
            at = offset % len(model)
            part = data[: len(model) - at]
            mapping[at : at + len(part)] = part
            put(at, part)

    def by_copy():
        with opened(f"/proc/self/fd/{copier.source}", os.O_RDONLY) as file:
            take = min(length, os.fstat(file).st_size)
            copied = os.copy_file_range(file, copier.target, take, 0, offset)
            put(offset, os.pread(file, copied, 0))

    def by_sync():
        os.fsync(copier.target)

    def by_times():
        os.utime(target, (1, 2))

    def by_seek():
        hole = os.lseek(copier.target, 0, os.SEEK_HOLE) if model else 0
        true(hole <= len(model), f"a hole at {hole} of {len(model)} bytes")
        os.lseek(copier.target, copier.done, os.SEEK_SET)

    def by_reading():
        same_bytes(read(target), bytes(model), "read under way")

    return [by_pwrite, by_another_open, by_truncate, by_ftruncate, by_fallocate, by_append, by_mapping, by_copy, by_sync,
            by_times, by_seek, by_reading]


def test_anything_in_the_middle(folder, shared):
    """Random operations between the writes of a copy, against a model in memory."""
    seed = int(os.environ.get("SEED", time.time_ns() % 1000000))
    print(f"      seed {seed}", flush=True)
    random_ = random.Random(seed)
    adoptions = shared.counted("adoptions")
    for round_ in range(60):
        data, source, target = source_of(folder, random_.randrange(200 * KIB, 5 * MIB), seed + round_, f"f{round_}")
        model = bytearray()
        names = []
        with Copier(source, target) as copier:
            for _ in range(random_.randrange(1, 6)):
                end = random_.randrange(copier.done, len(data) + 1)
                part = data[copier.done : end]
                if random_.random() < 0.3:
                    part = random_.randbytes(len(part))
                at = copier.done
                copier.write(part)
                if part and len(model) < at:
                    model.extend(bytes(at - len(model)))
                model[at : at + len(part)] = part
                if random_.random() < 0.8:
                    one = random_.choice(operations(random_, target, model, copier))
                    names.append(one.__name__)
                    one()
                equal(os.stat(target).st_size, len(model), f"round {round_}, size after {names}")
        same_bytes(read(target), bytes(model), f"round {round_}: {names}")
        os.unlink(target)
        os.unlink(source)
    true(shared.counted("adoptions") - adoptions >= 30, "too few adoptions")


def test_allocated_blocks_stay_the_files_own(folder, shared):
    """Else an overwrite could fail for which fallocate has made room."""
    data, source, target = source_of(folder)
    adopted = shared.counted("bytes_adopted")
    with Copier(source, target) as copier:
        os.posix_fallocate(copier.target, 0, len(data))
        copier.write(data)
    same_bytes(read(target), data, "content")
    equal(shared.counted("bytes_adopted"), adopted, "bytes that it shares")


def test_a_swap_file_that_may_be_mapped_is_not_adopted(folder, shared):
    """Its stores would take new blocks where nobody sees that they are missing."""
    state = write_state(shared.path, size=4 * MIB)
    shared.save("mapped")
    name = optimizer_file(0)
    saved = shared.path / "steps/mapped" / name_in_step(name)
    for flags, wanted in ((os.O_RDWR, 0), (os.O_WRONLY, 1)):
        adoptions = shared.counted("adoptions")
        with Copier(saved, shared.path / name, flags | os.O_TRUNC) as copier:
            copier.write(state[name])
        equal(shared.counted("adoptions") - adoptions, wanted, f"adoptions, flags {flags}")
        same_bytes(read(shared.path / name), state[name], "the live file")


def test_names_may_change_under_way(folder):
    data, source, target = source_of(folder)
    with Copier(source, target) as copier:
        copier.write(data[:MIB])
        os.rename(target, folder / "renamed")
        os.link(folder / "renamed", folder / "linked")
        copier.write(data[MIB : 2 * MIB])
        os.unlink(folder / "renamed")
        copier.write(data[2 * MIB :])
    same_bytes(read(folder / "linked"), data, "content")
    with Copier(source, target) as copier:
        copier.write(data[:MIB])
        os.unlink(target)
        equal(os.fstat(copier.target).st_size, MIB, "size of a removed file")
        copier.write(data[MIB:])


def test_a_writer_that_dies_leaves_what_it_wrote(folder):
    data, source, target = source_of(folder)
    code = (
        "import os, sys, time\n"
        "s = os.open(sys.argv[1], os.O_RDONLY)\n"
        "t = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)\n"
        "for _ in range(10): os.write(t, os.read(s, 100000))\n"
        "print('there', flush=True)\n"
        "time.sleep(1000)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, source, target], stdout=subprocess.PIPE)
    writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    same_bytes(read(target), data[:1000000], "what it had written")


def test_after_a_kill_of_the_daemon_a_copy_ends_where_it_was(folder, shared):
    data, source, target = source_of(folder)
    relative = folder.relative_to(shared.path)
    whole, synced, appended = folder / "whole" / "tensor", folder / "synced" / "tensor", folder / "appended" / "tensor"
    for path in (whole, synced, appended):
        path.parent.mkdir()
        with Copier(source, path) as copier:
            copier.write(data)
            if path == synced:
                os.fsync(copier.target)
    with opened(appended, os.O_WRONLY | os.O_APPEND) as file:
        write_all(file, b"more")
    changed = data[:MIB] + noise(MIB, 12)
    copier = Copier(source, target)
    copier.write(changed)
    (folder / "looked-at").mkdir()
    plain = Copier(source, folder / "looked-at" / "tensor")
    plain.write(data[:MIB])
    same_bytes(read(plain.path), data[:MIB], "what was written so far")
    plain.write(changed[MIB:])
    (folder / "expected").mkdir()
    expected = Copier(source, folder / "expected" / "tensor")
    expected.write(data[:MIB])
    shared.kill()
    for descriptor in (copier.source, copier.target, plain.source, plain.target, expected.source, expected.target):
        with contextlib.suppress(OSError):  # a close of what the daemon writes asks the daemon
            os.close(descriptor)
    shared.start()
    folder = shared.path / relative
    same_bytes(read(target), changed, "the copy that was under way")
    same_bytes(read(folder / "looked-at" / "tensor"), changed, "the copy that somebody had looked at")
    same_bytes(read(folder / "expected" / "tensor"), data[:MIB], "the copy of which all was as expected so far")
    same_bytes(read(whole), data, "the copy that was closed")
    same_bytes(read(synced), data, "the copy that was synced")
    same_bytes(read(appended), data + b"more", "the copy that was closed, and written to again")


def test_a_save_takes_what_was_written(folder, shared):
    """A swap file that a load is copying back, when somebody saves: it ends where the load is."""
    state = write_state(shared.path, size=4 * MIB)
    shared.save("loaded")
    name = optimizer_file(0)
    saved = shared.path / "steps/loaded" / name_in_step(name)
    adoptions = shared.counted("adoptions")
    with Copier(saved, shared.path / name) as copier:
        copier.write(state[name][:MIB])
        shared.save("under-way")
        copier.write(state[name][MIB:])
    equal(shared.counted("adoptions") - adoptions, 1, "adoptions")
    same_bytes(read(shared.path / "steps/under-way" / name_in_step(name)), state[name][:MIB], "what the save took")
    same_bytes(read(shared.path / name), state[name], "the live file")
    same_bytes(read(saved), state[name], "the step")


def test_what_is_spliced_is_what_others_wrote(folder, shared):
    """The kernel splices from an open that the daemon serves through its own pages, which a write past it leaves."""
    _, new = two_steps(shared, "spliced", {"sub/model.pt": noise(MIB)})
    with opened(new / "sub/model.pt", os.O_RDWR | os.O_CREAT | os.O_TRUNC) as file, \
            opened(shared.path.parent / "out", os.O_RDWR | os.O_CREAT) as out:

        def spliced():
            os.lseek(out, 0, os.SEEK_SET)
            os.sendfile(out, file, 0, CHUNK)
            return os.pread(out, 8, 0)

        os.pwrite(file, noise(MIB), 0)
        with opened(new / "sub/model.pt", os.O_WRONLY) as other:
            equal(spliced(), noise(MIB)[:8], "before")
            for content in (b"A" * CHUNK, b"B" * CHUNK):
                os.pwrite(other, content, 0)
                equal(spliced(), content[:8], "behind another's write")
