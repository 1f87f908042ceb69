"""Files of torch.save, their storages moved past pickle: what torch writes, and reads, is the rest of the file only."""

import collections
import contextlib
import io
import mmap
import os
import pickle
import struct
import zipfile

import torch

from ckptfs import memory
from ckptfs.loading import Checkpoint

ALIGNMENT = 4096  # of storages in a file: as O_DIRECT wants it


class NotAllowed(pickle.UnpicklingError):
    """The file asks for something to be made that is on no list: nothing of it was."""


# --- writing


class Skeleton:
    """What torch.save writes of an object, without its storages.

    `size`: of the whole file; `parts`: (address, bytes, offset) of all that is in it, for Save.add_file. The skeleton
    has to be kept until they are copied: it owns the memory of what is no storage, and keeps the storages.
    """

    def __init__(self, value):
        self.storages = {}  # by key
        self._file = os.fdopen(os.memfd_create("ckptfs-skeleton"), "w+b")
        with _aligned(), torch.serialization.skip_data():
            torch.save(value, self._file, pickle_module=_recording(self.storages))
        self._file.flush()
        self.size = os.fstat(self._file.fileno()).st_size
        self._map = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_WRITE)
        self.parts = self._parts()

    def _parts(self):
        placed = sorted((offset, self.storages[key]) for key, offset in self._offsets().items())
        base = torch.frombuffer(self._map, dtype=torch.uint8).data_ptr()
        parts, end = [], 0
        for offset, storage in [*placed, (self.size, None)]:
            parts.append((base + end, offset - end, end))
            if storage is not None:
                parts.append((storage.data_ptr(), storage.nbytes(), offset))
                end = offset + storage.nbytes()
        return parts

    def _offsets(self):
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


def _aligned():
    try:
        from torch.utils.serialization import config
        return config.patch("save.storage_alignment", ALIGNMENT)
    except (ImportError, AttributeError):
        return contextlib.nullcontext()


def _recording(storages):
    """A pickle module for torch.save that notes each storage under the key that torch gives it."""

    class Pickler(pickle.Pickler):
        def __init_subclass__(cls):
            name_of = cls.persistent_id

            def persistent_id(self, value):
                identity = name_of(self, value)
                if identity is not None and identity[0] == "storage":
                    storages[identity[2]] = getattr(value, "_untyped_storage", value)
                return identity

            cls.persistent_id = persistent_id

    module = type(pickle)("ckptfs.recording_pickle")
    module.Pickler = Pickler
    module.__name__ = "pickle"
    return module


# --- reading


def _allowed():
    from torch import _tensor, _utils
    made = {name: getattr(_utils, name) for name in
            ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
             "_rebuild_parameter_with_state") if hasattr(_utils, name)}
    allowed = {("torch._utils", name): function for name, function in made.items()}
    allowed |= {("torch._tensor", "_rebuild_from_type_v2"): _tensor._rebuild_from_type_v2,
                ("collections", "OrderedDict"): collections.OrderedDict,
                ("collections", "defaultdict"): collections.defaultdict,
                ("collections", "Counter"): collections.Counter,
                ("torch", "Size"): torch.Size, ("torch", "device"): torch.device, ("torch", "Tensor"): torch.Tensor,
                ("torch.nn.parameter", "Parameter"): torch.nn.Parameter,
                ("builtins", "set"): set, ("builtins", "list"): list, ("builtins", "dict"): dict,
                ("builtins", "int"): int}
    for dtype in memory.NAMES:
        allowed["torch", str(dtype).removeprefix("torch.")] = dtype
    return allowed


def _named(things):
    return {(thing.__module__, thing.__qualname__): thing for thing in things}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, allowed, storage_of):
        super().__init__(file)
        self._allowed, self._storage_of = allowed, storage_of

    def find_class(self, module, name):
        if module == "torch" and name.endswith("Storage") and name != "UntypedStorage":
            return torch.serialization.StorageType(name)
        if (module, name) in (("torch", "UntypedStorage"), ("torch.storage", "UntypedStorage")):
            return torch.UntypedStorage
        if (module, name) not in self._allowed:
            raise NotAllowed(f"it asks for {module}.{name}, which is not on the list of what may be made: if you trust the "
                             f"file, add it (allow=[{module}.{name}], or torch.serialization.add_safe_globals)")
        return self._allowed[module, name]

    def persistent_load(self, identity):
        kind, storage_type, key, location, elements = identity
        if kind != "storage":
            raise NotAllowed(f"it names {kind!r}, and not a storage")
        dtype = torch.uint8 if storage_type is torch.UntypedStorage else storage_type.dtype
        storage = self._storage_of(key, elements * torch._utils._element_size(dtype), location)
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


class TorchFile:
    """A file of torch.save, to be read into memory that is there, or made as it is read.

        file = TorchFile("model.pt")
        shape = file.outline()              # the object, its tensors on "meta"
        value = file.read(storages)         # the object; {key: UntypedStorage} of those that have their place already

    Nothing is executed but what is allowed: torch's own makers of tensors, containers, `allow`, and what
    torch.serialization.add_safe_globals was told.
    """

    def __init__(self, path, allow=()):
        self.path = os.fspath(path)
        self._allowed = _allowed() | _named(torch.serialization.get_safe_globals()) | _named(allow)
        with zipfile.ZipFile(self.path) as archive:
            name = next((name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1), None)
            if name is None:
                raise ValueError(f"{self.path}: it is no file of torch.save")
            self._pickle = archive.read(name)

    def outline(self):
        known = {}

        def storage_of(key, size, _location):
            if key not in known:
                known[key] = torch.UntypedStorage(size, device="meta")
            return known[key]

        value = self._unpickle(storage_of)
        self.keys = {storage._cdata: key for key, storage in known.items()}
        self._outline = known  # so that none of these numbers comes back
        return value

    def key_of(self, tensor):
        """The storage of a tensor of the outline."""
        return self.keys[tensor.untyped_storage()._cdata]

    def size_of(self, key):
        return self._outline[key].nbytes()

    def read(self, placed=None, device_of=lambda location: "cpu", stream=None):
        """The object. `device_of`: where a storage is made that has no place, by what the file says of it ("cuda:0")."""
        storages = dict(placed or {})

        def storage_of(key, size, location):
            if key not in storages:
                storages[key] = torch.UntypedStorage(size, device=device_of(location))
            return storages[key]

        value = self._unpickle(storage_of)
        self._fill(storages, stream)
        return value

    def _fill(self, storages, stream):
        by_device = collections.defaultdict(list)
        for key, storage in storages.items():
            if storage.nbytes():
                probe = torch.empty(0, dtype=torch.uint8, device=storage.device)
                by_device[memory.device_of([probe])].append((key, 0, storage.data_ptr(), storage.nbytes()))
        with Checkpoint(self.path) as checkpoint:
            for device, spans in by_device.items():
                checkpoint.load_spans(spans, device, stream)

    def _unpickle(self, storage_of):
        try:
            return _Unpickler(io.BytesIO(self._pickle), self._allowed, storage_of).load()
        except NotAllowed as problem:
            raise NotAllowed(f"{self.path}: {problem}") from None
