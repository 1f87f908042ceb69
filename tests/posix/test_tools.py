"""What people copy, move and remove with: cp, mv, tar, rsync, shutil, rm; in both open modes."""

import os
import pathlib
import shutil
import stat

from checking import equal, noise, opened, pwrite_all, read, same_bytes, true, write
from mounting import KIB, MIB, run


def make_tree(folder):
    """A tree with all kinds of things; returned: the folder."""
    folder.mkdir()
    (folder / "sub" / "deep").mkdir(parents=True)
    for number, length in enumerate((0, 1, 4095, 4097, 100000, 3 * MIB + 5)):
        write(folder / "sub" / f"file{number}", noise(length, number))
        os.utime(folder / "sub" / f"file{number}", ns=(10**18 + number, 10**18 + 10 * number))
    os.chmod(folder / "sub" / "file1", 0o751)
    os.chown(folder / "sub" / "file2", 123, 456)
    os.setxattr(folder / "sub" / "file3", "user.note", b"kept")
    os.symlink("../sub/file4", folder / "sub" / "deep" / "link")
    os.link(folder / "sub" / "file4", folder / "sub" / "deep" / "hard")
    os.mkfifo(folder / "sub" / "deep" / "fifo")
    with opened(folder / "sparse", os.O_WRONLY | os.O_CREAT) as file:
        pwrite_all(file, b"data", 10 * MIB)
    os.chmod(folder / "sub" / "deep", 0o750)
    os.utime(folder / "sub" / "deep", ns=(10**18, 10**18 + 5))
    return folder


def picture(folder, times="all"):
    """What is in the folder; times of "all", of "files", or of "none"."""
    kinds = {"all": (stat.S_IFREG, stat.S_IFDIR), "files": (stat.S_IFREG,), "none": ()}[times]
    found = {}
    for where, folders, files in os.walk(folder):
        for name in folders + files:
            path = pathlib.Path(where) / name
            now = os.lstat(path)
            kind = stat.S_IFMT(now.st_mode)
            content = read(path) if kind == stat.S_IFREG else os.readlink(path) if kind == stat.S_IFLNK else None
            xattrs = {
                key: os.getxattr(path, key, follow_symlinks=False) for key in os.listxattr(path, follow_symlinks=False)
            }
            moment = now.st_mtime_ns if kind in kinds else 0
            found[str(path.relative_to(folder))] = (now.st_mode, now.st_uid, now.st_gid, moment, content, xattrs)
    return found


def same_tree(got, wanted, times="all"):
    one, other = picture(got, times), picture(wanted, times)
    equal(sorted(one), sorted(other), "names")
    for name, row in other.items():
        for field, left, right in zip(("mode", "uid", "gid", "mtime", "content", "xattrs"), one[name], row):
            equal(left, right, f"{name}: {field}")


def test_cp_a(folder):
    tree = make_tree(folder / "tree")
    run("cp", "-a", tree, folder / "copy")
    same_tree(folder / "copy", tree)
    equal(os.stat(folder / "copy" / "sub" / "file4").st_nlink, 2, "hard links kept")
    run("cp", "-a", "--reflink=never", tree, folder / "plain")
    same_tree(folder / "plain", tree)
    true(os.stat(folder / "plain" / "sparse").st_blocks * 512 < MIB, "still sparse")


def test_cp_to_and_from_elsewhere(folder, shared):
    outside = pathlib.Path(f"{shared.path}-outside")
    try:
        tree = make_tree(outside)
        run("cp", "-a", outside, folder / "in")
        same_tree(folder / "in", tree)
        run("cp", "-a", folder / "in", outside / "back")
        same_tree(outside / "back", folder / "in")
    finally:
        shutil.rmtree(outside)


def test_cp_over_an_older_file(folder):
    write(folder / "old", noise(500000, 1))
    write(folder / "new", noise(300000, 2))
    run("cp", folder / "new", folder / "old")
    same_bytes(read(folder / "old"), noise(300000, 2), "replaced in place")
    run("cp", "--remove-destination", folder / "new", folder / "old")
    same_bytes(read(folder / "old"), noise(300000, 2), "replaced by a new one")
    run("install", "-m", "640", folder / "new", folder / "installed")
    equal(stat.S_IMODE(os.stat(folder / "installed").st_mode), 0o640, "mode of install")


