"""Makes Python share instead of copy on a ckptfs mount, and DeepSpeed resume from it without a loss.

    import ckptfs.patch                          # anywhere before the first save or load
    python -m ckptfs.patch train.py              # or without a changed line
    python -m ckptfs.patch torchrun --nproc-per-node 2 train.py

Two things change, and only for files on a ckptfs mount:

- shutil (copyfile, copy, copytree, move) copies by sendfile up to Python 3.13: the mount sees reads and writes. With
  this it asks for copy_file_range, which ckptfs answers by sharing the blocks, as Python does by itself from 3.14 on.
- DeepSpeed's load_checkpoint and save_checkpoint, of an engine with its optimizer on NVMe, do what those of
  ckptfs.deepspeed do: a resume loses nothing, and `latest` names a step that is durable (ckptfs.engine_patch).

`python -m ckptfs.patch` takes a script, `-m MODULE`, or any other command, and patches every Python process that this
starts, too. Takes nothing but the standard library, and may be imported more than once.
"""

from __future__ import annotations

import errno
import logging
import os
import pathlib
import runpy
import shutil
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from typing import IO, Any

from ckptfs import mounts

__all__ = ["install"]

_CHUNK = 1 << 30  # of one copy_file_range; a longer call is legal, and answered with less
_ENGINE = "deepspeed.runtime.engine"
_CHILDREN = pathlib.Path(__file__).resolve().parent / "children"  # sitecustomize.py, for PYTHONPATH
_log = logging.getLogger("ckptfs")


# --- shutil


def _shares(source: int, target: int) -> bool:
    """Are these descriptors files of one ckptfs mount?"""
    device = os.fstat(source).st_dev
    return device == os.fstat(target).st_dev and mounts.is_ckptfs(device)


def _copy_file_range(source: int, target: int) -> int:
    """The whole of the source, from where both stand; how much that was."""
    done = 0
    while count := os.copy_file_range(source, target, _CHUNK):
        done += count
    return done


def _replacement(sendfile: Callable[[IO[bytes], IO[bytes]], None]) -> Callable[[IO[bytes], IO[bytes]], None]:
    """shutil's own function for Linux, with the same contract: it copies all, or raises _GiveupOnFastCopy having
    copied nothing, or raises an OSError that names both files."""

    def fastcopy(fsrc: IO[bytes], fdst: IO[bytes]) -> None:
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

    fastcopy.ckptfs = True  # type: ignore[attr-defined] # so that it is known as ours
    return fastcopy


def _install_copy() -> None:
    sendfile = getattr(shutil, "_fastcopy_sendfile", None)  # since 3.14 there is copy_file_range before it
    if sendfile is not None and hasattr(os, "copy_file_range") and not hasattr(sendfile, "ckptfs"):
        shutil._fastcopy_sendfile = _replacement(sendfile)  # type: ignore[attr-defined] # a private function


# --- DeepSpeed's engine


def _patch_engine(module: types.ModuleType) -> None:
    from ckptfs import engine_patch
    engine_patch.install(getattr(module, "DeepSpeedEngine", None))


class _EngineFinder:
    """Finds DeepSpeed's engine as the other finders do, and patches it when it has been imported."""

    ckptfs = True

    def find_spec(self, name: str, path: Sequence[str] | None,
                  target: types.ModuleType | None = None) -> ModuleSpec | None:
        if name != _ENGINE:
            return None
        others = (finder for finder in sys.meta_path if not hasattr(finder, "ckptfs"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                _patch_engine(module)

            loader.exec_module = exec_module
        return spec


def _install_engine() -> None:
    if _ENGINE in sys.modules:
        _patch_engine(sys.modules[_ENGINE])
    elif not any(hasattr(finder, "ckptfs") for finder in sys.meta_path):
        sys.meta_path.insert(0, _EngineFinder())


def install() -> None:
    """Does what the import of the module does. A second time it changes nothing."""
    _install_copy()
    _install_engine()


install()


# --- the command


def _run(words: list[str]) -> None:
    """Runs the script, `-m MODULE` or the command in words, as `python` or a shell would."""
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif os.path.exists(words[0]) and (not os.path.isdir(words[0]) or os.path.exists(f"{words[0]}/__main__.py")):
        sys.argv[:] = words
        sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")
    else:
        try:
            os.execvp(words[0], words)
        except OSError as error:
            sys.exit(f"ckptfs.patch: {words[0]} is neither a script nor a command: {error.strerror}")


def _main() -> None:
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help") or words == ["-m"]:
        print(f"Usage: python -m ckptfs.patch SCRIPT [ARGUMENT]...\n"
              f"       python -m ckptfs.patch -m MODULE [ARGUMENT]...\n"
              f"       python -m ckptfs.patch COMMAND [ARGUMENT]...\n\n{__doc__}", end="")
        sys.exit(0 if words and words[0] != "-m" else 2)
    before = os.environ.get("PYTHONPATH")
    if str(_CHILDREN) not in (before or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_CHILDREN), before]))
    _run(words)


if __name__ == "__main__":
    _main()
