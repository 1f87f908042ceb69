"""Data on the mount: reading, writing, copying, open files, mappings, locks; in both open modes."""

import errno
import fcntl
import mmap
import os
import stat

import pytest

from agent import Agent
from checking import equal, in_child, noise, opened, pwrite_all, raises, read, same_bytes, true, write, write_all
from mounting import CKPTFS_DEBUG, KIB, MIB, run


# --- data


def test_write_then_read(folder):
    data = noise(3 * MIB + 17)
    write(folder / "f", data)
    equal(os.stat(folder / "f").st_size, len(data), "size")
    same_bytes(read(folder / "f"), data, "content")
    with opened(folder / "f", os.O_RDWR) as file:
        pwrite_all(file, b"middle", 1000001)
        equal(os.pread(file, 6, 1000001), b"middle", "what was written")
        equal(os.pread(file, 100, len(data) - 10), data[-10:], "across the end")
        equal(os.pread(file, 100, len(data) + 10), b"", "beyond the end")
    same_bytes(read(folder / "f"), data[:1000001] + b"middle" + data[1000007:], "content")


def test_access_modes(folder):
    write(folder / "f", b"x")
    with opened(folder / "f", os.O_WRONLY) as file, raises(errno.EBADF):
        os.read(file, 1)
    with opened(folder / "f", os.O_RDONLY) as file, raises(errno.EBADF):
        os.write(file, b"y")
    with opened(folder / "f", os.O_RDONLY) as file, raises(errno.EINVAL, errno.EBADF):
        os.ftruncate(file, 0)


def test_append(folder):
    write(folder / "f", b"0")
    with opened(folder / "f", os.O_WRONLY | os.O_APPEND) as one, opened(folder / "f", os.O_WRONLY | os.O_APPEND) as two:
        for number in range(50):
            os.write(one, b"a")
            os.write(two, b"b" * (number % 3))
    wanted = b"0" + b"".join(b"a" + b"b" * (number % 3) for number in range(50))
    equal(read(folder / "f"), wanted, "in the order of the writes")
    with opened(folder / "f", os.O_RDWR | os.O_APPEND) as file:
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, b"end")
    equal(read(folder / "f"), wanted + b"end", "at the end wherever the offset stands")


