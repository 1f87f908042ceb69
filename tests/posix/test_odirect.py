"""Unaligned O_DIRECT in odirect=safe: any buffer, offset, length, on sectors of 512 and 4096, in both open modes."""

import errno
import mmap
import os
import random
import threading

import pytest

from agent import Agent
from checking import equal, noise, opened, raises, read, same_bytes, true, write
from memory import drop_caches
from mounting import MIB, Store, by_level, helper, mounted, run, xfs

pytestmark = pytest.mark.timeout(900)


def random_operations(folder, seed, alignment, threads=4, size=8 * MIB + 1234, extra=()):
    """helpers/odirect_any against its reference in memory."""
    operations = by_level(400, 40000)
    size -= size % alignment
    words = (folder / f"file-{seed}", size, operations, threads, seed, alignment, *extra)
    print(run(helper("odirect_any"), *words, timeout=600).stdout.strip())


def unaligned_buffer(length, shift):
    """A writable view that begins `shift` bytes behind a page."""
    return memoryview(mmap.mmap(-1, length + 8192))[shift : shift + length]


@pytest.fixture(scope="module", params=(512, 4096))
def sector(request):
    return request.param


@pytest.fixture(scope="module")
def disk(work, sector):
    with xfs(work, sector=sector, name=f"disk{sector}") as point:
        yield point


@pytest.fixture(scope="module")
def swap(shared_mount, mode):
    """The folder of swap files, in which no O_DIRECT is refused."""
    if mode == "plain":
        pytest.skip("plain: XFS refuses what is unaligned")
    folder = shared_mount.path / "zero_stage_3" / "optimizer" / "rank0"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def raw(request, work, disk):
    """A folder on a mount that hands O_DIRECT to the disk as it is, or with --plain on the disk."""
    if request.config.getoption("plain"):
        yield disk
        return
    with mounted(Store(disk / "raw"), work / "mnt-raw", odirect="raw") as mount:
        yield mount.path


def test_harmful_is_known(swap, shared):
    """The loop device wants more than 4 bytes, so O_DIRECT here is harmful, and status says so."""
    true(shared.status()["alignment"]["harmful"], f"status: {shared.status()['alignment']}")


@pytest.mark.parametrize("threads", (1, 4))
def test_random(swap, seed, threads):
    random_operations(swap, seed + threads, 1, threads)


def test_random_aligned_to_4096(swap, seed):
    random_operations(swap, seed + 10, 4096)


def test_random_without_o_direct(folder, seed):
    random_operations(folder, seed + 11, 1, 4, 8 * MIB + 99, ("buffered",))


