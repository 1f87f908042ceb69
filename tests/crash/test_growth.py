"""A start after kill -9 of a daemon with many files takes seconds; the files are inspected in the background."""

import os
import pathlib
import time

import pytest

from checking import equal, noise, read, same_bytes, true, write
from mounting import run, wait_until

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.disk(9), pytest.mark.timeout(1500)]

FILES = 1_000_000  # more than the daemon inspects before it serves
IN_A_FOLDER = 1000
SECONDS = 10


def make_files(mount):
    for first in range(0, FILES, IN_A_FOLDER):
        folder = mount.path / f"folder-{first}"
        folder.mkdir()
        for number in range(first, first + IN_A_FOLDER):
            os.close(os.open(folder / str(number), os.O_WRONLY | os.O_CREAT, 0o644))


def test_starts_within_seconds(crashing_mount):
    mount = crashing_mount(image="8G", options=("scrub=0",))
    content = noise(100_000, 7)
    write(mount.path / "file", content)
    make_files(mount)
    run("sync", "-f", mount.store.inner)
    mount.kill()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    began = time.monotonic()
    done = mount.try_start()
    took = time.monotonic() - began
    equal(done.returncode, 0, done.stderr)
    print(f"      {FILES} files: {took:.1f} s", flush=True)
    true(took < SECONDS, f"the start took {took:.1f} s")
    status = mount.status()
    mount.pid = status["pid"]
    equal((status["recovery"]["clean"], status["recovery"]["damaged"]), (False, []), "recovery")
    same_bytes(read(mount.path / "file"), content, "a file")
    wait_until("all are inspected", lambda: mount.status()["recovery"]["inspected"], 300, 0.2)
    mount.remount()
    true(mount.status()["recovery"]["clean"], "clean after an umount")
    mount.kill()  # fsck of so many files would take long