def test_appends_from_processes(folder):
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            with opened(folder / "f", os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
                for count in range(200):
                    os.write(file, f"{number} {count:04d}\n".encode())
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    lines = read(folder / "f").decode().splitlines()
    equal(len(lines), 800, "lines")
    for number in range(4):
        equal(
            [line for line in lines if line.startswith(f"{number} ")],
            [f"{number} {count:04d}" for count in range(200)],
            f"process {number}",
        )


def test_truncation(folder):
    data = noise(100000)
    write(folder / "f", data)
    os.truncate(folder / "f", 12345)
    equal(os.stat(folder / "f").st_size, 12345, "size")
    os.truncate(folder / "f", 50000)
    same_bytes(read(folder / "f"), data[:12345] + bytes(50000 - 12345), "shrunk, then grown")
    with opened(folder / "f", os.O_RDWR) as file:
        os.ftruncate(file, 3)
        equal(os.fstat(file).st_size, 3, "size by descriptor")
        pwrite_all(file, b"far", 9000)
    same_bytes(read(folder / "f"), data[:3] + bytes(8997) + b"far", "a hole in between")
    with opened(folder / "f", os.O_WRONLY | os.O_TRUNC):
        equal(os.stat(folder / "f").st_size, 0, "size after O_TRUNC")
    with opened(folder / "f", os.O_RDWR) as reader:
        write(folder / "f", b"again")
        equal(os.pread(reader, 10, 0), b"again", "a reader across O_TRUNC")
    with raises(errno.EINVAL):
        os.truncate(folder / "f", -1)
    with raises(errno.EISDIR):
        os.truncate(folder, 0)


def test_attributes_right_behind_writes(folder):
    """What DeepSpeed asserts: stat by path, from another process, right behind a write."""
    with opened(folder / "f", os.O_RDWR | os.O_CREAT) as file:
        size = 0
        for number in range(50):
            chunk = noise(1 + number * 777, number)
            size += os.write(file, chunk)
            equal(os.stat(folder / "f").st_size, size, "size by path")
            equal(os.fstat(file).st_size, size, "size by descriptor")
            if number % 10 == 0:
                equal(in_child(lambda: os.stat(folder / "f").st_size), size, "size in another process")
    with Agent() as agent:
        for number in range(1, 12):
            data = noise(number * MIB // 2, number)
            size = agent.aio(folder / "swap", data)
            equal(size, max(len(data), os.stat(folder / "swap").st_size), "stat in the writer")
            equal(os.stat(folder / "swap").st_size, len(data), "stat in another process")
            true(os.stat(folder / "swap").st_blocks * 512 >= len(data), "blocks")
        same_bytes(read(folder / "swap"), data, "content")
        same_bytes(agent.aioread(folder / "swap", len(data)), data, "content by libaio")


def test_attributes_of_files_that_were_just_made(folder):
    """The kernel may use CREATE's answer for a moment. What changes in that moment shows at once."""
    write(folder / "source", b"s" * 5000)
    with opened(folder / "source", os.O_RDONLY) as source:
        changes = {
            "written": lambda file: os.write(file, b"x" * 4321),
            "written behind a hole": lambda file: os.pwrite(file, b"x", 4320),
            "truncated": lambda file: os.ftruncate(file, 4321),
            "allocated": lambda file: os.posix_fallocate(file, 0, 4321),
            "copied": lambda file: os.copy_file_range(source, file, 4321, 0, 0),
        }
        for number in range(20):
            for how, change in changes.items():
                name = folder / f"{how} {number}"
                with opened(name, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
                    change(file)
                    status = os.stat(name)
                    equal(status.st_size, 4321, f"size by path, {how}")
                    equal(status.st_blocks > 0, how != "truncated", f"blocks by path, {how}")
                    equal(os.fstat(file).st_size, 4321, f"size by descriptor, {how}")

    def mode_after_a_write(name):
        with opened(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o4755) as file:
            os.seteuid(4321)
            os.write(file, b"x")
            os.seteuid(0)
            return stat.S_IMODE(os.stat(folder / name).st_mode)

    made = in_child(lambda: [mode_after_a_write(f"suid {number}") for number in range(20)])
    equal(made, [0o755] * 20, "modes: another user's write takes suid away")


def test_a_file_that_is_made_costs_no_further_request(mount):
    """The kernel asks for the folder's attributes after each change of it, and has those of the file already."""
    made = 200

    def asked():
        return mount.counted("operations").get("getattr", 0)

    before, told = asked(), mount.counted("notifications")
    for number in range(made):
        os.close(os.open(mount.path / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    true(asked() - before < 1.5 * made, f"{asked() - before} times asked for attributes, {made} files made")
    true(mount.counted("notifications") - told < made // 2, "the kernel was told of files that it did not know")


def test_fallocate_and_holes(folder):
    data = noise(1 * MIB)
    write(folder / "f", data)
    run("fallocate", "--punch-hole", "--offset", 256 * KIB, "--length", 256 * KIB, folder / "f")
    same_bytes(read(folder / "f"), data[: 256 * KIB] + bytes(256 * KIB) + data[512 * KIB :], "a hole punched")
    equal(os.stat(folder / "f").st_size, MIB, "size")
    with opened(folder / "f", os.O_RDWR) as file:
        os.posix_fallocate(file, 0, 2 * MIB)
        equal(os.fstat(file).st_size, 2 * MIB, "allocated to 2 MiB")
        true(os.fstat(file).st_blocks * 512 >= 2 * MIB, "blocks")
    run("fallocate", "--keep-size", "--offset", 0, "--length", 4 * MIB, folder / "f")
    equal(os.stat(folder / "f").st_size, 2 * MIB, "size kept")
    run("fallocate", "--zero-range", "--offset", 1000, "--length", 2000, folder / "f")
    same_bytes(
        read(folder / "f"),
        data[:1000] + bytes(2000) + data[3000 : 256 * KIB] + bytes(256 * KIB) + data[512 * KIB :] + bytes(MIB),
        "a range zeroed",
    )


def test_data_and_holes_are_found(folder):
    with opened(folder / "f", os.O_RDWR | os.O_CREAT) as file:
        pwrite_all(file, b"d" * 64 * KIB, 0)
        pwrite_all(file, b"d" * 64 * KIB, MIB)
        os.ftruncate(file, 2 * MIB)
        os.fsync(file)
        equal(os.lseek(file, 0, os.SEEK_DATA), 0, "data at 0")
        equal(os.lseek(file, 0, os.SEEK_HOLE), 64 * KIB, "the first hole")
        equal(os.lseek(file, 64 * KIB, os.SEEK_DATA), MIB, "the next data")
        equal(os.lseek(file, MIB, os.SEEK_HOLE), MIB + 64 * KIB, "the next hole")
        with raises(errno.ENXIO):
            os.lseek(file, 2 * MIB, os.SEEK_HOLE)
        with raises(errno.ENXIO):
            os.lseek(file, MIB + 64 * KIB, os.SEEK_DATA)
        equal(os.lseek(file, -10, os.SEEK_END), 2 * MIB - 10, "SEEK_END")
        equal(os.lseek(file, 5, os.SEEK_CUR), 2 * MIB - 5, "SEEK_CUR")


def copy_range(source, target, length, from_, to):
    """copy_file_range until all is copied: short ones are legal."""
    left = length
    while left:
        done = os.copy_file_range(source, target, left, from_ + length - left, to + length - left)
        if done == 0:
            return length - left
        left -= done
    return length


def test_ranges_are_copied(folder):
    data = noise(3 * MIB + 1234)
    write(folder / "a", data)
    for from_, to, length in (
        (0, 0, len(data)),
        (0, 0, MIB),
        (4 * KIB, 8 * KIB, MIB),
        (1, 2, 100000),
        (4096, 5, 70000),
        (123456, 4096, 2 * MIB),
        (len(data) - 10, 3 * MIB, 10),
        (0, 5 * MIB, 100),
    ):
        before = noise(4 * MIB, 7)
        write(folder / "b", before)
        with opened(folder / "a", os.O_RDONLY) as source, opened(folder / "b", os.O_RDWR) as target:
            equal(copy_range(source, target, length, from_, to), length, "copied")
            equal(os.fstat(target).st_size, max(len(before), to + length), "size")
        padded = before.ljust(to, b"\0")
        same_bytes(
            read(folder / "b"), padded[:to] + data[from_ : from_ + length] + padded[to + length :], f"{from_, to, length}"
        )
    same_bytes(read(folder / "a"), data, "the source")
    with opened(folder / "a", os.O_RDONLY) as source, opened(folder / "b", os.O_RDWR) as target:
        equal(os.copy_file_range(source, target, 100, len(data), 0), 0, "from the end")
        with raises(errno.EBADF):
            os.copy_file_range(target, source, 100, 0, 0)


def test_ranges_are_copied_within_a_file(folder):
    data = noise(2 * MIB)
    write(folder / "f", data)
    with opened(folder / "f", os.O_RDWR) as file:
        equal(copy_range(file, file, 512 * KIB, 0, MIB), 512 * KIB, "aligned")
        equal(copy_range(file, file, 1000, 3, 5000), 1000, "unaligned")
        with raises(errno.EINVAL):
            os.copy_file_range(file, file, 1000, 0, 500)
    wanted = bytearray(data)
    wanted[MIB : MIB + 512 * KIB] = data[: 512 * KIB]
    wanted[5000:6000] = wanted[3:1003]
    same_bytes(read(folder / "f"), bytes(wanted), "content")


def test_a_copied_file_is_a_file_of_its_own(folder):
    data = noise(2 * MIB)
    write(folder / "a", data)
    with opened(folder / "a", os.O_RDONLY) as source, opened(folder / "b", os.O_RDWR | os.O_CREAT) as target:
        copy_range(source, target, len(data), 0, 0)
    with opened(folder / "a", os.O_RDWR) as file:
        pwrite_all(file, b"A" * 10000, 4000)
    same_bytes(read(folder / "b"), data, "the copy, after a write into the source")
    with opened(folder / "b", os.O_RDWR) as file:
        pwrite_all(file, b"B" * 10000, 100000)
    same_bytes(read(folder / "a"), data[:4000] + b"A" * 10000 + data[14000:], "the source, after a write into the copy")


def test_fsync_of_everything(folder):
    with opened(folder / "f", os.O_RDWR | os.O_CREAT) as file:
        os.write(file, b"x")
        os.fsync(file)
        os.fdatasync(file)
    with opened(folder / "f", os.O_RDONLY) as file:
        os.fsync(file)
    with opened(folder, os.O_RDONLY) as directory:
        os.fsync(directory)
    with opened(folder / "s", os.O_WRONLY | os.O_CREAT | os.O_SYNC) as file:
        os.write(file, b"synced")
    with opened(folder / "s", os.O_WRONLY | os.O_DSYNC) as file:
        os.write(file, b"SYNC")
    equal(read(folder / "s"), b"SYNCed", "content")


# --- open files


def test_open_unlinked_files(folder):
    with opened(folder / "f", os.O_RDWR | os.O_CREAT) as file:
        write_all(file, b"before")
        os.unlink(folder / "f")
        equal(os.listdir(folder), [], "listing")
        equal(os.fstat(file).st_nlink, 0, "links")
        pwrite_all(file, b"after" * 1000, 100)
        equal(os.fstat(file).st_size, 5100, "size")
        os.fsync(file)
        os.ftruncate(file, 105)
        equal(os.pread(file, 200, 0), b"before" + bytes(94) + b"after", "content")
        os.fchmod(file, 0o600)
        equal(stat.S_IMODE(os.fstat(file).st_mode), 0o600, "mode")
        os.utime(file, ns=(10**9, 10**9))
        write(folder / "f", b"another")
        equal(os.pread(file, 6, 0), b"before", "the old one beside a new one of its name")
        true(os.fstat(file).st_ino != os.stat(folder / "f").st_ino, "two inodes")
    equal(read(folder / "f"), b"another", "the new one")


def test_open_files_keep_their_content_under_rename(folder):
    write(folder / "a", b"a")
    with opened(folder / "a", os.O_RDWR) as file:
        os.rename(folder / "a", folder / "b")
        os.write(file, b"A")
        write(folder / "a", b"other")
        equal(read(folder / "b"), b"A", "through the new name")
        equal(os.fstat(file).st_ino, os.stat(folder / "b").st_ino, "inode")


def test_many_descriptors_of_one_file(folder):
    files = [os.open(folder / "f", os.O_RDWR | os.O_CREAT) for _ in range(100)]
    for number, file in enumerate(files):
        os.pwrite(file, bytes([number]), number)
    for file in files:
        equal(os.pread(file, 200, 0), bytes(range(100)), "each sees all")
        os.close(file)
    with opened(folder / "f", os.O_RDONLY) as reader, opened(folder / "f", os.O_RDWR | os.O_DIRECT) as direct:
        buffer = mmap.mmap(-1, 4096)
        buffer.write(b"d" * 4096)
        equal(os.pwritev(direct, [buffer], 0), 4096, "O_DIRECT beside a buffered reader")
        equal(os.pread(reader, 10, 0), b"d" * 10, "the buffered reader sees it")
        buffer[:] = bytes(4096)
        equal(os.preadv(direct, [buffer], 0), 4096, "O_DIRECT read")
        equal(buffer[:10], b"d" * 10, "content")


@pytest.mark.builds("faults")
@pytest.mark.mode("passthrough")
def test_a_file_without_a_backing_id_is_served_by_the_daemon(mount):
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, "fs.open_backing=2:error:ENFILE"  # the first is asked for by the mount
    mount.start()
    data, path = noise(3 * MIB + 17), mount.path / "f"
    with opened(path, os.O_RDWR | os.O_CREAT) as file:
        pwrite_all(file, data, 0)
        with opened(path, os.O_RDWR) as other:
            same_bytes(os.pread(other, len(data), 0), data, "through another open")
            pwrite_all(other, b"middle", 1000001)
        equal(os.pread(file, 6, 1000001), b"middle", "what another open wrote")
        equal(mount.counted("passthrough_fallbacks"), 1, "opens without a backing id")
        true(mount.status()["counters"]["operations"].get("write", 0) > 0, "the daemon serves the writes")
    same_bytes(read(path), data[:1000001] + b"middle" + data[1000007:], "content")
    equal(mount.counted("passthrough_fallbacks"), 1, "opens without a backing id, after the last close")


def test_o_tmpfile(folder):
    try:
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR)
    except OSError as problem:
        equal(problem.errno, errno.EOPNOTSUPP, "the refusal that programs understand")
        return
    os.write(file, b"x")
    os.close(file)


def test_private_and_shared_mappings(folder):
    data = noise(256 * KIB)
    write(folder / "f", data)
    with opened(folder / "f", os.O_RDWR) as file:
        shared = mmap.mmap(file, 0)
        private = mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE)
        same_bytes(shared[:], data, "what a mapping shows")
        private[0:4] = b"PRIV"
        shared[5000:5006] = b"SHARED"
        shared.flush()
        wanted = data[:5000] + b"SHARED" + data[5006:]
        same_bytes(read(folder / "f"), wanted, "after a store and msync")
        pwrite_all(file, b"pwrite", 100000)
        equal(shared[100000:100006], b"pwrite", "a write seen through the mapping")
        shared.close()
        private.close()
    with opened(folder / "f", os.O_RDONLY) as file:
        only = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        equal(only[5000:5006], b"SHARED", "a read-only mapping")
        only.close()


def test_a_mapping_outlives_its_descriptor(folder):
    data = noise(64 * KIB)
    write(folder / "f", data)
    with Agent() as agent:
        mapping = agent.map(folder / "f", len(data))
        agent.store(mapping, 10, b"stored")
        agent.msync(mapping)
        equal(read(folder / "f")[10:16], b"stored", "a store after close")
        agent.store(mapping, 40000, b"later")
        os.rename(folder / "f", folder / "g")
        agent.store(mapping, 50000, b"renamed")
        agent.msync(mapping)
        with opened(folder / "g", os.O_RDWR) as file:
            equal(os.pread(file, 5, 40000), b"later", "opened beside the mapping")
            equal(os.pread(file, 7, 50000), b"renamed", "after a rename")
            pwrite_all(file, b"written", 20000)
        equal(agent.load(mapping, 20000, 7), b"written", "a write, seen through it")
        os.unlink(folder / "g")
        agent.store(mapping, 0, b"unlinked")
        equal(agent.load(mapping, 0, 8), b"unlinked", "after unlink")
        agent.unmap(mapping)


def test_stores_through_a_mapping_move_the_mtime(folder):
    """Also once its descriptor is closed, when nobody tells the daemon of them."""
    write(folder / "f", bytes(MIB))
    with Agent() as agent:
        mapping = agent.map(folder / "f", MIB)
        os.utime(folder / "f", ns=(10**18, 10**18))
        equal(os.stat(folder / "f").st_mtime_ns, 10**18, "the mtime that was set")
        agent.store(mapping, 5000, b"stored")
        agent.msync(mapping)
        moved = os.stat(folder / "f").st_mtime_ns
        true(moved > 10**18, "the store moved the mtime")
        agent.unmap(mapping)
    equal(os.stat(folder / "f").st_mtime_ns, moved, "the mtime when the mapping is gone")


def test_programs_run_from_here(folder):
    run("cp", "/bin/true", folder / "true")
    run(folder / "true")
    write(folder / "script", b"#!/bin/sh\nexit 3\n", mode=0o755)
    equal(run(folder / "script", check=False).returncode, 3, "status of a script")


def test_whole_file_locks(folder):
    write(folder / "f", b"x" * 100)

    def try_lock(how):
        with opened(folder / "f", os.O_RDWR) as file:
            try:
                how(file)
            except OSError as problem:
                return problem.errno
            return 0

    with opened(folder / "f", os.O_RDWR) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        equal(
            in_child(lambda: try_lock(lambda other: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB))),
            errno.EAGAIN,
            "flock taken",
        )
        fcntl.flock(file, fcntl.LOCK_UN)
        equal(
            in_child(lambda: try_lock(lambda other: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB))), 0, "given back"
        )
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 20)
        equal(
            in_child(lambda: try_lock(lambda other: fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 25))),
            errno.EAGAIN,
            "a range taken",
        )
        equal(
            in_child(lambda: try_lock(lambda other: fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 50))),
            0,
            "a range beside it",
        )
