"""Counts from outside, block by block, what everything in a mount uses on the disk (tests/posix/test_accounting.py).

Only the daemon knows which blob belongs to a file. So every file begins with a unique mark of 16 bytes, which each
change rewrites (`mark`), and its blob has a unique mtime. A blob with the same mark as another one is its clone, made
by a save or a seal, and has another mtime than the file.
"""

import collections
import errno
import fcntl
import itertools
import os
import pathlib
import struct

from checking import true
from mounting import Failure

BLOCK = 4096
MARK = 16
_FIEMAP = 0xC020660B
_SHARED = 0x2000
_numbers = itertools.count(1)


def mark(path):
    """Writes the next mark at the file's start, and sets a unique mtime."""
    number = next(_numbers)
    file = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(file, b"mark" + number.to_bytes(MARK - 4, "little"), 0)
    finally:
        os.close(file)
    os.utime(path, ns=(number, 10**18 + number))


class Blob:
    """One file in blobs/, as it is on the disk."""

    def __init__(self, path):
        file = os.open(path, os.O_RDONLY)
        try:
            self.blocks = list(_blocks(file))  # (number on the disk, flagged as shared), in the file's order
            self.mark = os.pread(file, MARK, 0)
            self.time = os.fstat(file).st_mtime_ns
        finally:
            os.close(file)
        self.inodes = set()


def _blocks(file):
    room = 1000
    position = 0
    while True:
        head = struct.pack("=QQLLLL", position, (1 << 63) - 1 - position, 1, 0, room, 0)
        request = bytearray(head + bytes(56 * room))
        fcntl.ioctl(file, _FIEMAP, request)
        count = struct.unpack_from("=L", request, 20)[0]
        for index in range(count):
            logical, physical, length = struct.unpack_from("=QQQ", request, 32 + 56 * index)
            flags = struct.unpack_from("=L", request, 32 + 56 * index + 40)[0]
            true(physical % BLOCK == 0 and length % BLOCK == 0, "extents of whole blocks")
            for block in range(physical // BLOCK, (physical + length) // BLOCK):
                yield block, bool(flags & _SHARED)
            position = logical + length
        if count < room:
            return


class Unsettled(Failure):
    """Something is still in progress: the removal of a blob, or a count of the file system."""


class Recount:
    """The tree and the blobs as of now. Nobody may change the tree meanwhile. Unsettled: the daemon was still
    working."""

    def __init__(self, mount):
        self.root = mount.path
        self.names = collections.defaultdict(set)  # inode -> its paths from the root
        self.lengths = {}
        self.blobs = [blob for blob in self._read_blobs(mount.store.blobs) if blob.blocks]
        self._read_tree(mount)
        self.state = sorted((blob.mark, blob.time, blob.blocks) for blob in self.blobs)
        self.holders = collections.defaultdict(set)  # block -> inodes that have it
        for blob in self.blobs:
            if not blob.inodes:
                raise Unsettled(f"a blob that nothing names: {blob.mark}")
            for block, _ in blob.blocks:
                self.holders[block] |= blob.inodes
        counts = collections.Counter(block for blob in self.blobs for block, _ in blob.blocks)
        if any(flag != (counts[block] > 1) for blob in self.blobs for block, flag in blob.blocks):
            raise Unsettled("the file system counts a block that no blob has")

    @staticmethod
    def _read_blobs(folder):
        for entry in os.scandir(folder):
            try:
                yield Blob(entry.path)
            except FileNotFoundError as gone:
                raise Unsettled("a blob is being removed") from gone

    def _read_tree(self, mount):
        by_mark = collections.defaultdict(list)
        for blob in self.blobs:
            by_mark[blob.mark].append(blob)
        for where, _, files in os.walk(self.root):
            for name in files:
                path = pathlib.Path(where, name)
                status = os.stat(path)
                self.names[status.st_ino].add(str(path.relative_to(self.root)))
                self.lengths[status.st_ino] = status.st_size
                frozen = os.getxattr(path, "user.ckptfs.state") == b"frozen"
                with open(path, "rb") as file:
                    found = by_mark[file.read(MARK)]
                mine = found
                if len(found) > 1:
                    mine = [blob for blob in found if (blob.time == status.st_mtime_ns) != frozen]
                if len(mine) != 1:
                    raise Unsettled(f"{path} may be {len(mine)} of {len(found)} blobs with its mark")
                mine[0].inodes.add(status.st_ino)

    def usage(self, lies_in):
        """Returns the usage of the names for which lies_in(name) holds, with the daemon's terms."""
        whole = {inode for inode, names in self.names.items() if all(map(lies_in, names))}
        partly = {inode for inode, names in self.names.items() if any(map(lies_in, names))}
        used = {block for blob in self.blobs if blob.inodes & partly for block, _ in blob.blocks}
        exclusive = sum(1 for block in used if self.holders[block] <= whole)
        return {
            "apparent": sum(self.lengths[inode] for inode in partly),
            "exclusive": exclusive * BLOCK,
            "shared": (len(used) - exclusive) * BLOCK,
        }

    def usage_of_file(self, inode):
        return self.usage(lambda name: name in self.names[inode])


def usage_by_xattr(path):
    """Returns the usage that the mount reports, or None if it reports none."""
    try:
        return {
            which: int(os.getxattr(path, f"user.ckptfs.bytes.{which}")) for which in ("apparent", "exclusive", "shared")
        }
    except OSError as problem:
        if problem.errno != errno.ENODATA:
            raise
        return None