def test_tar_both_ways(folder):
    tree = make_tree(folder / "tree")
    run("tar", "--xattrs", "-cf", folder / "all.tar", "-C", tree, ".")
    (folder / "out").mkdir()
    run("tar", "--xattrs", "--xattrs-include=user.*", "-xpf", folder / "all.tar", "-C", folder / "out")
    same_tree(folder / "out", tree, times="none")
    there, wanted = (os.stat(root / "sub" / "deep").st_mtime for root in (folder / "out", tree))
    equal(there, wanted, "mtime in seconds")


def test_rsync_a(folder):
    tree = make_tree(folder / "tree")
    run("rsync", "-aXH", f"{tree}/", folder / "copy/")
    same_tree(folder / "copy", tree, times="files")
    with opened(tree / "sub" / "file5", os.O_WRONLY) as file:
        pwrite_all(file, b"changed", MIB)
    os.unlink(tree / "sub" / "file0")
    run("rsync", "-aXH", "--delete", "--inplace", "--no-whole-file", f"{tree}/", folder / "copy/")
    same_tree(folder / "copy", tree, times="files")
    equal(
        run("rsync", "-aXHn", "--checksum", "--itemize-changes", f"{tree}/", folder / "copy/").stdout.strip(),
        "",
        "nothing left to do",
    )


def test_mv_in_and_out(folder, shared):
    tree = make_tree(folder / "tree")
    before = picture(tree)
    number = os.stat(tree / "sub" / "file5").st_ino
    run("mv", tree, folder / "moved")
    equal(os.stat(folder / "moved" / "sub" / "file5").st_ino, number, "inode number")
    equal(sorted(picture(folder / "moved")), sorted(before), "names")
    outside = pathlib.Path(f"{shared.path}-outside")
    try:
        run("mv", folder / "moved", outside)
        equal(os.listdir(folder), [], "left")
        run("mv", outside, folder / "back")
        equal(picture(folder / "back"), before, "there and back")
    finally:
        shutil.rmtree(outside, ignore_errors=True)


def test_copytree_as_deepspeed_does(folder):
    source = folder / "zero" / "rank0"
    source.mkdir(parents=True)
    wanted = {}
    for name in ("0_2", "exp_avg-0_2", "exp_avg_sq-0_2"):
        wanted[f"{name}.tensor.swp"] = noise(2 * MIB + 3 * KIB, len(name))
        write(source / f"{name}.tensor.swp", wanted[f"{name}.tensor.swp"], mode=0o600)
    write(source / "0_2_gradient_0_10.tensor.swp", b"gradient")
    shutil.copytree(source, folder / "steps" / "rank00", ignore=shutil.ignore_patterns("*gradient*"))
    equal(sorted(os.listdir(folder / "steps" / "rank00")), sorted(wanted), "names")
    for name, data in wanted.items():
        same_bytes(read(folder / "steps" / "rank00" / name), data, name)
        write(source / name, b"x" * len(data))
    shutil.copytree(folder / "steps" / "rank00", source, dirs_exist_ok=True)
    for name, data in wanted.items():
        same_bytes(read(source / name), data, f"{name}, loaded")


def test_shutil_and_find(folder):
    tree = make_tree(folder / "tree")
    os.unlink(tree / "sub" / "deep" / "fifo")
    os.chown(tree / "sub" / "file2", 0, 0)  # copytree leaves owners behind
    shutil.copytree(tree, folder / "copy", symlinks=True)
    same_tree(folder / "copy", tree)
    found = run("find", folder / "copy", "-type", "f", "-size", "+1M").stdout.split()
    equal(sorted(os.path.basename(name) for name in found), ["file5", "sparse"], "find by size")
    shutil.rmtree(folder / "copy")
    run("rm", "-r", tree)
    equal(os.listdir(folder), [], "all removed")


def test_a_shell_at_work(folder):
    script = """set -e
    echo one > a; echo two >> a; cat a a > b; sed -i s/one/ONE/ b; sort b -o b
    dd if=/dev/zero of=c bs=1000 count=33 2>&1
    truncate -s 5000 c; cmp -n 5000 c /dev/zero; ln -s a l; test "$(cat l)" = "$(cat a)"; touch -d 2001-02-03 a
    test "$(stat -c %Y a)" = "$(date -d 2001-02-03 +%s)"; split -b 1000 c part-; cat part-* | cmp - c
    gzip -k c; zcat c.gz | cmp - c
    """
    run("sh", "-c", script, cwd=folder)
    equal(read(folder / "b"), b"ONE\nONE\ntwo\ntwo\n", "what sed and sort left")
