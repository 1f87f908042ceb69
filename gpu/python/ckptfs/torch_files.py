"""Files of torch.save, their storages moved past pickle: what torch writes, and reads, is the rest of the file only."""

from __future__ import annotations

import _codecs
import collections
import contextlib
import io
import mmap
import os
import pickle
import struct
import types
import zipfile
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, ClassVar

import torch

from ckptfs import memory
from ckptfs.loading import Checkpoint

ALIGNMENT = 4096  # of storages in a file: as O_DIRECT wants it
TORCH_ALIGNMENT = 64  # torch's own
_MOST_PICKLE = 1 << 30  # bytes
_Allowed = dict[tuple[str, str], Any]  # (module, name) -> what it is
_StorageOf = Callable[[str, int, str], torch.UntypedStorage]  # of its key, its bytes, and where it was


class NotAllowed(pickle.UnpicklingError):
    """The file asks for something to be made that is on no list: nothing of it was."""


# --- writing


class Skeleton:
    """What torch.save writes of an object, without its storages.

    `size`: of the whole file; `parts`: (address, bytes, offset) of all that is in it, for Save.add_file. The skeleton
    has to be kept until they are copied: it owns the memory of what is no storage, and keeps the storages.
    """

    def __init__(self, value: object, alignment: int = ALIGNMENT) -> None:
        self.storages: dict[str, torch.UntypedStorage] = {}  # by key
        self._file = os.fdopen(os.memfd_create("ckptfs-skeleton"), "w+b")
        with _aligned(alignment), torch.serialization.skip_data():
            torch.save(value, self._file, pickle_module=_recording(self.storages))
        self._file.flush()
        self.size = os.fstat(self._file.fileno()).st_size
        self._map = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_WRITE)
        self.parts = self._parts()

    def _parts(self) -> list[tuple[int, int, int]]:
        placed: list[tuple[int, torch.UntypedStorage | None]] = sorted(
            (offset, self.storages[key]) for key, offset in self._offsets().items())
        base = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        parts, end = [], 0
        for offset, storage in [*placed, (self.size, None)]:
            parts.append((base + end, offset - end, end))
            if storage is not None:
                parts.append((storage.data_ptr(), storage.nbytes(), offset))
                end = offset + storage.nbytes()
        return parts

    def around(self, tensor: torch.Tensor) -> tuple[bytes, bytes]:
        """Of a single tensor: what the file has before its elements, and after them."""
        (offset,) = self._offsets().values()
        return self._map[:offset], self._map[offset + memory.span(tensor)[1] :]

    def _offsets(self) -> dict[str, int]:
        found = {}
        with zipfile.ZipFile(self._file) as archive:
            for entry in archive.infolist():
                folder, _, key = entry.filename.rpartition("/data/")
                if folder and key in self.storages:
                    self._file.seek(entry.header_offset + 26)  # the lengths of the name and of the extra field
                    name, extra = struct.unpack("<HH", self._file.read(4))
                    found[key] = entry.header_offset + 30 + name + extra
        missing = self.storages.keys() - found.keys()
        if missing:
            raise RuntimeError(f"torch {torch.__version__} wrote no record of storage {missing.pop()}: not a version that "
                               "this knows")
        return found


def _aligned(alignment: int) -> contextlib.AbstractContextManager[object]:
    try:
        from torch.utils.serialization import config as imported
    except ImportError:
        return contextlib.nullcontext()
    config: Any = imported  # torch adds functions to this module when it is imported
    known = hasattr(getattr(config, "save", None), "storage_alignment")
    patched: contextlib.AbstractContextManager[object] = (
        config.patch("save.storage_alignment", alignment) if known else contextlib.nullcontext())
    return patched


def check_torch() -> None:
    """ImportError: a torch that cannot write a file without its storages."""
    if not hasattr(torch.serialization, "skip_data"):
        raise ImportError(f"torch {torch.__version__} has no torch.serialization.skip_data: saving needs 2.6 or newer")


