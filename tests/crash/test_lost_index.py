"""meta/ is lost, emptied or truncated beside a full blobs/: the mount is refused, and no blob is touched."""

import hashlib
import json
import os
import shutil
import subprocess

import pytest

from checking import equal, noise, opened, read, true, write
from mounting import CKPTFS, Mount, Store, is_mountpoint, mounted, run
from training import check_step, step_of, write_state


def picture(store):
    """Returns the names, inodes, sizes, times and contents of all blobs."""
    found = {}
    for path in sorted(store.blobs.rglob("*")):
        if path.is_file():
            now = os.stat(path)
            found[str(path.relative_to(store.blobs))] = (
                now.st_ino,
                now.st_size,
                now.st_mtime_ns,
                hashlib.sha256(path.read_bytes()).hexdigest(),
            )
    return found


ENDS = ("an umount", "kill -9", "kill -9 in its first life")


def make(mount, end="an umount"):
    """Makes a step, live files and synced files, and ends the mount in that way. Returns the step's content."""
    state = write_state(mount.path, ranks=1)
    mount.save("s")
    if end != ENDS[2]:
        mount.remount()  # so that the index has files of each kind
    with opened(mount.path / "plain", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, noise(1000))
        os.fsync(file)
    if end == ENDS[0]:
        mount.stop()
    else:
        mount.take_down()
    return step_of(state)


def newest(folder, pattern):
    files = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime)
    true(files, f"{folder} has {pattern}: {sorted(os.listdir(folder))}")
    return files[-1]


def cut(path, share):
    os.truncate(path, int(path.stat().st_size * share))


def manifest(meta):
    return newest(meta, "MANIFEST-*")


def index_folder(store):
    """Returns the folder with RocksDB's files: meta/, or the folder below it that has CURRENT."""
    return next((store.inner / "meta").rglob("CURRENT")).parent


DAMAGES = {
    "meta removed": lambda store: shutil.rmtree(store.inner / "meta"),
    "meta emptied": lambda store: [
        path.unlink() for path in sorted((store.inner / "meta").rglob("*")) if path.is_file()
    ],
    "CURRENT removed": lambda store: (index_folder(store) / "CURRENT").unlink(),
    "CURRENT cut to nothing": lambda store: cut(index_folder(store) / "CURRENT", 0),
    "MANIFEST removed": lambda store: manifest(index_folder(store)).unlink(),
    "MANIFEST cut to nothing": lambda store: cut(manifest(index_folder(store)), 0),
    "MANIFEST cut to half": lambda store: cut(manifest(index_folder(store)), 0.5),
    "newest log cut to nothing": lambda store: cut(newest(index_folder(store), "*.log"), 0),
    "newest log cut to half": lambda store: cut(newest(index_folder(store), "*.log"), 0.5),
    "tables removed": lambda store: [path.unlink() for path in tables(store)],
    "a new empty index": lambda store: new_index(store),
}
# A log may hold nothing that is still needed. Then the mount may succeed, if all synced and saved data is there.
MAY_MOUNT = {"newest log cut to nothing", "newest log cut to half"}


def tables(store):
    """Returns RocksDB's tables. A small index may have none."""
    return sorted(index_folder(store).glob("*.sst"))


def new_index(store):
    """Replaces the index by that of another, new store."""
    other = Store(store.folder.parent / "other")
    with mounted(other, store.folder.parent.parent / "mnt-other"):
        pass
    shutil.rmtree(store.inner / "meta")
    os.rename(other.inner / "meta", store.inner / "meta")
    shutil.rmtree(other.folder)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("what", DAMAGES)
def test_is_refused(crashing_mount, what, end):
    mount = crashing_mount()
    wanted = make(mount, end)
    if what == "tables removed" and not tables(mount.store):
        print("      this index has no tables: nothing to remove")
        return
    before = picture(mount.store)
    true(len(before) > 8, "blobs there")
    DAMAGES[what](mount.store)
    done = mount.try_start()
    if done.returncode == 0 and what in MAY_MOUNT:
        all_is_there(mount, wanted)
    else:
        is_refused(mount, done, what)
    equal(picture(mount.store), before, "the blobs afterwards")


