"""PyTorch's distributed checkpoints (torch.distributed.checkpoint, DCP), moved by libckptfs.

    import torch.distributed.checkpoint as dcp
    dcp.save(state, checkpoint_id="/ckpt/steps/step_100", storage_writer=ckptfs.dcp.Writer())
    dcp.load(state, checkpoint_id="/ckpt/steps/step_100", storage_reader=ckptfs.dcp.Reader())

A step has the files that torch's own FileSystemWriter makes, and each reads what the other wrote. They are written past
the page cache from where the tensors lie. The step appears, whole, when the files of all ranks and `.metadata` are on the
disk; if a rank fails or dies, it does not appear. The ranks see one folder: DCP's use_collectives=False is refused.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import io
import logging
import math
import operator
import os
import pathlib
import pickle
import threading
import time
import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch.distributed.checkpoint import _storage_utils
from torch.distributed.checkpoint.filesystem import (CURRENT_DCP_VERSION, DEFAULT_SUFFIX, FileSystemReader,
                                                     FileSystemWriter, SerializationFormat, _item_size, _StorageInfo,
                                                     _write_item)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner,
                                                  WriteItem, WriteItemType)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ckptfs import memory, torch_files
from ckptfs.loading import Checkpoint, TensorInfo
from ckptfs.saving import Save

__all__ = ["Writer", "UnsealedWriter", "Reader", "install"]

_T = TypeVar("_T")
_Ints = tuple[int, ...]
_log = logging.getLogger("ckptfs")

_METADATA = ".metadata"
_FILE_BYTES = 1 << 30  # a rank begins another file beyond it: a planner that makes new tensors holds no more of them
_ALIGNED_BYTES = 64 << 10  # from this size on a tensor lies as O_DIRECT and the sharing of blocks want it
_BESIDE_BYTES = 256 << 20  # a Reader's own tensors at a time, for what cannot be read into place


def _done(value: _T) -> Future[_T]:
    future: Future[_T] = Future()
    future.set_result(value)
    return future


# --- saving


class _Attempt:
    """What the coordinator tells all ranks of a save, as the `storage_data` of their plans.

    A planner that caches plans (enable_plan_caching) drops the plan that arrives and takes the one of an earlier save,
    storage_data included. So what counts is the attempt that came to this thread last: a save is on one thread from the
    arrival of its plan to its end.
    """

    _arrived = threading.local()

    def __init__(self, ranks: int) -> None:
        self.word, self.ranks = uuid.uuid4().hex[:12], ranks
        self._arrived.attempt = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._arrived.attempt = self

    @classmethod
    def of_this_save(cls) -> _Attempt:
        return cast(_Attempt, cls._arrived.attempt)


@functools.lru_cache(maxsize=4096)
def _frame(dtype: torch.dtype, shape: _Ints, alignment: int) -> tuple[bytes, bytes]:
    """What torch.save writes before and after the elements of such a tensor."""
    tensor = torch.empty(shape, dtype=dtype)
    return torch_files.Skeleton(tensor, alignment).around(tensor)


class _File:
    """One file of a rank: items one after another, each as torch writes it. Tensors stay where they are."""

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 0
        self.results: list[WriteResult] = []
        self._bytes = bytearray()  # of all that is no tensor
        self._places: list[tuple[int, int, int]] = []  # of these bytes: (offset there, length, offset in the file)
        self._parts: list[tuple[int, int, int]] = []
        self._tensors: list[torch.Tensor] = []

    def add_bytes(self, item: WriteItem, content: bytes | memoryview, transforms: Sequence[str] | None = None) -> None:
        """`content` is what the file has of the item. `transforms` names what was done to it."""
        begin = self.size
        self._append(content)
        self._note(item, begin, transforms)

    def add_tensor(self, item: WriteItem, tensor: torch.Tensor) -> None:
        """`tensor` is contiguous, and kept."""
        address, length = memory.span(tensor)
        alignment = torch_files.ALIGNMENT if length >= _ALIGNED_BYTES else torch_files.TORCH_ALIGNMENT
        before, after = _frame(tensor.dtype, tuple(tensor.shape), alignment)
        begin = self.size = -(-self.size // alignment) * alignment
        self._append(before)
        self._parts.append((address, length, self.size))
        self._tensors.append(tensor)
        self.size += length
        self._append(after)
        self._note(item, begin)

    def _append(self, content: bytes | memoryview) -> None:
        self._places.append((len(self._bytes), len(content), self.size))
        self._bytes += content
        self.size += len(content)

    def _note(self, item: WriteItem, begin: int, transforms: Sequence[str] | None = None) -> None:
        length = self.size - begin
        self.results.append(WriteResult(item.index, length, _StorageInfo(self.name, begin, length, transforms)))

    def save(self, save: Save) -> None:
        parts = list(self._parts)
        if self._bytes:
            base = torch.frombuffer(self._bytes, dtype=torch.uint8).data_ptr()
            parts += [(base + at, length, offset) for at, length, offset in self._places]
        save.add_file(self.name, self.size, parts, keep=(self._bytes, self._tensors))


class Writer(FileSystemWriter):
    """The StorageWriter for dcp.save and dcp.async_save. `path`: the step's folder; DCP's checkpoint_id goes before it.
    `seal`: the step becomes read-only on a ckptfs mount. The other arguments are FileSystemWriter's, of which those on
    files, threads and syncing have no effect. Between saves a Writer can be pickled.
    """

    def __init__(self, path: str | os.PathLike[str] = "", *arguments: Any, seal: bool = True, **named: Any) -> None:
        super().__init__(path, *arguments, **named)
        if self.serialization_format != SerializationFormat.TORCH_SAVE:
            raise ValueError("ckptfs.dcp.Writer writes torch's own format only")
        torch_files.check_torch()
        self.seal = seal
        self._is_coordinator, self._begun = False, 0.0
        self._save: Save | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        super().reset(checkpoint_id)
        self._close()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        if not self.use_collectives:
            raise ValueError("use_collectives=False: ranks that do not wait for each other cannot save one step; use "
                             "torch's FileSystemWriter for that")
        self._is_coordinator, self._begun = is_coordinator, time.monotonic()
        self._close()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if not self._folder().name:
            raise ValueError("which step? Give a checkpoint_id to dcp.save, or a path to ckptfs.dcp.Writer")
        self._folder().parent.mkdir(parents=True, exist_ok=True)
        if self._metadata_exists():
            if not self.overwrite:
                raise FileExistsError(f"{self.path}: there is a checkpoint, and overwrite=False")
            warnings.warn(f"{self.path}: there is a checkpoint, whose files will be replaced", stacklevel=2)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        attempt = _Attempt(len(plans))
        return [dataclasses.replace(plan, storage_data=attempt) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Returns when this rank's files are on the disk; on the coordinator, which has to add `.metadata`, when they
        are copied."""
        attempt = _Attempt.of_this_save()
        path = pathlib.Path(os.path.abspath(self.path))
        save = self._save = Save(path.parent, path.name, attempt.word, cast(int, self.rank), attempt.ranks,
                                 device=_ring_for(plan.items, planner), seal=self.seal)
        try:
            save.note("plan", time.monotonic() - self._begun)  # torch's, and its two collectives
            results = self._save_items(save, plan.items, planner)
            if not self._is_coordinator:
                save.wait_durable()
                self._close()
        except BaseException:
            self._close()
            raise
        return _done(results)

    def _save_items(self, save: Save, items: list[WriteItem], planner: SavePlanner) -> list[WriteResult]:
        results: list[list[WriteResult]] = []
        file: _File | None = None
        for number, item in enumerate(sorted(items, key=_is_tensor)):  # bytes first, as torch has it
            if file is None:
                file = _File(f"__{self.rank}_{len(results)}{DEFAULT_SUFFIX}")
            self._add(save, file, item, planner.resolve_data(item))
            if file.size >= _FILE_BYTES or number == len(items) - 1:
                file.save(save)
                save.wait_copied()
                results.append(file.results)
                file = None
        return [result for of_file in results for result in of_file]

    def _add(self, save: Save, file: _File, item: WriteItem, data: torch.Tensor | io.BytesIO) -> None:
        if isinstance(data, torch.Tensor) and not self.transforms.extensions and _is_plain(data):
            file.add_tensor(item, _at_hand(data, save.device))
            return
        content = io.BytesIO()
        if isinstance(data, torch.Tensor):
            data = data.detach().cpu()
            if data.untyped_storage().nbytes() != data.nbytes:  # torch.save would save all of it
                data = data.clone()
        written = _write_item(self.transforms, content, data, item, file.name, self.serialization_format)
        file.add_bytes(item, content.getbuffer(), written.storage_data.transform_descriptors)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Called on the coordinator when all ranks' write_data has returned."""
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}
        metadata.storage_meta = self.storage_meta()
        save = self._save
        assert save is not None, "DCP calls write_data before it"
        try:
            save.add_bytes(_METADATA, pickle.dumps(metadata))
            save.wait_durable()
            if not save.commit():
                raise RuntimeError(f"{save.folder}: not all ranks' files are here, so there is no step "
                                   f"{self._folder().name}. Do all ranks see this folder?")
        finally:
            self._close()

    def _folder(self) -> pathlib.Path:
        return pathlib.Path(self.path)

    def _close(self) -> None:
        save, self._save = self._save, None
        if save is not None:
            save.close()