def _recording(storages: dict[str, torch.UntypedStorage]) -> types.ModuleType:
    """A pickle module for torch.save that notes each storage under the key that torch gives it."""

    class Pickler(pickle.Pickler):
        def __init_subclass__(cls) -> None:
            name_of = cls.persistent_id

            def persistent_id(self: Pickler, value: Any) -> Any:
                identity = name_of(self, value)
                if identity is not None and identity[0] == "storage":
                    storages[identity[2]] = getattr(value, "_untyped_storage", value)
                return identity

            cls.persistent_id = persistent_id  # type: ignore[method-assign, assignment] # torch's, wrapped

    module: Any = types.ModuleType("ckptfs.recording_pickle")
    module.Pickler = Pickler
    module.__name__ = "pickle"
    made: types.ModuleType = module
    return made


# --- reading


class _Untyped:
    """Stands for torch.UntypedStorage, which a file names, and never makes."""


def _allowed() -> _Allowed:
    from torch import _tensor, _utils
    allowed: _Allowed = {("torch._utils", name): getattr(_utils, name) for name in
               ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
                "_rebuild_parameter_with_state") if hasattr(_utils, name)}
    allowed |= {("torch._tensor", "_rebuild_from_type_v2"): _tensor._rebuild_from_type_v2,
                ("torch", "Size"): torch.Size, ("torch", "device"): torch.device, ("torch", "Tensor"): torch.Tensor,
                ("torch.nn.parameter", "Parameter"): torch.nn.Parameter, ("_codecs", "encode"): _codecs.encode,
                ("torch", "UntypedStorage"): _Untyped, ("torch.storage", "UntypedStorage"): _Untyped}
    containers: tuple[type, ...] = (collections.OrderedDict, collections.defaultdict, collections.Counter)
    for kind in containers:
        allowed["collections", kind.__name__] = kind
    builtins: tuple[type, ...] = (set, frozenset, list, dict, tuple, int, float, bool, complex, str, bytes, bytearray)
    for builtin in builtins:
        allowed["builtins", builtin.__name__] = allowed["__builtin__", builtin.__name__] = builtin
    for name, value in vars(torch).items():
        if isinstance(value, torch.dtype):
            allowed["torch", name] = value
    return allowed | _of_numpy()


def _of_numpy() -> _Allowed:
    """Arrays and numbers, as states of random numbers have them."""
    try:
        import numpy
    except ImportError:
        return {}
    core: Any = getattr(numpy, "_core", None) or numpy.core
    made = {"_reconstruct": core.multiarray._reconstruct, "scalar": core.multiarray.scalar}
    allowed: _Allowed = {(f"numpy.{folder}.multiarray", name): function for folder in ("core", "_core")
               for name, function in made.items()}
    return allowed | {("numpy", "ndarray"): numpy.ndarray, ("numpy", "dtype"): numpy.dtype}


def _check_numpy_type(target: Any, state: object) -> None:
    """numpy believes whatever it is told of a type: only what it tells of a plain one itself."""
    plain = (isinstance(state, tuple) and len(state) == 8 and state[0] in (3, 4) and state[2:5] == (None, None, None)
             and state[5] in (-1, target.itemsize) and state[7] in (0, 63 if target.kind == "O" else 0))
    if not plain or target.kind == "V":
        raise NotAllowed(f"it makes numpy's {target} something else")


def _named(things: Iterable[Callable[..., Any] | tuple[Callable[..., Any], str]]) -> _Allowed:
    """Classes and functions; or (thing, "module.name"), as torch.serialization.add_safe_globals takes it."""
    pairs = (thing if isinstance(thing, tuple) else (thing, f"{thing.__module__}.{thing.__qualname__}") for thing in things)
    found: _Allowed = {}
    for thing, name in pairs:
        module, _, own = name.rpartition(".")
        found[module, own] = thing
    return found


