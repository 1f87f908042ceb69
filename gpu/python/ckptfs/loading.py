"""Tensors from a checkpoint to where they belong, with bounded host memory."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, overload

import torch

from ckptfs import group_loading, memory, native, pieces

if TYPE_CHECKING:
    import types

    from torch.distributed import ProcessGroup

__all__ = ["Checkpoint", "Report", "TensorInfo", "load"]

_log = logging.getLogger("ckptfs")
_Value = TypeVar("_Value", bound=pieces.State)


class TensorInfo(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]  # elements
    bytes: int


class Report(NamedTuple):
    bytes: int  # asked for
    read: int  # bytes that were read from files, or fetched from a remote
    direct: int  # of those, read past the page cache
    straight: int  # of those, read without a copy in host memory
    through_mount: int  # files of a mount that could not be read past it
    checked: int  # bytes that were compared with a digest


class Checkpoint:
    """An open checkpoint: a step, a safetensors file, or a file of `torch.save` (its storages, by their keys).

        with ckptfs.Checkpoint("/ckpt/steps/global_step100") as checkpoint:
            print(checkpoint.tensors)                      # {"layers.0.weight": TensorInfo(dtype, shape, bytes), ...}
            checkpoint.load({"layers.0.weight": tensor})   # into memory that is there

    A step has the tensor `NAME` as the model computes with it, `NAME/fp32`, `NAME/exp_avg` and so on. With
    `names="saved"` the tensors of a DCP checkpoint have the names that they were saved by. `problems` tells what cannot
    be read. `path` may be the address of a committed step in a remote, `s3://bucket/run7/global_step100`; each request
    to it may take `timeout` seconds. A child of fork must open its own.
    """

    def __init__(self, path: str | os.PathLike[str], names: Literal["", "saved"] = "", *, timeout: float = 60.0) -> None:
        self._open, self._process = contextlib.ExitStack(), os.getpid()
        self._stop = ctypes.c_ubyte()  # outlives the handle
        self.handle: ctypes.c_void_p | None = self._open.enter_context(native.checkpoint(path, names, timeout, self._stop))
        self.path = path
        library = native.library()
        self.tensors: dict[str, TensorInfo] = {}
        self._numbers: dict[str, int] = {}
        for number in range(library.ckptfs_checkpoint_tensors(self.handle)):
            tensor = native.Tensor()
            native.call("ckptfs_checkpoint_tensor", self.handle, number, ctypes.byref(tensor))
            name = tensor.name.decode(errors="surrogateescape")
            self.tensors[name] = TensorInfo(memory.DTYPES[tensor.dtype.decode()], tuple(tensor.shape[:tensor.dimensions]),
                                            tensor.bytes)
            self._numbers[name] = number
        self.problems: list[str] = []
        while (problem := library.ckptfs_checkpoint_problem(self.handle, len(self.problems))) is not None:
            self.problems.append(problem.decode(errors="replace"))

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Frees what it has open, as the end of `with` does."""
        self.handle = None
        self._open.close()

    def load(self, into: Mapping[str, pieces.State], *, stream: torch.cuda.Stream | None = None) -> Report:
        """Fills the caller's tensors, which have the type and the shape of the checkpoint's; of a DTensor or a Slice this
        rank's own part. They are full when it returns. The Report has the bytes that were `read` and `checked`. KeyError,
        ValueError: the checkpoint has no such tensor. OSError: it cannot be read, or is not what was saved."""
        holdings = pieces.holdings_of(into)
        for holding in holdings:
            self._check(holding)
        with memory.on(stream):
            targets = pieces.Targets(holdings)
            parts = [(index, 0, holding.tensor.numel()) for index, holding in enumerate(holdings)]
            report = self._load_parts(targets, parts, stream)
            targets.finish()
        return report

    def make_tensors(self, names: Iterable[str] | None, device: str | torch.device) -> dict[str, torch.Tensor]:
        """Makes tensors for these names, or for all that can be read. Their content is undefined. KeyError: there is no
        such tensor."""
        if names is None and self.problems:
            _log.warning("%s: %d parts of it cannot be read: %s", self.path, len(self.problems), self.problems[0])
        wanted = list(self.tensors if names is None else names)
        missing = [name for name in wanted if name not in self.tensors]
        if missing:
            raise KeyError(f"{self.path} has no {missing[0]}")
        return {name: torch.empty(info.shape, dtype=info.dtype, device=device)
                for name, info in ((name, self.tensors[name]) for name in wanted)}

    # --- for the adapters

    def _load_parts(self, targets: pieces.Targets, parts: Sequence[pieces.Part],
                    stream: torch.cuda.Stream | None = None) -> Report:
        """Loads (index of the holding, begin, end in elements), to where `targets` (pieces.Targets) says."""
        boxes = []
        for index, begin, end in parts:
            holding, flat = targets.holdings[index], targets.flat(index)
            address = flat.data_ptr() + begin * flat.element_size()
            boxes.append((holding.name, holding.offsets, holding.sizes, begin, end, address))
        device = memory.device_of([targets.holdings[index].tensor for index, _, _ in parts])
        return self.load_boxes(boxes, device, stream)

    def load_spans(self, spans: Sequence[tuple[str, int, int, int]], device: str,
                   stream: torch.cuda.Stream | None = None) -> Report:
        """As load(), to the caller's own memory: (name, first byte in the tensor, address, bytes) of each part.
        `device` is "cuda:0", or "twin" if all of the memory is the host's."""
        targets = (native.Target * len(spans))()
        for target, (name, offset, address, size) in zip(targets, spans, strict=True):
            target.tensor, target.offset, target.bytes, target.memory = self._numbers[name], offset, size, address
        return self._load("ckptfs_load", targets, device, stream)

    def load_boxes(self, boxes: Sequence[tuple[str, pieces.Shape, pieces.Shape, int, int, int]], device: str,
                   stream: torch.cuda.Stream | None = None) -> Report:
        """As load_spans(), of (name, offsets, sizes, begin, end, address): elements [begin, end) of a box of a tensor, in
        row-major order."""
        targets = (native.BoxTarget * len(boxes))()
        for target, (name, offsets, sizes, begin, end, address) in zip(targets, boxes, strict=True):
            numbers = ctypes.c_uint64 * len(sizes)
            target.tensor, target.begin, target.end, target.memory = self._numbers[name], begin, end, address
            target.offsets, target.sizes = numbers(*offsets), numbers(*sizes)
        return self._load("ckptfs_load_boxes", targets, device, stream)

    def _load(self, function: str, targets: ctypes.Array[native.Target] | ctypes.Array[native.BoxTarget], device: str,
              stream: torch.cuda.Stream | None) -> Report:
        if self.handle is None:
            raise ValueError(f"{self.path}: the checkpoint is closed")
        if os.getpid() != self._process:  # the threads that fetch are the parent's
            raise ValueError(f"{self.path}: the checkpoint was opened before the fork: open it again")
        report = native.LoadReport()
        native.call_until_stopped(self._stop, function, self.handle, native.ring(device), targets, len(targets),
                                  memory.stream_of(device, stream), ctypes.byref(report))
        return Report(*(getattr(report, name) for name in Report._fields))

    def _tell_loaded(self, slowest: int, host: str, seconds: float, stages: Mapping[str, float]) -> None:
        """Tells the mount how long the ranks of a group took to load: for its page and its metrics."""
        told = (native.Stage * len(stages))(*(native.Stage(name.encode(), number) for name, number in stages.items()))
        native.call("ckptfs_checkpoint_loaded", self.handle, slowest, host.encode(errors="replace"), seconds, told, len(told))

    def _check(self, holding: pieces.Holding) -> None:
        """KeyError, ValueError: the checkpoint has not what is to be loaded."""
        if holding.name not in self.tensors:
            raise KeyError(f"{self.path} has no {holding.name}" + "".join(f"; {problem}" for problem in self.problems[:3]))
        info = self.tensors[holding.name]
        if holding.dtype != info.dtype or holding.shape != info.shape:
            raise ValueError(f"{holding.name} is {info.dtype} {info.shape} in {self.path}, and not {holding.dtype} "
                             f"{holding.shape}")