def test_swap_pattern(swap):
    """As DeepSpeed does it: whole files of 1 KiB multiples, written in place, read back from odd addresses."""
    for number, length in enumerate((1024, 5 * 1024, MIB + 1024, 3 * MIB + 7 * 1024)):
        path = swap / f"{number}.tensor.swp"
        for version in range(3):
            data = noise(length, 100 * number + version)
            with opened(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600) as file:
                buffer = unaligned_buffer(length, 52)
                buffer[:] = data
                equal(os.pwritev(file, [buffer], 0), length, "written")
                equal(os.stat(path).st_size, length, "size right behind it")
            with opened(path, os.O_RDONLY | os.O_DIRECT) as file:
                for shift in (0, 4, 52, 511, 513):
                    buffer = unaligned_buffer(length, shift)
                    equal(os.preadv(file, [buffer], 0), length, "read")
                    same_bytes(bytes(buffer), data, f"into a buffer at {shift}")
                half = unaligned_buffer(length // 2, 20)
                equal(os.preadv(file, [half], length // 2), length // 2, "a half")
                same_bytes(bytes(half), data[length // 2 :], "the second half")
            same_bytes(read(path), data, "through a buffered descriptor")


def test_vectors(swap):
    """readv and writev with parts of odd sizes."""
    data = noise(300000)
    with opened(swap / "vector", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as file:
        parts, at, dice = [], 0, random.Random(1)
        while at < len(data):
            step = dice.choice((1, 13, 511, 512, 4096, 70001))
            parts.append(data[at : at + step])
            at += step
        equal(os.pwritev(file, parts, 7), len(data), "written")
        back = [bytearray(length) for length in (1, 100000, 3, 199996)]
        equal(os.preadv(file, back, 7), len(data), "read")
        same_bytes(b"".join(back), data, "content")


def test_appending(swap):
    """O_DIRECT with O_APPEND (as FastFileWriter reopens its file), and beside buffered writers."""
    wanted = bytearray()
    for number in range(40):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_DIRECT if number % 2 else 0)
        piece = noise(1 + number * 301, number)
        with opened(swap / "appended", flags) as file:
            equal(os.write(file, piece), len(piece), "written")
        wanted += piece
    same_bytes(read(swap / "appended"), bytes(wanted), "content")


def test_truncating_beside(swap):
    """Sizes that end inside a sector: shrunk and grown, what lay behind the end never comes back."""
    path = swap / "cut"
    data = noise(100000)
    write(path, data)
    with opened(path, os.O_RDWR | os.O_DIRECT) as file:
        os.ftruncate(file, 1001)
        os.ftruncate(file, 3000)
        buffer = unaligned_buffer(5000, 9)
        equal(os.preadv(file, [buffer], 0), 3000, "read to the end")
        same_bytes(bytes(buffer[:3000]), data[:1001] + bytes(1999), "zeros behind the cut")
        equal(os.pwritev(file, [b"x" * 700], 4000), 700, "a write beyond the end")
        equal(os.fstat(file).st_size, 4700, "size")
        same_bytes(read(path), data[:1001] + bytes(2999) + b"x" * 700, "a hole in between")


def test_synced(swap):
    with opened(swap / "synced", os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_DSYNC) as file:
        equal(os.pwritev(file, [b"abc" * 1000], 5), 3000, "written")
        os.fsync(file)
        equal(os.preadv(file, [bytearray(3005)], 0), 3005, "read")


def test_mapped_beside(swap):
    """A mapping and an unaligned direct writer of one file see each other."""
    path = swap / "mapped"
    write(path, noise(64 * 1024))
    with Agent() as agent:
        mapping = agent.map(path, 64 * 1024)
        agent.store(mapping, 100, b"stored")
        agent.msync(mapping)
        with opened(path, os.O_RDWR | os.O_DIRECT) as file:
            buffer = unaligned_buffer(6, 3)
            os.preadv(file, [buffer], 100)
            equal(bytes(buffer), b"stored", "a store, read directly")
            os.pwritev(file, [b"direct"], 201)
        equal(agent.load(mapping, 201, 6), b"direct", "a direct write, seen through the mapping")
        agent.unmap(mapping)


def test_neighbours_in_one_block(swap):
    """A write that ends inside a block of the file system, and one beside it in that block that has to read it first."""
    model = bytearray(noise(MIB, 7))
    with opened(swap / "neighbours", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as file:
        equal(os.pwrite(file, model, 0), MIB, "written")
        for round_ in range(by_level(5, 200)):
            os.fsync(file)
            drop_caches()
            parts = {100: noise(8604, 2 * round_), 8804: noise(10, 2 * round_ + 1)}
            writers = [threading.Thread(target=os.pwrite, args=(file, data, at)) for at, data in parts.items()]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            for at, data in parts.items():
                model[at : at + len(data)] = data
            os.fsync(file)
            drop_caches()
            same_bytes(os.pread(file, 16384, 0), bytes(model[:16384]), f"round {round_}")


def test_raw_refuses(raw, sector):
    """In odirect=raw passthrough the kernel refuses what is unaligned, and takes what is aligned."""
    data = noise(MIB)
    with opened(raw / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as file:
        buffer = unaligned_buffer(MIB, 0)
        buffer[:] = data
        equal(os.pwritev(file, [buffer], 0), MIB, "aligned write")
        with raises(errno.EINVAL, what="a read at an odd offset"):
            os.preadv(file, [unaligned_buffer(sector, 0)], 3)
    same_bytes(read(raw / "file"), data, "content")


def test_raw_random_aligned(raw, seed, sector):
    random_operations(raw, seed + 20, sector)
