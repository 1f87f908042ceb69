"""Prepares the memory before a measurement."""

import mmap
import pathlib


def drop_caches():
    """Drops the clean pages of files."""
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")


def touch_free(size=3 << 30):
    """Makes sure that the machine has some of its free memory at hand, like one that has run for long. A virtual
    machine returns free memory to its host within seconds, and getting a page back may take many times as long as
    filling it."""
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    size = min(size, int(fields["MemFree"].split()[0]) * 1024 // 2)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, size - size % mmap.PAGESIZE, flags=flags).close()
