"""libckptfs (gpu/ckptfs.h) by ctypes: its functions, which raise OSError, and a ring for each device.

Looked for in CKPTFS_LIBRARY, beside this file, where the loader looks, and in build/ of a checkout.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import pathlib
import threading
from collections.abc import Iterator
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_ubyte, c_uint32, c_uint64, c_void_p

__all__ = ["configure", "library"]

_log = logging.getLogger("ckptfs")
_ABI = 6


class Tensor(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("shape", POINTER(c_uint64)), ("dimensions", c_uint32),
                ("bytes", c_uint64)]


class Target(Structure):
    _fields_ = [("tensor", c_uint64), ("offset", c_uint64), ("bytes", c_uint64), ("memory", c_void_p)]


class BoxTarget(Structure):
    """Elements [begin, end) of a box of a tensor; `memory` is contiguous."""
    _fields_ = [("tensor", c_uint64), ("offsets", POINTER(c_uint64)), ("sizes", POINTER(c_uint64)), ("begin", c_uint64),
                ("end", c_uint64), ("memory", c_void_p)]


class LoadReport(Structure):
    _fields_ = [(name, c_uint64) for name in ("bytes", "read", "direct", "straight", "through_mount",
                                          "checked")]


class Stage(Structure):
    _fields_ = [("name", c_char_p), ("seconds", c_double)]


class SavedTensor(Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("shape", POINTER(c_uint64)), ("dimensions", c_uint32),
                ("memory", c_void_p), ("bytes", c_uint64),
                ("of", c_char_p), ("whole", POINTER(c_uint64)), ("offsets", POINTER(c_uint64))]  # NULL: it is whole


class Part(Structure):
    _fields_ = [("memory", c_void_p), ("bytes", c_uint64), ("offset", c_uint64)]


class Holding(Structure):  # the numbers' addresses
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("shape", c_void_p), ("offsets", c_void_p), ("sizes", c_void_p),
                ("dimensions", c_uint32)]


class Planned(Structure):
    _fields_ = [("holding", c_uint64), ("begin", c_uint64), ("end", c_uint64), ("message", c_uint64),
                ("holders", c_uint32), ("owner", c_uint32)]


_LOG_FUNCTION = ctypes.CFUNCTYPE(None, c_int, c_char_p)
_FUNCTIONS: dict[str, tuple[type, ...]] = {  # all that return an errno
    "ckptfs_staging_open": (c_char_p, c_uint64, c_uint64, c_uint32, POINTER(c_void_p)),
    "ckptfs_memory_allocate": (c_void_p, c_uint64, POINTER(c_void_p)),
    "ckptfs_memory_free": (c_void_p, c_void_p),
    "ckptfs_checkpoint_open": (c_char_p, c_char_p, c_double, POINTER(c_ubyte), POINTER(c_void_p)),
    "ckptfs_checkpoint_tensor": (c_void_p, c_uint64, POINTER(Tensor)),
    "ckptfs_load": (c_void_p, c_void_p, POINTER(Target), c_uint64, c_void_p, POINTER(LoadReport)),
    "ckptfs_load_boxes": (c_void_p, c_void_p, POINTER(BoxTarget), c_uint64, c_void_p, POINTER(LoadReport)),
    "ckptfs_checkpoint_loaded": (c_void_p, c_uint32, c_char_p, c_double, POINTER(Stage), c_uint64),
    "ckptfs_save_begin": (c_void_p, c_char_p, c_char_p, c_char_p, c_uint32, c_uint32, POINTER(c_void_p)),
    "ckptfs_save_digests": (c_void_p, c_int),
    "ckptfs_save_tensors": (c_void_p, c_char_p, POINTER(SavedTensor), c_uint64, c_void_p),
    "ckptfs_save_file": (c_void_p, c_char_p, c_uint64, POINTER(Part), c_uint64, c_void_p),
    "ckptfs_save_note": (c_void_p, c_char_p, c_double),
    "ckptfs_save_wait_copied": (c_void_p,),
    "ckptfs_save_wait_durable": (c_void_p,),
    "ckptfs_save_commit": (c_void_p, c_int, POINTER(c_int)),
    "ckptfs_describe": (POINTER(Holding), c_uint64, POINTER(c_void_p), POINTER(c_uint64)),
    "ckptfs_digest": (c_char_p, c_uint64, c_void_p),
    "ckptfs_plan_make": (POINTER(c_char_p), POINTER(c_uint64), POINTER(c_uint32), c_uint32, c_int, POINTER(c_void_p)),
    "ckptfs_plan_owned": (c_void_p, c_uint32, POINTER(POINTER(Planned)), POINTER(c_uint64)),
    "ckptfs_plan_held": (c_void_p, c_uint32, POINTER(POINTER(Planned)), POINTER(c_uint64)),
    "ckptfs_plan_holders": (c_void_p, c_uint32, POINTER(POINTER(c_uint32)), POINTER(c_uint64)),
    "ckptfs_boxes_of_range": (POINTER(c_uint64), POINTER(c_uint64), c_uint32, c_uint64, c_uint64, POINTER(c_uint64),
                              POINTER(c_uint64)),
}
_OTHERS: dict[str, tuple[type | None, ...]] = {
    "ckptfs_last_error": (c_char_p,),
    "ckptfs_set_log": (None, _LOG_FUNCTION),
    "ckptfs_staging_close": (None, c_void_p),
    "ckptfs_staging_device": (c_char_p, c_void_p),
    "ckptfs_staging_way": (c_char_p, c_void_p),
    "ckptfs_checkpoint_close": (None, c_void_p),
    "ckptfs_checkpoint_tensors": (c_uint64, c_void_p),
    "ckptfs_checkpoint_problem": (c_char_p, c_void_p, c_uint64),
    "ckptfs_save_close": (None, c_void_p),
    "ckptfs_save_folder": (c_char_p, c_void_p),
    "ckptfs_bytes_free": (None, c_void_p),
    "ckptfs_plan_close": (None, c_void_p),
    "ckptfs_plan_loads": (POINTER(c_uint64), c_void_p),
}


def _candidates() -> list[str]:
    if "CKPTFS_LIBRARY" in os.environ:
        return [os.environ["CKPTFS_LIBRARY"]]
    here = pathlib.Path(__file__).resolve().parent
    near = [here / "libckptfs.so", here.parents[2] / "build" / "libckptfs.so"]
    return [str(path) for path in near if path.exists()] + ["libckptfs.so"]


def _write_line(level: int, line: bytes) -> None:
    _log.log((logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)[level], "%s", line.decode(errors="replace"))


_write_line_of_c = _LOG_FUNCTION(_write_line)  # as long as the library may call it


def _open_library() -> ctypes.CDLL:
    wrong = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as problem:
            wrong.append(str(problem))
            continue
        library.ckptfs_abi.restype = c_uint32
        if library.ckptfs_abi() != _ABI:
            raise ImportError(f"{path} is of another version than this package (ABI {library.ckptfs_abi()}, not {_ABI})")
        for name, arguments in _FUNCTIONS.items():
            getattr(library, name).argtypes, getattr(library, name).restype = arguments, c_int
        for name, (returned, *others) in _OTHERS.items():
            getattr(library, name).argtypes, getattr(library, name).restype = others, returned
        library.ckptfs_set_log(_write_line_of_c)
        # While the interpreter ends nobody takes a line.
        atexit.register(library.ckptfs_set_log, _LOG_FUNCTION())
        return library
    raise ImportError("libckptfs.so is not found: install the package of ckptfs, build it (scripts/build), or name it in "
                      "CKPTFS_LIBRARY: " + "; ".join(wrong))


_lock = threading.RLock()  # a destructor may come while this thread has it
_library: ctypes.CDLL | None = None
_rings: dict[str, c_void_p] = {}


def _forget_in_child() -> None:
    """A child of fork has neither the memory of the rings nor the threads of the library: it makes its own."""
    global _lock
    _lock = threading.RLock()
    _rings.clear()


os.register_at_fork(after_in_child=_forget_in_child)
_settings = {"ring": 0, "slot": 0, "lanes": 0}


def library() -> ctypes.CDLL:
    """libckptfs, opened at the first call. ImportError: it is not found, or of another version."""
    global _library
    with _lock:
        if _library is None:
            _library = _open_library()
        return _library


def call(name: str, *arguments: object) -> None:
    """A function that returns an errno."""
    known = library()
    number = getattr(known, name)(*arguments)
    if number:
        raise OSError(number, known.ckptfs_last_error().decode(errors="replace"))


def call_until_stopped(stop: c_ubyte, name: str, *arguments: object) -> None:
    """As call(), but Ctrl-C ends it where it waits for a remote: `stop` is a byte (c_ubyte) that the checkpoint was opened
    with. Python handles signals in its main thread only, and not during a call. So another thread makes the call."""
    if threading.current_thread() is not threading.main_thread():
        return call(name, *arguments)
    outcome: list[BaseException] = []
    interrupt: BaseException | None = None

    def make() -> None:
        try:
            call(name, *arguments)
        except BaseException as problem:  # noqa: BLE001 - a thread's exceptions are nobody's
            outcome.append(problem)

    thread = threading.Thread(target=make)
    thread.start()
    while True:  # the call uses memory that the caller may free
        try:
            thread.join()
            break
        except BaseException as raised:  # noqa: BLE001 - by the handler of a signal
            stop.value, interrupt = 1, raised
    stop.value = 0
    if interrupt or outcome:
        raise interrupt or outcome[0]


def configure(*, ring: int = 256 << 20, slot: int = 0, lanes: int = 0) -> None:
    """Sets how much pinned memory, in bytes, each device gets at its first load or save. It is cut into slots of `slot`
    bytes, which `lanes` threads fill and empty; 0 is what suits the device. RuntimeError: it is in use already."""
    with _lock:
        if _rings:
            raise RuntimeError("the ring is in use already: configure it before the first load or save")
        _settings.update(ring=ring, slot=slot, lanes=lanes)


def encoded(name: str) -> bytes:
    """A tensor's name for the library."""
    try:
        if "\0" not in name:
            return name.encode()
    except UnicodeEncodeError:
        pass
    raise ValueError(f"{name!r}: no name for a tensor, since it is not Unicode without NUL")


