"""What takes set-user-id and set-group-id away, as on any file system; in both open modes."""

import concurrent.futures
import contextlib
import errno
import os
import stat
import time

import pytest

from checking import equal, in_child, opened, raises, write
from mounting import CKPTFS_DEBUG, run


def test_a_write_takes_set_user_id_away(folder):
    write(folder / "f", b"x" * 10)
    os.chown(folder / "f", 4321, 4321)
    os.chmod(folder / "f", 0o6777)

    def writes():
        with opened("f", os.O_WRONLY) as file:
            os.write(file, b"y")

    in_child(writes, uid=4321, folder=folder)
    equal(oct(stat.S_IMODE(os.stat(folder / "f").st_mode)), oct(0o777), "after another's write")
    os.chmod(folder / "f", 0o6777)
    in_child(lambda: os.truncate("f", 3), uid=4321, folder=folder)
    equal(oct(stat.S_IMODE(os.stat(folder / "f").st_mode)), oct(0o777), "after another's truncate")
    os.chmod(folder / "f", 0o6777)
    os.chown(folder / "f", 4321, 999)
    equal(oct(stat.S_IMODE(os.stat(folder / "f").st_mode)), oct(0o777), "after chown")


def test_a_file_gets_no_capabilities_that_a_write_would_have_to_take_away(folder):
    """In the direct mode another user's write left them there."""
    write(folder / "f", b"x" * 10)
    with raises(errno.EOPNOTSUPP):
        os.setxattr(folder / "f", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    equal(os.listxattr(folder / "f"), [], "xattrs")


def test_an_allocation_takes_set_group_id_away(folder):
    for mode, left in ((0o6666, 0o666), (0o2666, 0o666), (0o2676, 0o676), (0o6777, 0o777)):
        for how in ([], ["-p"], ["-z"]):
            write(folder / "f", b"x" * 8192)
            os.chmod(folder / "f", mode)
            in_child(lambda: run("fallocate", *how, "-o", 0, "-l", 4096, "f"), uid=4321, folder=folder)
            now = stat.S_IMODE(os.stat(folder / "f").st_mode)
            equal(oct(now), oct(left), f"{mode:o} after another's fallocate {how}")


def test_a_write_through_an_older_descriptor_takes_set_user_id_away(folder):
    for mode in (0o6777, 0o4755, 0o2775):
        write(folder / "f", b"x" * 8192)
        with opened(folder / "f", os.O_RDWR) as file:
            os.chmod(folder / "f", mode)
            equal(oct(stat.S_IMODE(os.stat(folder / "f").st_mode)), oct(mode), "before")
            in_child(lambda: os.pwrite(file, b"y", 0), uid=4321, folder=folder)
            equal(oct(stat.S_IMODE(os.stat(folder / "f").st_mode)), oct(mode & 0o777), "after another's write")
        os.unlink(folder / "f")


@contextlib.contextmanager
def written_behind_the_daemon(mount, fault):
    """Yields a file that got suid and was then written to, on a daemon with this fault, and its path."""
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, fault
    mount.start()
    path = mount.path / "f"
    write(path, b"x" * 8192)
    with opened(path, os.O_RDWR) as file:
        os.chmod(path, 0o4755)
        os.pwrite(file, b"y", 0)
        yield file, path


def mode_of(path):
    return oct(stat.S_IMODE(os.stat(path).st_mode))


SLEEP = "1:sleep:1500"  # in the daemon
UNTIL_IT_SLEEPS = 0.5


@pytest.mark.builds("faults")
@pytest.mark.mode("passthrough")
def test_nobody_sees_set_user_id_while_it_is_taken_away(mount):
    with (written_behind_the_daemon(mount, f"privileges.clear={SLEEP}") as (_, path),
          concurrent.futures.ThreadPoolExecutor() as pool):
        first = pool.submit(mode_of, path)
        time.sleep(UNTIL_IT_SLEEPS)
        equal(mode_of(path), oct(0o755), "beside it")
        equal(first.result(), oct(0o755), "behind it")


@pytest.mark.builds("faults")
@pytest.mark.mode("passthrough")
def test_set_user_id_that_is_given_while_it_is_taken_away_is_watched_too(mount):
    with (written_behind_the_daemon(mount, f"privileges.cleared={SLEEP}") as (file, path),
          concurrent.futures.ThreadPoolExecutor() as pool):
        first = pool.submit(mode_of, path)
        time.sleep(UNTIL_IT_SLEEPS)
        os.chmod(path, 0o4755)
        first.result()
        os.pwrite(file, b"z", 0)
        equal(mode_of(path), oct(0o755), "after one more write")
