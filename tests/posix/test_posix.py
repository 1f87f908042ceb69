"""The tree on the mount: names, attributes, permissions, a remount; in both open modes."""

import errno
import os
import pathlib
import stat
import time

from checking import equal, in_child, noise, opened, raises, read, true, write, write_all
from mounting import MIB, by_level, run


# --- names


def test_names_are_found_and_listed(folder):
    write(folder / "a", b"one")
    (folder / "sub").mkdir()
    os.symlink("a", folder / "link")
    equal(sorted(os.listdir(folder)), ["a", "link", "sub"], "listing")
    kinds = {
        entry.name: (entry.is_file(follow_symlinks=False), entry.is_dir(), entry.is_symlink())
        for entry in os.scandir(folder)
    }
    equal(kinds, {"a": (True, False, False), "sub": (False, True, False), "link": (False, False, True)}, "kinds")
    for entry in os.scandir(folder):
        equal(entry.inode(), os.lstat(entry.path).st_ino, "d_ino")
    equal(os.readlink(folder / "link"), "a", "readlink")
    equal(read(folder / "link"), b"one", "through the link")
    with raises(errno.ENOENT):
        os.stat(folder / "none")
    with raises(errno.ENOTDIR):
        os.stat(folder / "a" / "b")


def test_creating_a_name_that_was_missed_shows_it(folder):
    for name in ("x", "y"):
        with raises(errno.ENOENT):
            os.stat(folder / name)
    write(folder / "x", b"1")
    (folder / "y").mkdir()
    equal(os.stat(folder / "x").st_size, 1, "size")
    true((folder / "y").is_dir(), "y is a directory")
    os.unlink(folder / "x")
    with raises(errno.ENOENT):
        os.stat(folder / "x")


def test_exclusive_creation(folder):
    with opened(folder / "f", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640) as file:
        write_all(file, b"mine")
    equal(stat.S_IMODE(os.stat(folder / "f").st_mode), 0o640, "mode")
    with raises(errno.EEXIST):
        os.open(folder / "f", os.O_CREAT | os.O_EXCL | os.O_RDWR)
    equal(read(folder / "f"), b"mine", "content")
    os.symlink("nowhere", folder / "dangling")
    with raises(errno.EEXIST):
        os.open(folder / "dangling", os.O_CREAT | os.O_EXCL | os.O_RDWR)


def test_umask_holds(folder):
    before = os.umask(0o027)
    try:
        write(folder / "f", b"", mode=0o666)
        os.mkdir(folder / "s", 0o777)
    finally:
        os.umask(before)
    equal(stat.S_IMODE(os.stat(folder / "f").st_mode), 0o640, "file")
    equal(stat.S_IMODE(os.stat(folder / "s").st_mode), 0o750, "directory")


def test_a_read_only_mode_does_not_hinder_its_creator(folder):
    with opened(folder / "f", os.O_CREAT | os.O_RDWR, 0o400) as file:
        write_all(file, b"written")
    equal(read(folder / "f"), b"written", "content")


def test_directories(folder):
    before = os.stat(folder).st_nlink
    (folder / "s").mkdir()
    equal(os.stat(folder).st_nlink, before + 1, "links of the parent")
    equal(os.stat(folder / "s").st_nlink, 2, "links of an empty directory")
    write(folder / "s" / "f", b"x")
    with raises(errno.ENOTEMPTY, errno.EEXIST):
        os.rmdir(folder / "s")
    with raises(errno.EISDIR, errno.EPERM):
        os.unlink(folder / "s")
    with raises(errno.ENOTDIR):
        os.rmdir(folder / "s" / "f")
    with raises(errno.EEXIST):
        (folder / "s").mkdir()
    os.unlink(folder / "s" / "f")
    os.rmdir(folder / "s")
    equal(os.stat(folder).st_nlink, before, "links of the parent afterwards")
    with raises(errno.ENOENT):
        os.rmdir(folder / "s")
    with raises(errno.EISDIR):
        os.open(folder, os.O_WRONLY)


def test_a_removed_directory_that_is_open(folder):
    (folder / "s").mkdir()
    with opened(folder / "s", os.O_RDONLY | os.O_DIRECTORY) as directory:
        os.rmdir(folder / "s")
        equal(os.fstat(directory).st_nlink, 0, "links")
        with raises(errno.ENOENT):
            os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=directory)
        equal(os.listdir(directory), [], "listing")