def all_is_there(mount, wanted):
    mount.pid = mount.status()["pid"]
    check_step(mount.path / "steps/s", wanted)
    equal(read(mount.path / "plain"), noise(1000), "what was synced")
    mount.stop()
    mount.store.fsck()


def is_refused(mount, done, what):
    equal(done.returncode, 1, f"status of mount ({done.stdout} {done.stderr})")
    true(str(mount.store.folder) in done.stderr and len(done.stderr.strip()) > 40, f"a clear message: {done.stderr!r}")
    true(not is_mountpoint(mount.path), "nothing is mounted")
    if "removed" in what or "cut" in what:
        true(run(CKPTFS, "fsck", mount.store.folder, check=False).returncode != 0, "fsck finds it too")


def test_unknown_version(crashing_mount):
    """A store of an unknown format is refused, with both versions named."""
    mount = crashing_mount()
    store = mount.store
    make(mount)
    before = picture(store)
    config = json.loads((store.inner / "config.json").read_text())
    key = next(key for key, value in config.items() if "version" in key or "format" in key and isinstance(value, int))
    own = config[key]
    for other in (own + 998, 0):
        config[key] = other
        (store.inner / "config.json").write_text(json.dumps(config))
        done = mount.try_start()
        equal(done.returncode, 1, "status of mount")
        true(str(other) in done.stderr and str(own) in done.stderr, f"both versions are named: {done.stderr!r}")
        true(run(CKPTFS, "fsck", store.folder, check=False).returncode != 0, "fsck refuses it too")
    equal(picture(store), before, "the blobs")
    config[key] = own
    (store.inner / "config.json").write_text(json.dumps(config))
    mount.start()


def test_second_daemon(crashing_mount):
    """A store that is mounted is refused, for mount and for fsck, and the mount continues."""
    mount = crashing_mount()
    other = Mount(mount.store, mount.path.with_name("mnt-second"))
    done = other.try_start()
    equal(done.returncode, 1, "status of the second mount")
    true(str(mount.store.folder) in done.stderr, f"a clear message: {done.stderr!r}")
    true(not is_mountpoint(other.path), "nothing is mounted")
    done = run(CKPTFS, "fsck", mount.store.folder, check=False)
    equal(done.returncode, 1, f"status of fsck ({done.stderr})")
    write(mount.path / "f", b"goes on")
    equal(mount.try_start().returncode, 1, "a second mount over the first")
    write(mount.path / "g", b"goes on")


def test_places_that_are_refused(disk, work):
    """Without reflink the error names the way out. A store below its own mount point, or an invalid store, is
    refused."""
    small = work / "ext4"
    small.mkdir()
    with open(work / "ext4.xfs", "wb") as image:
        image.truncate(64 << 20)
    run("mkfs.ext4", "-q", work / "ext4.xfs")
    run("mount", "-o", "loop", work / "ext4.xfs", small)
    try:
        done = Mount(Store(small / "store"), work / "mnt").try_start()
        equal(done.returncode, 1, "status on ext4")
        true("--image" in done.stderr, f"the way out: {done.stderr!r}")
    finally:
        run("umount", small)
    (work / "mnt").mkdir(exist_ok=True)
    done = Mount(Store(work / "mnt" / "store"), work / "mnt").try_start()
    equal(done.returncode, 1, "a store under its own mountpoint")
    (disk / "full").mkdir()
    write(disk / "full" / "somebody's", b"x")
    done = Mount(Store(disk / "full"), work / "mnt").try_start()
    equal(done.returncode, 1, "a folder with other things")
    equal(os.listdir(disk / "full"), ["somebody's"], "left alone")
    equal(subprocess.run([CKPTFS, "mount"], capture_output=True).returncode, 2, "usage")
