"""Files on the mount, or on plain XFS beside it, which posix/test_adopt_random.py treats alike."""

import ctypes
import fcntl
import mmap
import os
import pathlib
import threading

from checking import read, write

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
MS_SYNC = 4


def aligned(data):
    """The bytes in memory that O_DIRECT takes."""
    buffer = mmap.mmap(-1, max(len(data), 1))
    buffer[: len(data)] = data
    return memoryview(buffer)[: len(data)]


class Side:
    """One of the two file systems, with what is open and mapped there. Its methods are the operations."""

    def __init__(self, root, mode):
        self.root = pathlib.Path(root)
        self.sync_mappings = mode == "direct"  # there a store counts from msync on
        # XFS itself may answer EIO to an O_DIRECT read across the end of the file.
        self.never = os.O_DIRECT if mode == "plain" else 0
        self.files, self.maps = {}, {}

    def open(self, key, path, flags):
        self.files[key] = os.open(self.root / path, flags & ~self.never, 0o644)

    def close(self, key):
        os.close(self.files.pop(key))

    def write(self, key, data):
        return os.write(self.files[key], data)

    def skip(self, key, length):
        return os.lseek(self.files[key], length, os.SEEK_CUR)

    def rewind(self, key, offset):
        return os.lseek(self.files[key], offset, os.SEEK_SET)

    def end(self, key):
        return os.lseek(self.files[key], 0, os.SEEK_END)

    def sendfile(self, key, source, offset, length):
        return os.sendfile(self.files[key], self.files[source], offset, length)

    def pwrite(self, key, data, offset):
        return os.pwrite(self.files[key], aligned(data), offset)

    def pwrite_together(self, key, parts):
        """Several at the same time, that do not overlap. With O_APPEND one by one: each goes to the end."""
        if fcntl.fcntl(self.files[key], fcntl.F_GETFL) & os.O_APPEND:
            for at, data in parts:
                self.pwrite(key, data, at)
            return
        threads = [threading.Thread(target=self.pwrite, args=(key, data, at)) for at, data in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def pread(self, key, length, offset):
        buffer = mmap.mmap(-1, max(length, 1))
        return buffer[: os.preadv(self.files[key], [memoryview(buffer)[:length]], offset)]

    def content(self, path):
        return read(self.root / path)

    def stat(self, path):
        status = os.stat(self.root / path)
        return status.st_size, status.st_nlink

    def fstat(self, key):
        status = os.fstat(self.files[key])
        return status.st_size, status.st_nlink

    def listing(self, folder):
        entries = sorted(os.scandir(self.root / folder), key=lambda entry: entry.name)
        return [(entry.name, entry.stat().st_size if entry.is_file() else None) for entry in entries]

    def set_time(self, path, nanoseconds):
        os.utime(self.root / path, ns=(nanoseconds, nanoseconds))

    def time(self, path):
        return os.stat(self.root / path).st_mtime_ns

    def truncate(self, path, length):
        os.truncate(self.root / path, length)

    def ftruncate(self, key, length):
        os.ftruncate(self.files[key], length)

    def fallocate(self, key, mode, offset, length):
        if LIBC.fallocate(self.files[key], mode, offset, length) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    def copy_range(self, from_, from_offset, to, to_offset, length):
        done = 0
        while done < length:
            copied = os.copy_file_range(
                self.files[from_], self.files[to], length - done, from_offset + done, to_offset + done
            )
            if copied == 0:
                break
            done += copied
        return done

    def fsync(self, key):
        os.fsync(self.files[key])

    def fdatasync(self, key):
        os.fdatasync(self.files[key])

    def rename(self, path, to):
        os.rename(self.root / path, self.root / to)

    def unlink(self, path):
        os.unlink(self.root / path)

    def link(self, path, to):
        os.link(self.root / path, self.root / to)

    def new(self, path, data):
        write(self.root / path, data)

    def map(self, number, path, length, keep):
        """Shared and writable; the descriptor is closed, or not."""
        descriptor = os.open(self.root / path, os.O_RDWR)
        at = LIBC.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
        if at == ctypes.c_void_p(-1).value:
            os.close(descriptor)
            raise OSError(ctypes.get_errno(), "mmap")
        if not keep:
            os.close(descriptor)
        self.maps[number] = (at, length, descriptor if keep else None)

    def store(self, number, offset, data):
        at, length, _ = self.maps[number]
        ctypes.memmove(at + offset, data, len(data))
        if self.sync_mappings and LIBC.msync(at, length, MS_SYNC) != 0:
            raise OSError(ctypes.get_errno(), "msync")

    def load(self, number, offset, length):
        return ctypes.string_at(self.maps[number][0] + offset, length)

    def unmap(self, number):
        at, length, descriptor = self.maps.pop(number)
        LIBC.munmap(at, length)
        if descriptor is not None:
            os.close(descriptor)

    def let_go(self):
        for key in list(self.files):
            self.close(key)
        for number in list(self.maps):
            self.unmap(number)
