"""What has to be done to memory before a clock starts."""

import mmap
import pathlib


def drop_caches():
    """Of files, what need not be written first."""
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")


def touch_free(size=3 << 30):
    """Has the machine have some of its free memory at hand, as one that runs for long does: a virtual machine gives what
    is free back to its host within seconds, and getting a page anew may take many times as long as filling it."""
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":") for line in file)
    size = min(size, int(fields["MemFree"].split()[0]) * 1024 // 2)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, size - size % mmap.PAGESIZE, flags=flags).close()
