"""libckptfs (gpu/ckptfs.h) by ctypes: its functions, which raise OSError, and a ring for each device.

Looked for in CKPTFS_LIBRARY, beside this file, where the loader looks, and in build/ of a checkout.
"""

import atexit
import contextlib
import ctypes
import logging
import os
import pathlib
import threading
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int, c_ubyte, c_uint32, c_uint64, c_void_p

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
_FUNCTIONS = {  # all that return an errno
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
_OTHERS = {
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


def _candidates():
    if "CKPTFS_LIBRARY" in os.environ:
        return [os.environ["CKPTFS_LIBRARY"]]
    here = pathlib.Path(__file__).resolve().parent
    near = [here / "libckptfs.so", here.parents[2] / "build" / "libckptfs.so"]
    return [str(path) for path in near if path.exists()] + ["libckptfs.so"]


@_LOG_FUNCTION
def _write_line(level, line):
    _log.log((logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)[level], "%s", line.decode(errors="replace"))


def _open_library():
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
        for name, (returned, *arguments) in _OTHERS.items():
            getattr(library, name).argtypes, getattr(library, name).restype = arguments, returned
        library.ckptfs_set_log(_write_line)
        # While the interpreter ends nobody takes a line.
        atexit.register(library.ckptfs_set_log, _LOG_FUNCTION())
        return library
    raise ImportError("libckptfs.so is not found: install the package of ckptfs, build it (scripts/build), or name it in "
                      "CKPTFS_LIBRARY: " + "; ".join(wrong))


_lock = threading.RLock()  # a destructor may come while this thread has it
_library = None
_rings = {}


def _forget_in_child():
    """A child of fork has neither the memory of the rings nor the threads of the library: it makes its own."""
    global _lock
    _lock = threading.RLock()
    _rings.clear()


os.register_at_fork(after_in_child=_forget_in_child)
_settings = {"ring": 0, "slot": 0, "lanes": 0}


def library():
    global _library
    with _lock:
        if _library is None:
            _library = _open_library()
        return _library


def call(name, *arguments):
    """A function that returns an errno."""
    known = library()
    number = getattr(known, name)(*arguments)
    if number:
        raise OSError(number, known.ckptfs_last_error().decode(errors="replace"))


def call_until_stopped(stop, name, *arguments):
    """As call(), but Ctrl-C ends it where it waits for a remote: `stop` is a byte (c_ubyte) that the checkpoint was opened
    with. Python handles signals in its main thread only, and not during a call. So another thread makes the call."""
    if threading.current_thread() is not threading.main_thread():
        return call(name, *arguments)
    outcome, interrupt = [], None

    def make():
        try:
            call(name, *arguments)
        except BaseException as problem:  # all of them: a thread's exceptions are nobody's
            outcome.append(problem)

    thread = threading.Thread(target=make)
    thread.start()
    while True:  # the call uses memory that the caller may free
        try:
            thread.join()
            break
        except BaseException as raised:  # by the handler of a signal
            stop.value, interrupt = 1, raised
    stop.value = 0
    if interrupt or outcome:
        raise interrupt or outcome[0]


def configure(*, ring=256 << 20, slot=0, lanes=0):
    """The pinned memory of each device's ring from now on, and how it is cut (0: as suits the device); before the first
    load or save."""
    with _lock:
        if _rings:
            raise RuntimeError("the ring is in use already: configure it before the first load or save")
        _settings.update(ring=ring, slot=slot, lanes=lanes)


def encoded(name):
    """A tensor's name for the library."""
    try:
        if "\0" not in name:
            return name.encode()
    except UnicodeEncodeError:
        pass
    raise ValueError(f"{name!r}: no name for a tensor, since it is not Unicode without NUL")


def ring(device):
    """The staging handle of a device ("cuda:0", "twin"), made at its first use and kept for the life of the process."""
    library()
    with _lock:
        if device not in _rings:
            _rings[device] = _open_ring(device, _settings["ring"], _settings["slot"])
        return _rings[device]


def _open_ring(device, size, slot):
    handle = c_void_p()
    known = _library
    number = known.ckptfs_staging_open(device.encode(), size, slot, _settings["lanes"], byref(handle))
    if number:
        raise OSError(number, known.ckptfs_last_error().decode(errors="replace"))
    return handle


class OwnRing:
    """A ring that has room for at least so many bytes; closed with its last user."""

    def __init__(self, device, size):
        library()
        slot = _settings["slot"] or 8 << 20
        self.device, self.size, self._owner = device, -(-size // slot) * slot, os.getpid()
        self.handle = _open_ring(device, max(self.size, 2 * slot), slot)

    def __del__(self):
        if getattr(self, "handle", None) and os.getpid() == self._owner:
            library().ckptfs_staging_close(self.handle)


@contextlib.contextmanager
def checkpoint(path, names="", timeout=60.0, stop=None):
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
