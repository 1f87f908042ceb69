"""Control through xattrs, and what it freezes: names, values, refusals; in both open modes."""

import errno
import mmap
import os
import stat
import subprocess

from checking import equal, opened, raises, read, same_bytes, true
from mounting import run
from training import check_step, name_in_step, optimizer_file, step_of, write_state


def test_the_tree_at_the_start(mount):
    equal(os.listdir(mount.path), ["steps"], "the root's listing")
    equal(os.listdir(mount.path / "steps"), [], "the series")
    equal(os.stat(mount.path).st_ino, 1, "the root's inode number")


def test_a_save_by_setfattr(mount):
    state = write_state(mount.path)
    run("setfattr", "-n", "user.ckptfs.save", "-v", "global_step1", mount.path / "steps")
    check_step(mount.path / "steps" / "global_step1", step_of(state))
    write_state(mount.path, 1)
    check_step(mount.path / "steps" / "global_step1", step_of(state))
    equal(os.listdir(mount.path / "steps"), ["global_step1"], "no `latest`")


def test_nothing_is_listed(mount):
    state = write_state(mount.path)
    mount.save("s1")
    mount.control("steps/s1", "pin", "1")
    mount.control("steps", "source", "/zero_stage_3")
    some_file = f"steps/s1/{name_in_step(next(iter(state)))}"
    for path in (".", "steps", "steps/s1", some_file, "zero_stage_3"):
        equal(os.listxattr(mount.path / path), [], f"listxattr of {path}")
    os.setxattr(mount.path / "steps/s1", "user.mine", b"x")
    equal(os.listxattr(mount.path / "steps/s1"), ["user.mine"], "the user's own")


def test_values_are_read(mount):
    write_state(mount.path)
    mount.save("s1")
    equal(mount.ask("steps/s1", "pin"), "0", "pin")
    equal(mount.ask("steps/s1", "seal"), "0", "seal")
    mount.control("steps/s1", "pin", "1")
    equal(mount.ask("steps/s1", "pin"), "1", "pin")
    mount.control("steps/s1", "pin", "0")
    equal(mount.ask("steps/s1", "pin"), "0", "pin")
    equal(mount.ask("steps/s1", "state"), "complete", "state")
    mount.control("steps/s1", "seal", "1")
    equal(mount.ask("steps/s1", "seal"), "1", "seal")
    equal(mount.ask("steps/s1", "state"), "sealed", "state")
    mount.control("steps", "source", "/zero_stage_3")
    equal(mount.ask("steps", "source").strip("/"), "zero_stage_3", "source")
    socket = mount.ask(".", "socket")
    true(stat.S_ISSOCK(os.stat(socket).st_mode), f"{socket} is a socket")
    mount.remount()
    equal(mount.ask("steps/s1", "seal"), "1", "seal after a remount")
    equal(mount.ask("steps", "source").strip("/"), "zero_stage_3", "source after a remount")


def test_unknown_names_and_bad_values(mount):
    write_state(mount.path)
    mount.save("s1")
    for path in (".", "steps", "steps/s1"):
        with raises(errno.EOPNOTSUPP, what=f"set on {path}"):
            mount.control(path, "nonsense", "1")
        with raises(errno.EOPNOTSUPP, errno.ENODATA, what=f"get on {path}"):
            mount.ask(path, "nonsense")
    for name in ("pin", "seal"):
        with raises(errno.EINVAL, what=f"{name}=maybe"):
            mount.control("steps/s1", name, "maybe")
    with raises(errno.EINVAL, errno.ENOENT, what="a source that is none"):
        mount.control("steps", "source", "/steps/s1")
    with raises(errno.EINVAL, errno.ENOENT, what="a source that is not there"):
        mount.control("steps", "source", "/no/zero_stage_3")


def test_reserved_tags(mount):
    write_state(mount.path)
    for tag in ("latest", ".", "..", "a/b", "/abs", "line\nbreak", "tab\t", "\x01", "x" * 256, ""):
        with raises(errno.EINVAL, errno.ENAMETOOLONG, what=f"the tag {tag!r}"):
            mount.save(tag)
        true(len(mount.ask("steps", "last_error")) > 5, "last_error says why")
    equal(os.listdir(mount.path / "steps"), [], "nothing was left")
    mount.save("global_step 1 \N{GREEK SMALL LETTER ALPHA}")
    equal(len(os.listdir(mount.path / "steps")), 1, "an odd name is just a name")


