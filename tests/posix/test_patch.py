"""ckptfs.patch: shutil shares between two files of a mount, and copies as ever elsewhere; DeepSpeed's engine is patched
however a process begins. What a patched engine does: tests/deepspeed/test_engine_patch.py."""

import contextlib
import errno
import os
import signal
import sys
import threading
import time

from checking import equal, noise, opened, read, same_bytes, true, write
from mounting import MIB, REPOSITORY, run
from training import write_state

PACKAGE = REPOSITORY / "gpu" / "python"
SIZE = 16 * MIB
PATCHED = sys.version_info < (3, 14)  # later Pythons share by themselves


def python(*words, path=(), **options):
    """Python with our package, and before it the folders of `path`."""
    folders = os.pathsep.join(map(str, [*path, PACKAGE]))
    return run(sys.executable, *words, env=dict(os.environ, PYTHONPATH=folders), **options)


def allocated_by(mount, work):
    """Bytes of the disk that work() takes for good."""
    used = []
    for step in (lambda: None, work):
        step()
        run("sync", "-f", mount.store.inner)
        status = os.statvfs(mount.store.inner)
        used.append((status.f_blocks - status.f_bfree) * status.f_frsize)
    return used[1] - used[0]


def counters(mount):
    return mount.status()["counters"]


def source_in(folder):
    tree = folder / "tree"
    tree.mkdir()
    contents = {"a.tensor.swp": noise(SIZE, 1), "empty": b"", "odd": noise(MIB + 5, 2)}
    for name, data in contents.items():
        write(tree / name, data)
    return tree, contents


def check(copy, contents):
    for name, data in contents.items():
        same_bytes(read(copy / name), data, f"{copy}/{name}")


def test_copytree_shares(folder, shared):
    tree, contents = source_in(folder)
    code = f"import ckptfs.patch, ckptfs.patch, shutil; shutil.copytree({str(tree)!r}, {str(folder / 'copy')!r})"
    before = counters(shared)
    taken = allocated_by(shared, lambda: python("-c", code))
    check(folder / "copy", contents)
    true(taken < MIB, f"the patched copy takes {taken} bytes")
    patched = counters(shared)
    equal(patched["bytes_cloned"] - before["bytes_cloned"] >= SIZE, True, "shared by the patched copy")
    equal(patched["adoptions"], before["adoptions"], "adoptions by the patched copy")
    if PATCHED:
        plain = code.replace("import ckptfs.patch, ckptfs.patch, shutil", "import shutil").replace("copy'", "plain'")
        python("-c", plain)
        equal(counters(shared)["adoptions"], before["adoptions"] + 2, "adoptions without it: or this test sees nothing")
        check(folder / "plain", contents)


def test_across_mounts_it_copies(folder, shared):
    tree, contents = source_in(folder)
    outside = shared.store.inner.parent / f"outside-{shared.path.name}"
    code = "import ckptfs.patch, shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2])"
    python("-c", code, tree, outside)
    check(outside, contents)
    python("-c", code, outside, folder / "back")
    check(folder / "back", contents)


def test_a_script_runs_under_it(folder):
    tree, contents = source_in(folder)
    script = folder / "script.py"
    write(script, b"import shutil, sys\n"
                  b"assert __name__ == '__main__' and shutil._fastcopy_sendfile.ckptfs, 'not patched'\n"
                  b"shutil.copytree(*sys.argv[1:])\n")
    if PATCHED:
        python("-m", "ckptfs.patch", script, tree, folder / "copy")
        check(folder / "copy", contents)
    true("Usage" in python("-m", "ckptfs.patch", "--help").stdout, "help")
    equal(python("-m", "ckptfs.patch", check=False).returncode, 2, "without a script")


def test_failures_are_told(folder, shared):
    """A target that cannot be written fails as without the patch, and names the file."""
    write_state(shared.path, 0, 1)
    shared.save("patched")
    frozen = next((shared.path / "steps" / "patched").rglob("*.swp"))
    before = read(frozen)
    write(folder / "new", noise(MIB, 9))
    code = "import ckptfs.patch, shutil, sys; shutil.copyfile(sys.argv[1], sys.argv[2])"
    done = python("-c", code, folder / "new", frozen, check=False)
    true(done.returncode != 0 and os.strerror(errno.EPERM) in done.stderr and str(frozen) in done.stderr, done.stderr)
    same_bytes(read(frozen), before, "the frozen file")