def test_rename_within_and_across(folder):
    (folder / "s").mkdir()
    (folder / "t").mkdir()
    write(folder / "s" / "f", b"content")
    number = os.stat(folder / "s" / "f").st_ino
    os.rename(folder / "s" / "f", folder / "t" / "g")
    equal(os.listdir(folder / "s"), [], "left")
    equal(os.stat(folder / "t" / "g").st_ino, number, "inode number")
    os.rename(folder / "t", folder / "s" / "t")
    equal(read(folder / "s" / "t" / "g"), b"content", "content")
    equal(os.stat(folder / "s").st_nlink, 3, "links of the new parent")
    equal(os.stat(folder / "s" / "t" / "..").st_ino, os.stat(folder / "s").st_ino, "its ..")
    with raises(errno.EINVAL):
        os.rename(folder / "s", folder / "s" / "t" / "u")
    with raises(errno.ENOENT):
        os.rename(folder / "none", folder / "other")


def test_rename_over(folder):
    write(folder / "a", b"new")
    write(folder / "b", b"old")
    with opened(folder / "b", os.O_RDONLY) as old:
        os.rename(folder / "a", folder / "b")
        equal(os.read(old, 10), b"old", "the replaced file, open")
        equal(os.fstat(old).st_nlink, 0, "its links")
    equal(read(folder / "b"), b"new", "the name")
    (folder / "s").mkdir()
    (folder / "t").mkdir()
    os.rename(folder / "s", folder / "t")
    equal(sorted(os.listdir(folder)), ["b", "t"], "listing")
    write(folder / "t" / "f", b"")
    (folder / "u").mkdir()
    with raises(errno.ENOTEMPTY, errno.EEXIST):
        os.rename(folder / "u", folder / "t")
    with raises(errno.EISDIR):
        os.rename(folder / "b", folder / "u")
    with raises(errno.ENOTDIR):
        os.rename(folder / "u", folder / "b")
    os.link(folder / "b", folder / "c")
    os.rename(folder / "b", folder / "c")  # two names of one file: nothing happens
    equal(os.stat(folder / "b").st_nlink, 2, "links")


def renameat2(old, new, flags):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def test_rename_noreplace(folder):
    write(folder / "a", b"a")
    write(folder / "b", b"b")
    with raises(errno.EEXIST):
        renameat2(folder / "a", folder / "b", 1)
    equal(read(folder / "b"), b"b", "kept")
    renameat2(folder / "a", folder / "c", 1)
    equal(read(folder / "c"), b"a", "renamed")


def test_hard_links(folder):
    write(folder / "a", b"one")
    os.link(folder / "a", folder / "b")
    equal(os.stat(folder / "a").st_ino, os.stat(folder / "b").st_ino, "inode")
    equal(os.stat(folder / "a").st_nlink, 2, "links")
    write(folder / "b", b"two")
    equal(read(folder / "a"), b"two", "through the other name")
    os.unlink(folder / "a")
    equal(os.stat(folder / "b").st_nlink, 1, "links afterwards")
    equal(read(folder / "b"), b"two", "content")
    with raises(errno.EEXIST):
        os.link(folder / "b", folder / "b")
    with raises(errno.EPERM):
        os.link(folder, folder / "folder")


def test_symlinks(folder):
    target = "t/" * 100 + "end"
    os.symlink(target, folder / "long")
    equal(os.readlink(folder / "long"), target, "target")
    equal(os.lstat(folder / "long").st_size, len(target), "size")
    with raises(errno.EEXIST):
        os.symlink("x", folder / "long")
    with raises(errno.EINVAL):
        os.readlink(folder)
    os.rename(folder / "long", folder / "renamed")
    os.unlink(folder / "renamed")
    equal(os.listdir(folder), [], "listing")


def test_long_names(folder):
    name = "n" * 255
    write(folder / name, b"x")
    equal(os.listdir(folder), [name], "listing")
    with raises(errno.ENAMETOOLONG):
        write(folder / ("n" * 256), b"x")
    with raises(errno.ENAMETOOLONG):
        os.mkdir(folder / ("n" * 256))
    with raises(errno.ENAMETOOLONG):
        os.rename(folder / name, folder / ("m" * 256))
    odd = "sp ace\nline \N{GREEK SMALL LETTER ALPHA}"
    os.rename(folder / name, folder / odd)
    equal(os.listdir(folder), [odd], "listing")
    raw = os.fsencode(folder) + b"/\xff\xfe"
    write(raw, b"bytes")
    equal(sorted(os.listdir(os.fsencode(folder)))[-1], b"\xff\xfe", "not UTF-8")