class _Unpickler(pickle._Unpickler):
    """Python's own in Python: the one in C has no place where these could be refused."""

    _plain: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_plain)
    stack: list[Any]

    def __init__(self, file: IO[bytes], allowed: _Allowed, storage_of: _StorageOf) -> None:
        super().__init__(file)
        self._allowed, self._storage_of = allowed, storage_of

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name.endswith("Storage") and name != "UntypedStorage":
            return torch.serialization.StorageType(name)
        if (module, name) not in self._allowed:
            raise NotAllowed(f"it asks for {module}.{name}, which is not on the list of what may be made: if you trust the "
                             f"file, add it (allow=[{module}.{name}], or torch.serialization.add_safe_globals)")
        return self._allowed[module, name]

    def persistent_load(self, identity: Any) -> Any:
        kind, storage_type, key, location, elements = identity
        if kind != "storage":
            raise NotAllowed(f"it names {kind!r}, and not a storage")
        dtype = torch.uint8 if storage_type is _Untyped else storage_type.dtype
        storage = self._storage_of(key, elements * torch._utils._element_size(dtype), location)
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    def _refused(self) -> None:
        raise NotAllowed("it makes things in a way that torch.save never uses")

    for _opcode in (pickle.NEWOBJ_EX, pickle.INST, pickle.OBJ, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.NEXT_BUFFER):
        dispatch[_opcode[0]] = _refused

    def _build(self) -> None:
        state, target = self.stack[-1], self.stack[-2]
        if isinstance(target, type) or any(target is thing for thing in self._allowed.values()):
            raise NotAllowed(f"it changes {target!r}")
        if type(target).__module__.partition(".")[0] == "numpy" and type(target).__name__.endswith("DType"):
            _check_numpy_type(target, state)
        self._plain[pickle.BUILD[0]](self)

    dispatch[pickle.BUILD[0]] = _build


class TorchFile:
    """A file of torch.save, to be read into memory that is there, or made as it is read.

        file = TorchFile("model.pt")
        shape = file.outline()              # the object, its tensors on "meta"
        value = file.read(storages)         # the object; {key: UntypedStorage} of those that have their place already

    Nothing is executed but what is allowed: torch's own makers of tensors, containers, `allow`, and what
    torch.serialization.add_safe_globals was told.
    """

    def __init__(self, path: str | os.PathLike[str],
                 allow: Iterable[Callable[..., Any] | tuple[Callable[..., Any], str]] = ()) -> None:
        self.path = os.fspath(path)
        self._allowed = _allowed() | _named(torch.serialization.get_safe_globals()) | _named(allow)
        with zipfile.ZipFile(self.path) as archive:
            entry = next((entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")
                          and entry.filename.count("/") == 1), None)
            if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.file_size > _MOST_PICKLE:
                raise ValueError(f"{self.path}: it is no file of torch.save")
            self._pickle = archive.read(entry)

    def outline(self) -> Any:
        known: dict[str, torch.UntypedStorage] = {}
        self.uses: collections.Counter[str] = collections.Counter()  # how many tensors have a storage, by key

        def storage_of(key: str, size: int, _location: str) -> torch.UntypedStorage:
            self.uses[key] += 1
            if key not in known:
                known[key] = torch.UntypedStorage(size, device="meta")
            return known[key]

        value = self._unpickle(storage_of)
        self.keys = {storage._cdata: key for key, storage in known.items()}
        self._outline = known  # so that none of these numbers comes back
        return value

    def key_of(self, tensor: torch.Tensor) -> str:
        """The storage of a tensor of the outline."""
        return self.keys[tensor.untyped_storage()._cdata]

    def size_of(self, key: str) -> int:
        return self._outline[key].nbytes()

    def read(self, placed: Mapping[str, torch.UntypedStorage] | None = None,
             device_of: Callable[[str], str | torch.device] = lambda location: "cpu",
             stream: torch.cuda.Stream | None = None) -> Any:
        """The object. `device_of`: where a storage is made that has no place, by what the file says of it ("cuda:0")."""
        storages = dict(placed or {})

        def storage_of(key: str, size: int, location: str) -> torch.UntypedStorage:
            if key not in storages:
                storages[key] = torch.UntypedStorage(size, device=device_of(location))
            return storages[key]

        with memory.on(stream):
            value = self._unpickle(storage_of)
            self._fill(storages, stream)
        return value

    def _fill(self, storages: Mapping[str, torch.UntypedStorage], stream: torch.cuda.Stream | None) -> None:
        by_device = collections.defaultdict(list)
        for key, storage in storages.items():
            if storage.nbytes():
                by_device[memory.ring_of(storage.device)].append((key, 0, storage.data_ptr(), storage.nbytes()))
        with Checkpoint(self.path) as checkpoint:
            for device, spans in by_device.items():
                checkpoint.load_spans(spans, device, stream)

    def _unpickle(self, storage_of: _StorageOf) -> Any:
        try:
            return _Unpickler(io.BytesIO(self._pickle), self._allowed, storage_of).load()
        except NotAllowed as problem:
            raise NotAllowed(f"{self.path}: {problem}") from None