def test_the_first_two_come_at_the_same_moment(folder, shared):
    """Linux 6.18 asks in a new way first. Two that are told at once that it is not known must not end copy_file_range."""
    source = folder / "source"
    data = noise(MIB, 3)
    write(source, data)
    shared.remount()
    with contextlib.ExitStack() as files:
        pairs = [(files.enter_context(opened(source, os.O_RDONLY)),
                  files.enter_context(opened(folder / f"copy-{number}", os.O_WRONLY | os.O_CREAT))) for number in range(3)]
        os.kill(shared.pid, signal.SIGSTOP)  # it sees both, before it answers one
        try:
            copiers = [threading.Thread(target=os.copy_file_range, args=(*pair, MIB)) for pair in pairs[:2]]
            for copier in copiers:
                copier.start()
            time.sleep(0.5)
        finally:
            os.kill(shared.pid, signal.SIGCONT)
        for copier in copiers:
            copier.join()
        equal(os.copy_file_range(*pairs[2], MIB), MIB, "the third copy")
    for number in range(3):
        same_bytes(read(folder / f"copy-{number}"), data, f"copy {number}")
    equal(counters(shared)["bytes_cloned"], 3 * MIB, "bytes that were shared")


# What stands for DeepSpeed: an engine with no optimizer on NVMe.
ENGINE = """
class DeepSpeedEngine:
    optimizer = None

    def load_checkpoint(self, load_dir, tag=None):
        return "loaded", load_dir, tag

    def save_checkpoint(self, save_dir, tag=None, exclude_frozen_parameters=False):
        return "saved", save_dir, tag
"""

# Prints whether the engine is patched, and fails where it does something else than without the patch.
JUDGE = """
import inspect
from deepspeed.runtime.engine import DeepSpeedEngine as Engine
assert Engine().load_checkpoint("a", tag="b") == ("loaded", "a", "b")
assert Engine().save_checkpoint("a", "b") == ("saved", "a", "b")
assert "exclude_frozen_parameters" in inspect.signature(Engine().save_checkpoint).parameters  # the Trainer looks
print([hasattr(getattr(Engine, name), "ckptfs") for name in ("load_checkpoint", "save_checkpoint")])
"""
IS_PATCHED, IS_PLAIN = "[True, True]", "[False, False]"


def fake_deepspeed(folder):
    """A folder for PYTHONPATH."""
    engine = folder / "fake" / "deepspeed" / "runtime" / "engine.py"
    engine.parent.mkdir(parents=True)
    for name in ("deepspeed/__init__.py", "deepspeed/runtime/__init__.py"):
        write(folder / "fake" / name, b"")
    write(engine, ENGINE.encode())
    return folder / "fake"


def script_in(folder, name="judge.py", before=""):
    write(folder / name, (before + JUDGE).encode())
    return folder / name


def test_the_engine_is_patched_whenever_it_is_imported(folder):
    path = [fake_deepspeed(folder)]
    for imports, wanted in (("", IS_PLAIN), ("import ckptfs.patch\n", IS_PATCHED),
                            ("import ckptfs.patch, ckptfs.patch\n", IS_PATCHED),
                            ("import deepspeed.runtime.engine\nimport ckptfs.patch\n", IS_PATCHED)):
        equal(python("-c", imports + JUDGE, path=path).stdout.strip(), wanted, f"after {imports!r}")


def test_an_engine_that_looks_different_is_left_alone(folder):
    path = [fake_deepspeed(folder)]
    write(path[0] / "deepspeed" / "runtime" / "engine.py", b"class Engine:\n    pass\n")
    done = python("-c", "import ckptfs.patch, deepspeed.runtime.engine", path=path)
    true("has no load_checkpoint" in done.stderr, f"what is said: {done.stderr}")


def test_children_are_patched(folder):
    """Launchers start the ranks: torchrun, accelerate, deepspeed."""
    path = [fake_deepspeed(folder)]
    judge = script_in(folder)
    launcher = folder / "launcher.py"
    write(launcher, b"import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv[1:]], check=True)\n")
    command = folder / "launch"
    write(command, f"#!/bin/sh\nexec {sys.executable} \"$@\"\n".encode(), mode=0o755)
    for words in ([judge], ["-m", "judge"], [launcher, judge], ["-m", "launcher", launcher, judge], ["sh", command, judge],
                  ["env", sys.executable, judge]):
        done = python("-m", "ckptfs.patch", *words, path=[*path, folder])
        equal(done.stdout.strip(), IS_PATCHED, f"python -m ckptfs.patch {words}")


def test_another_sitecustomize_still_counts(folder):
    path = [fake_deepspeed(folder), folder / "site"]
    path[1].mkdir()
    write(path[1] / "sitecustomize.py", b"import builtins\nbuiltins.customized = True\n")
    judge = script_in(folder, before="assert customized\n")
    done = python("-m", "ckptfs.patch", "env", sys.executable, judge, path=path)
    equal(done.stdout.strip(), IS_PATCHED, "a child")


def test_what_is_no_command_is_told(folder):
    done = python("-m", "ckptfs.patch", folder / "nothing.py", check=False)
    true(done.returncode == 1 and "neither a script nor a command" in done.stderr, f"{done.returncode}: {done.stderr}")