def _is_tensor(item: WriteItem) -> bool:
    return item.type != WriteItemType.BYTE_IO


def _is_plain(tensor: torch.Tensor) -> bool:
    """Is it elements in memory, and nothing else? Others, such as quantized ones, are torch.save's."""
    return (type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
            and not tensor.is_quantized)


def _ring_of(device: torch.device) -> str:
    return memory.ring_of(device) if device.type == "cuda" else "twin"


def _ring_for(items: Iterable[WriteItem], planner: SavePlanner) -> str:
    """That of the largest tensor."""
    largest = max(filter(_is_tensor, items), key=_item_size, default=None)
    return "twin" if largest is None else _ring_of(cast(torch.Tensor, planner.resolve_data(largest)).device)


def _at_hand(tensor: torch.Tensor, ring: str) -> torch.Tensor:
    """The tensor, contiguous, where the ring can copy it: in host memory, or on the ring's device."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.device.type != "cpu" and _ring_of(tensor.device) != ring:
        tensor = tensor.cpu()
    return tensor.contiguous()


# --- loading


class Reader(FileSystemReader):
    """The StorageReader for dcp.load: of steps of Writer, and of torch's own FileSystemWriter. A rank reads only what it
    holds. What is no plain tensor, and what was saved with extensions, is read by torch.
    """

    def __init__(self, path: str | os.PathLike[str] = "", *arguments: Any, **named: Any) -> None:
        super().__init__(path, *arguments, **named)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        if not self.use_collectives:  # saved by ranks that did not wait for each other: there is no common .metadata
            return super().read_data(plan, planner)
        try:
            checkpoint = Checkpoint(self.path, names="saved")
        except OSError as problem:  # of all tensors; torch reads them, or says what is wrong with the step
            _log.warning("%s: torch reads it: %s", self.path, problem)
            return super().read_data(plan, planner)
        with checkpoint:
            rest = self._read_tensors(checkpoint, plan.items, planner)
        return super().read_data(LoadPlan(rest), planner)

    @staticmethod
    def _read_tensors(checkpoint: Checkpoint, items: Iterable[ReadItem], planner: LoadPlanner) -> list[ReadItem]:
        """Returns the items that torch has to read."""
        targets, rest = [], []
        for item in items:
            if item.type == LoadItemType.TENSOR and item.storage_index.fqn in checkpoint.tensors:
                targets.append(_Target(item, planner.resolve_tensor(item), checkpoint.tensors))
            else:
                rest.append(item)
        _read(checkpoint, targets)
        for target in targets:
            planner.commit_tensor(target.item, target.given)
        return rest


class _Target:
    """A box of a saved tensor, and the tensor that is to get its elements."""

    def __init__(self, item: ReadItem, given: torch.Tensor, saved: Mapping[str, TensorInfo]) -> None:
        self.item, self.given, self.tensor = item, given, given.detach()
        self.name = item.storage_index.fqn
        self.sizes: _Ints = tuple(item.lengths)
        self.dtype = saved[self.name].dtype
        chunk = item.storage_index.offset or (0,) * len(self.sizes)
        self.begin: _Ints = _sum(chunk, item.storage_offsets)
        if tuple(self.tensor.shape) != self.sizes:
            raise ValueError(f"{self.name}: {self.sizes} of it are to be loaded into {tuple(self.tensor.shape)}")

    @property
    def bytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize

    def owner(self) -> tuple[str, torch.device, int, _Ints, int] | None:
        """Equal for targets that are parts of one tensor in memory; nothing where it cannot be read into."""
        tensor = self.tensor
        if not _is_plain(tensor) or tensor.dtype != self.dtype or tensor.device.type not in ("cpu", "cuda"):
            return None
        begin = int(tensor.storage_offset()) - _dot(self.begin, tensor.stride())
        return self.name, tensor.device, tensor.untyped_storage().data_ptr(), tensor.stride(), begin


def _sum(some: Iterable[int], others: Iterable[int]) -> _Ints:
    return tuple(map(operator.add, some, others))


def _dot(some: Iterable[int], others: Iterable[int]) -> int:
    return sum(map(operator.mul, some, others))


def _read(checkpoint: Checkpoint, targets: Iterable[_Target]) -> None:
    """Into place, where a box is contiguous in memory; the others by tensors beside, of which few are there at a time."""
    in_place: list[_Target] = []
    beside: list[_Target] = []
    size = 0
    for target in _joined_all([target for target in targets if target.bytes]):
        if target.owner() is not None and target.tensor.is_contiguous():
            in_place.append(target)
            continue
        beside.append(target)
        size += target.bytes
        if size >= _BESIDE_BYTES:
            _read_beside(checkpoint, beside)
            beside, size = [], 0
    _read_beside(checkpoint, beside)
    _read_into(checkpoint, in_place, [target.tensor for target in in_place])


def _read_beside(checkpoint: Checkpoint, targets: list[_Target]) -> None:
    tensors = [torch.empty(target.sizes, dtype=target.dtype) for target in targets]
    _read_into(checkpoint, targets, tensors)
    for target, tensor in zip(targets, tensors, strict=True):
        target.tensor.copy_(tensor)


def _read_into(checkpoint: Checkpoint, targets: list[_Target], tensors: list[torch.Tensor]) -> None:
    boxes = collections.defaultdict(list)
    for target, tensor in zip(targets, tensors, strict=True):
        box = (target.name, target.begin, target.sizes, 0, tensor.numel(), tensor.data_ptr())
        boxes[_ring_of(tensor.device)].append(box)
    for ring, of_ring in boxes.items():
        checkpoint.load_boxes(of_ring, ring)


def _joined_all(targets: Iterable[_Target]) -> list[_Target]:
    """Chunks of several ranks that lie in one tensor now, as one target where they fill a box of it."""
    groups = collections.defaultdict(list)
    for target in targets:
        groups[target.owner()].append(target)
    alone = groups.pop(None, [])
    return alone + [target for group in groups.values() for target in _joined(group)]


def _joined(group: list[_Target]) -> list[_Target]:
    begin = tuple(map(min, zip(*(target.begin for target in group), strict=True)))
    end = tuple(map(max, zip(*(_sum(target.begin, target.sizes) for target in group), strict=True)))
    sizes = tuple(map(operator.sub, end, begin))
    if len(group) == 1 or sum(math.prod(target.sizes) for target in group) != math.prod(sizes):
        return group
    whole = copy.copy(group[0])
    owner = whole.owner()
    assert owner is not None, "a group lies in one tensor"
    *_, stride, origin = owner
    whole.tensor = whole.tensor.as_strided(sizes, stride, origin + _dot(begin, stride))
    whole.begin, whole.sizes = begin, sizes
    return [whole]


class UnsealedWriter(Writer):
    """A Writer whose steps stay writable: Lightning adds a file to them, and torchtitan removes old ones."""

    def __init__(self, path: str | os.PathLike[str] = "", *arguments: Any, seal: bool = False, **named: Any) -> None:
        super().__init__(path, *arguments, seal=seal, **named)


def install() -> None:
    """Gives an UnsealedWriter or a Reader to who makes torch's FileSystemWriter or FileSystemReader, or gives DCP only a
    checkpoint_id, as torchtitan, accelerate and Lightning do."""
    modules: tuple[Any, ...] = (torch.distributed.checkpoint, _storage_utils)
    for module in modules:
        module.FileSystemWriter, module.FileSystemReader = UnsealedWriter, Reader