@overload
def load(path: str | os.PathLike[str], into: torch.nn.Module | None = None, *, device: str | torch.device = ...,
         names: Iterable[str] | None = ..., stream: torch.cuda.Stream | None = ...,
         group: ProcessGroup | Literal[True] | None = ..., mode: group_loading.Mode = ...,
         timeout: float = ...) -> dict[str, torch.Tensor]: ...


@overload
def load(path: str | os.PathLike[str], into: Mapping[str, _Value], *, device: str | torch.device = ...,
         names: Iterable[str] | None = ..., stream: torch.cuda.Stream | None = ...,
         group: ProcessGroup | Literal[True] | None = ..., mode: group_loading.Mode = ...,
         timeout: float = ...) -> Mapping[str, _Value]: ...


def load(path: str | os.PathLike[str], into: Mapping[str, pieces.State] | torch.nn.Module | None = None, *,
         device: str | torch.device = "cpu", names: Iterable[str] | None = None, stream: torch.cuda.Stream | None = None,
         group: ProcessGroup | Literal[True] | None = None, mode: group_loading.Mode = "auto",
         timeout: float = 60.0) -> Mapping[str, pieces.State]:
    """Returns the tensors of a checkpoint, by name. They are full when it returns.

        tensors = ckptfs.load("/ckpt/steps/step_100", device="cuda")
        ckptfs.load("model.safetensors", into=model)             # a module's parameters and buffers, in place
        ckptfs.load("/ckpt/steps/global_step100", names=["layers.0.weight/exp_avg"])
        ckptfs.load("/ckpt/steps/step_100", into=state, group=True)     # by all ranks of torch.distributed
        ckptfs.load("s3://bucket/run7/global_step100", into=model)      # a committed step in a remote

    `path` and `timeout` are those of a Checkpoint. `into` is filled and returned: a State, or a module's parameters and
    buffers. Without it tensors are made on `device`. DTensors and Slices get this rank's part. `names` chooses tensors.

    With `group`, a process group of torch.distributed or True for the default one, all its ranks call `load` for the
    same checkpoint. What several ranks want is read once and sent on (`mode="broadcast"`), or read by each of them
    (`"each"`); `"auto"` measures which is quicker. If a rank fails, the others get a GroupError.

    `stream` is where the tensors are used, by default the current one. Errors are those of Checkpoint.load.
    """
    def targets(checkpoint: Checkpoint) -> Mapping[str, pieces.State]:
        if into is None:
            return checkpoint.make_tensors(names, device)
        if isinstance(into, torch.nn.Module):
            known: Mapping[str, pieces.State] = {name: tensor.data for name, tensor in
                                                 into.state_dict(keep_vars=True).items()}
        else:
            known = into
        return known if names is None else {name: known[name] for name in names}

    if group is not None:
        return group_loading.load(lambda: Checkpoint(path, timeout=timeout), targets, None if group is True else group,
                                  mode, stream)
    group_loading.check_mode(mode)
    with Checkpoint(path, timeout=timeout) as checkpoint, memory.on(stream):
        filled = targets(checkpoint)
        checkpoint.load(filled, stream=stream)
        return filled