def test_saves_where_none_belong(mount):
    write_state(mount.path)
    for path in (".", "zero_stage_3", "zero_stage_3/optimizer"):
        with raises(errno.EINVAL, errno.EOPNOTSUPP, what=f"a save into {path}"):
            mount.control(path, "save", "s1")
    mount.save("s1")
    (mount.path / "steps/s1/sub").mkdir()
    with raises(errno.EINVAL, errno.EOPNOTSUPP, what="a series within a step"):
        mount.control("steps/s1/sub", "save", "s2")
    (mount.path / "runs").mkdir()
    mount.save("s1", series="runs")
    equal(os.listdir(mount.path / "runs"), ["s1"], "another series")


def test_the_roots_own_names(mount):
    (mount.path / "work").mkdir()
    with raises(errno.EBUSY):
        os.rmdir(mount.path / "steps")
    with raises(errno.EBUSY):
        os.rename(mount.path / "steps", mount.path / "other")
    with raises(errno.EBUSY):
        os.rename(mount.path / "work", mount.path / "steps")
    if os.path.exists(mount.path / "views"):
        with raises(errno.EBUSY):
            os.rmdir(mount.path / "views")
        with raises(errno.EBUSY):
            os.rename(mount.path / "views", mount.path / "other")
    equal(sorted(os.listdir(mount.path)), ["steps", "work"], "the root's listing")


def test_frozen_files(mount):
    state = write_state(mount.path)
    mount.save("s1")
    name = name_in_step(next(iter(state)))
    path, data = mount.path / "steps/s1" / name, next(iter(state.values()))
    for flags in (
        os.O_WRONLY,
        os.O_RDWR,
        os.O_WRONLY | os.O_TRUNC,
        os.O_RDWR | os.O_DIRECT,
        os.O_WRONLY | os.O_APPEND,
        os.O_WRONLY | os.O_CREAT,
        os.O_RDONLY | os.O_TRUNC,
    ):
        with raises(errno.EPERM, what=f"open with {flags:o}"):
            os.open(path, flags)
    for size in (0, 10, len(data), 10 * len(data)):
        with raises(errno.EPERM, what=f"truncate to {size}"):
            os.truncate(path, size)
    equal(
        subprocess.run(["fallocate", "-l", "10M", path], capture_output=True).returncode != 0, True, "fallocate refused"
    )
    same_bytes(read(path), data, "read")
    with opened(path, os.O_RDONLY) as file:
        shown = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        same_bytes(shown[:], data, "a mapping")
        shown.close()
        private = mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        private[0:4] = b"mine"
        private.close()
        with raises(errno.EACCES):
            mmap.mmap(file, 0)
    same_bytes(read(path), data, "after all that")
    run("cp", path, mount.path / "copy")
    with opened(mount.path / "copy", os.O_RDWR) as file:
        os.pwrite(file, b"the way out", 0)
    same_bytes(read(path), data, "after a write into a copy")
    os.rename(path, mount.path / "out.tensor.swp")
    with raises(errno.EPERM, what="frozen wherever it goes"):
        os.open(mount.path / "out.tensor.swp", os.O_WRONLY)
    os.unlink(mount.path / "out.tensor.swp")


def test_attributes_of_what_was_saved(mount):
    state = write_state(mount.path)
    live = mount.path / optimizer_file(0)
    os.chmod(live, 0o640)
    os.chown(live, 1234, 2345)
    mount.save("s1")
    saved = mount.path / "steps/s1" / name_in_step(optimizer_file(0))
    before = os.stat(saved)
    equal(
        (stat.S_IMODE(before.st_mode), before.st_uid, before.st_gid),
        (0o640, 1234, 2345),
        "mode and owner of the live file",
    )
    equal(before.st_size, len(state[optimizer_file(0)]), "size")
    true(before.st_blocks * 512 >= before.st_size, "blocks")
    equal(before.st_nlink, 1, "links")
    true(before.st_ino != os.stat(live).st_ino, "an inode of its own")
    write_state(mount.path, 1)
    read(saved)
    after = os.stat(saved)
    equal((after.st_mtime_ns, after.st_size, after.st_ino), (before.st_mtime_ns, before.st_size, before.st_ino), "kept")
    mount.remount()
    again = os.stat(saved)
    equal(
        (again.st_mtime_ns, again.st_size, again.st_ino),
        (before.st_mtime_ns, before.st_size, before.st_ino),
        "kept by a remount",
    )