def ring(device: str) -> c_void_p:
    """The staging handle of a device ("cuda:0", "twin"), made at its first use and kept for the life of the process."""
    library()
    with _lock:
        if device not in _rings:
            _rings[device] = _open_ring(device, _settings["ring"], _settings["slot"])
        return _rings[device]


def _open_ring(device: str, size: int, slot: int) -> c_void_p:
    handle = c_void_p()
    known = library()
    number = known.ckptfs_staging_open(device.encode(), size, slot, _settings["lanes"], byref(handle))
    if number:
        raise OSError(number, known.ckptfs_last_error().decode(errors="replace"))
    return handle


class OwnRing:
    """A ring that has room for at least so many bytes; closed with its last user."""

    def __init__(self, device: str, size: int) -> None:
        library()
        slot = _settings["slot"] or 8 << 20
        self.device, self.size, self._owner = device, -(-size // slot) * slot, os.getpid()
        self.handle = _open_ring(device, max(self.size, 2 * slot), slot)

    def __del__(self) -> None:
        if getattr(self, "handle", None) and os.getpid() == self._owner:
            library().ckptfs_staging_close(self.handle)


@contextlib.contextmanager
def checkpoint(path: str | os.PathLike[str], names: str = "", timeout: float = 60.0,
               stop: c_ubyte | None = None) -> Iterator[c_void_p]:
    """The handle of an open checkpoint. `names`: "" for those of the views, "saved" for those of a DCP checkpoint.
    `timeout`: seconds for each request to a remote. `stop`: see call_until_stopped()."""
    handle, owner, stop = c_void_p(), os.getpid(), c_ubyte() if stop is None else stop
    try:
        call_until_stopped(stop, "ckptfs_checkpoint_open", os.fsencode(path), names.encode(), timeout, byref(stop),
                           byref(handle))
        yield handle
    finally:
        if handle and os.getpid() == owner:  # a child of fork has not the threads that end with it
            library().ckptfs_checkpoint_close(handle)