def test_fifos_sockets_and_devices(folder):
    os.mkfifo(folder / "fifo", 0o600)
    true(stat.S_ISFIFO(os.stat(folder / "fifo").st_mode), "a fifo")
    os.mknod(folder / "node", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    equal(os.stat(folder / "node").st_rdev, os.makedev(1, 3), "rdev")
    os.mknod(folder / "file", stat.S_IFREG | 0o600)
    equal(read(folder / "file"), b"", "mknod of a regular file")

    def through():
        writer = os.open(folder / "fifo", os.O_RDWR)
        os.write(writer, b"x")
        return os.read(writer, 1)

    equal(in_child(through), b"x", "through the fifo")


def test_ten_thousand_entries(folder):
    wanted = by_level(2000, 10000)
    directory = os.open(folder, os.O_RDONLY)
    try:
        for number in range(wanted):
            os.close(os.open(f"file-{number:05d}", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=directory))
        names = os.listdir(directory)
        equal(len(names), wanted, "entries")
        equal(len(set(names)), wanted, "different names")
        equal(sum(1 for entry in os.scandir(directory) if entry.stat().st_size == 0), wanted, "stat of each")
        for name in names[::2]:
            os.unlink(name, dir_fd=directory)
        equal(sorted(os.listdir(directory)), sorted(names[1::2]), "the other half")
    finally:
        os.close(directory)
    run("rm", "-r", folder)
    true(not folder.exists(), "rm -r removed it")


def test_removing_while_listing(folder):
    for number in range(3000):
        write(folder / f"{number}", b"")
    seen = []
    with os.scandir(folder) as entries:
        for entry in entries:
            os.unlink(entry.path)
            seen.append(entry.name)
            if len(seen) % 100 == 0:
                write(folder / f"new-{len(seen)}", b"")
    equal(len(seen), len(set(seen)), "no name twice")
    true({str(number) for number in range(3000)} <= set(seen), "every name that was there was listed")
    for name in os.listdir(folder):
        true(name.startswith("new-"), f"{name} was removed")


def test_recursive_removal(folder):
    for one in range(5):
        for two in range(5):
            (folder / "tree" / f"{one}" / f"{two}").mkdir(parents=True)
            for three in range(5):
                write(folder / "tree" / f"{one}" / f"{two}" / f"{three}", b"x" * 1000)
    run("rm", "-r", folder / "tree")
    equal(os.listdir(folder), [], "listing")


# --- attributes


def test_times_move_with_writes(folder):
    write(folder / "f", b"x")
    os.utime(folder / "f", ns=(10**9, 10**9))
    with opened(folder / "f", os.O_WRONLY) as file:
        os.write(file, b"y")
        after = os.stat(folder / "f")
    true(after.st_mtime_ns > 10**18, f"mtime moved with the write: {after.st_mtime_ns}")
    os.utime(folder / "f", ns=(10**9, 10**9))
    os.truncate(folder / "f", 0)
    true(os.stat(folder / "f").st_mtime_ns > 10**18, "mtime moved with truncate")
    os.utime(folder, ns=(10**9, 10**9))
    write(folder / "g", b"")
    true(os.stat(folder).st_mtime_ns > 10**18, "mtime of the directory moved with a new name")
    os.utime(folder, ns=(10**9, 10**9))
    os.rename(folder / "g", folder / "h")
    true(os.stat(folder).st_mtime_ns > 10**18, "and with a rename")
    os.utime(folder, ns=(10**9, 10**9))
    os.unlink(folder / "h")
    true(os.stat(folder).st_mtime_ns > 10**18, "and with a removal")
    before = os.stat(folder / "f").st_ctime_ns
    time.sleep(0.02)
    os.chmod(folder / "f", 0o600)
    true(os.stat(folder / "f").st_ctime_ns > before, "ctime moved with chmod")
    before = os.stat(folder / "f").st_ctime_ns
    time.sleep(0.02)
    os.link(folder / "f", folder / "l")
    true(os.stat(folder / "f").st_ctime_ns > before, "ctime moved with link")


def test_set_times(folder):
    for path in (folder / "f", folder / "s"):
        write(path, b"data") if path.name == "f" else path.mkdir()
        os.utime(path, ns=(934_567_890_123_456_789, 987_654_321_123_456_789))
        now = os.stat(path)
        equal((now.st_atime_ns, now.st_mtime_ns), (934_567_890_123_456_789, 987_654_321_123_456_789), path.name)
    os.utime(folder / "f")
    true(os.stat(folder / "f").st_mtime_ns > 10**18, "now")
    with opened(folder / "f", os.O_WRONLY) as file:
        os.write(file, b"more")
        os.utime(file, ns=(5 * 10**9, 6 * 10**9))
        equal(os.fstat(file).st_mtime_ns, 6 * 10**9, "by descriptor, behind a write")
    equal(os.stat(folder / "f").st_mtime_ns, 6 * 10**9, "kept by close")
    os.symlink("f", folder / "l")
    os.utime(folder / "l", ns=(7 * 10**9, 8 * 10**9), follow_symlinks=False)
    equal(os.lstat(folder / "l").st_mtime_ns, 8 * 10**9, "of the link")
    equal(os.stat(folder / "f").st_mtime_ns, 6 * 10**9, "not of its target")


def test_modes_and_owners(folder):
    write(folder / "f", b"x")
    os.chmod(folder / "f", 0o4711)
    equal(stat.S_IMODE(os.stat(folder / "f").st_mode), 0o4711, "mode")
    os.chown(folder / "f", 1234, 2345)
    now = os.stat(folder / "f")
    equal((now.st_uid, now.st_gid), (1234, 2345), "owner")
    os.chown(folder / "f", -1, 77)
    equal((os.stat(folder / "f").st_uid, os.stat(folder / "f").st_gid), (1234, 77), "group only")
    os.symlink("f", folder / "l")
    os.chown(folder / "l", 5, 6, follow_symlinks=False)
    equal(os.stat(folder / "f").st_uid, 1234, "the link's target")
    equal(os.lstat(folder / "l").st_uid, 5, "the link")
    os.chmod(folder, 0o777)
    equal(in_child(lambda: write("mine", b"x"), uid=4321, gid=4322, folder=folder), None, "another user creates")
    now = os.stat(folder / "mine")
    equal((now.st_uid, now.st_gid), (4321, 4322), "the new file's owner")


def test_permissions_are_enforced(folder):
    write(folder / "secret", b"x", mode=0o600)
    os.chmod(folder / "secret", 0o600)
    (folder / "closed").mkdir(0o700)
    write(folder / "closed" / "f", b"x")
    (folder / "sticky").mkdir()
    os.chmod(folder / "sticky", 0o1777)
    write(folder / "sticky" / "f", b"x")

    def other():
        for what in (
            lambda: read("secret"),
            lambda: os.listdir("closed"),
            lambda: os.stat("closed/f"),
            lambda: write("new", b""),
            lambda: os.unlink("secret"),
            lambda: os.mkdir("s"),
        ):
            with raises(errno.EACCES):
                what()
        for what in (
            lambda: os.chmod("secret", 0o777),
            lambda: os.chown("secret", 1, 1),
            lambda: os.utime("secret", ns=(1, 1)),
            lambda: os.unlink("sticky/f"),
        ):
            with raises(errno.EPERM):
                what()
        with raises(errno.EACCES):
            os.truncate("secret", 0)

    os.chmod(folder, 0o755)
    in_child(other, uid=4321, folder=folder)
    equal(read(folder / "secret"), b"x", "content")


def test_set_group_id_directories(folder):
    (folder / "s").mkdir()
    os.chown(folder / "s", 0, 555)
    os.chmod(folder / "s", 0o2777)
    (folder / "s" / "t").mkdir()
    write(folder / "s" / "f", b"x")
    equal(os.stat(folder / "s" / "f").st_gid, 555, "group of a file")
    equal(os.stat(folder / "s" / "t").st_gid, 555, "group of a directory")
    true(os.stat(folder / "s" / "t").st_mode & stat.S_ISGID, "a directory inherits the bit")
    in_child(lambda: write("g", b"x"), uid=4321, folder=folder / "s")
    equal(os.stat(folder / "s" / "g").st_gid, 555, "group of another user's file")


# --- attributes of the user's own, and the file system's


def test_xattrs_of_no_known_namespace(folder):
    path = folder / "file"
    write(path, b"")
    for name in ("nothing.one", "user", "username.one", "system.one"):
        for act in (lambda name: os.setxattr(path, name, b"1"), lambda name: os.getxattr(path, name),
                    lambda name: os.removexattr(path, name)):
            with raises(errno.EOPNOTSUPP):
                act(name)
    equal(os.listxattr(path), [], "names")


def test_user_xattrs(folder):
    write(folder / "f", b"x")
    for path in (folder / "f", folder):
        os.setxattr(path, "user.one", b"1")
        os.setxattr(path, "user.two", bytes(range(256)))
        equal(os.getxattr(path, "user.one"), b"1", "value")
        equal(os.getxattr(path, "user.two"), bytes(range(256)), "binary value")
        equal(sorted(os.listxattr(path)), ["user.one", "user.two"], "names")
        with raises(errno.EEXIST):
            os.setxattr(path, "user.one", b"2", os.XATTR_CREATE)
        with raises(errno.ENODATA):
            os.setxattr(path, "user.three", b"2", os.XATTR_REPLACE)
        os.setxattr(path, "user.one", b"", os.XATTR_REPLACE)
        equal(os.getxattr(path, "user.one"), b"", "empty value")
        os.removexattr(path, "user.one")
        with raises(errno.ENODATA):
            os.getxattr(path, "user.one")
        with raises(errno.ENODATA):
            os.removexattr(path, "user.one")
    os.rename(folder / "f", folder / "g")
    equal(os.getxattr(folder / "g", "user.two"), bytes(range(256)), "kept by rename")
    os.setxattr(folder / "g", "trusted.mine", b"t")
    equal(os.getxattr(folder / "g", "trusted.mine"), b"t", "trusted")
    with raises(errno.E2BIG, errno.ERANGE, errno.ENOSPC):
        os.setxattr(folder / "g", "user.big", b"x" * 65537)
    os.setxattr(folder / "g", "user.large", b"x" * 60000)
    equal(len(os.getxattr(folder / "g", "user.large")), 60000, "a large value")


def test_file_system_figures(folder):
    figures = os.statvfs(folder)
    true(0 < figures.f_bavail <= figures.f_bfree <= figures.f_blocks, "blocks")
    equal(figures.f_namemax, 255, "longest name")
    true(figures.f_files > 0 and figures.f_ffree > 0, "inodes")
    before = figures.f_bavail * figures.f_frsize
    with opened(folder / "f", os.O_WRONLY | os.O_CREAT) as file:
        os.posix_fallocate(file, 0, 256 * MIB)
        after = os.statvfs(folder)
        true(before - after.f_bavail * after.f_frsize > 200 * MIB, "256 MiB less are free")
        near = abs(os.fstatvfs(file).f_bavail - after.f_bavail) * after.f_frsize
        true(near < 4 * MIB, "by descriptor the same, but for what the index wrote meanwhile")
    os.unlink(folder / "f")


# --- after a remount


def lay_out(d):
    (d / "s").mkdir()
    write(d / "s" / "f", noise(100000), mode=0o640)
    os.chmod(d / "s" / "f", 0o640)
    os.chown(d / "s" / "f", 12, 34)
    os.utime(d / "s" / "f", ns=(10**18 + 1, 10**18 + 2))
    os.setxattr(d / "s" / "f", "user.x", b"y")
    os.link(d / "s" / "f", d / "l")
    os.symlink("s/f", d / "y")
    os.mkfifo(d / "p")
    with opened(d / "sparse", os.O_WRONLY | os.O_CREAT) as file:
        os.ftruncate(file, 10 * MIB)


def what_is_there(d):
    found = {}
    for folder, folders, files in os.walk(d):
        for name in sorted(folders + files):
            path = pathlib.Path(folder) / name
            now = os.lstat(path)
            content = (
                read(path) if stat.S_ISREG(now.st_mode) else os.readlink(path) if stat.S_ISLNK(now.st_mode) else ""
            )
            xattrs = {
                key: os.getxattr(path, key, follow_symlinks=False) for key in os.listxattr(path, follow_symlinks=False)
            }
            size = now.st_size if not stat.S_ISDIR(now.st_mode) else 0
            found[str(path.relative_to(d))] = (
                now.st_ino,
                now.st_mode,
                now.st_uid,
                now.st_gid,
                now.st_nlink,
                size,
                now.st_mtime_ns,
                now.st_ctime_ns,
                now.st_rdev,
                content,
                xattrs,
            )
    return found


def test_all_is_there_after_a_remount(folder, shared):
    lay_out(folder)
    before = what_is_there(folder)
    shared.remount()
    after = what_is_there(folder)
    equal(sorted(after), sorted(before), "names")
    for name, wanted in before.items():
        for field, one, other in zip(
            ("ino", "mode", "uid", "gid", "nlink", "size", "mtime", "ctime", "rdev", "content", "xattrs"),
            after[name],
            wanted,
        ):
            equal(one, other, f"{name}: {field}")
    write(folder / "new", b"")
    true(os.stat(folder / "new").st_ino not in {row[0] for row in before.values()}, "numbers do not come back")
