"""Makes shutil share instead of copy, between two files of a ckptfs mount.

    import ckptfs.patch                          # anywhere before the first save
    python -m ckptfs.patch train.py --lr 1e-4    # or without a changed line

shutil (copyfile, copy, copytree, move) copies by sendfile up to Python 3.13: the mount sees reads and writes. With this
it asks for copy_file_range, which ckptfs answers by sharing the blocks, as Python does by itself from 3.14 on. Files
that are not both on the same ckptfs mount are copied as before. Takes nothing but the standard library, and may be
imported more than once.
"""

import errno
import logging
import os
import pathlib
import runpy
import shutil
import sys

_CHUNK = 1 << 30  # of one copy_file_range; a longer call is legal, and answered with less
_log = logging.getLogger("ckptfs")
_known = {}  # st_dev -> is that a ckptfs mount?


def _is_ckptfs(device):
    if device not in _known:
        wanted = f"{os.major(device)}:{os.minor(device)}"
        _known[device] = False
        for line in pathlib.Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            if before.split(" ")[2] == wanted:
                _known[device] = after.startswith("fuse.ckptfs ")
    return _known[device]


def _shares(source, target):
    """Are these descriptors files of one ckptfs mount?"""
    device = os.fstat(source).st_dev
    return device == os.fstat(target).st_dev and _is_ckptfs(device)


def _copy_file_range(source, target):
    """The whole of the source, from where both stand; how much that was."""
    done = 0
    while count := os.copy_file_range(source, target, _CHUNK):
        done += count
    return done


def _replacement(sendfile):
    """shutil's own function for Linux, with the same contract: it copies all, or raises _GiveupOnFastCopy having
    copied nothing, or raises an OSError that names both files."""

    def fastcopy(fsrc, fdst):
        try:
            source, target = fsrc.fileno(), fdst.fileno()
        except (AttributeError, OSError, ValueError):  # io.UnsupportedOperation is both of the last
            return sendfile(fsrc, fdst)
        if not _shares(source, target):
            return sendfile(fsrc, fdst)
        try:
            _copy_file_range(source, target)
        except OSError as error:
            if os.lseek(target, 0, os.SEEK_CUR) == 0 and error.errno != errno.ENOSPC:
                _log.warning("%s: not shared, copied: %s", fdst.name, error)
                return sendfile(fsrc, fdst)
            error.filename, error.filename2 = fsrc.name, fdst.name
            raise
        return None

    fastcopy.ckptfs = True
    return fastcopy


def _install():
    sendfile = getattr(shutil, "_fastcopy_sendfile", None)  # since 3.14 there is copy_file_range before it
    if sendfile is not None and hasattr(os, "copy_file_range") and not hasattr(sendfile, "ckptfs"):
        shutil._fastcopy_sendfile = _replacement(sendfile)


_install()


def _main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(f"Usage: python -m ckptfs.patch SCRIPT [ARGUMENT]...\n\n{__doc__}", end="")
        sys.exit(0 if len(sys.argv) > 1 else 2)
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main()
