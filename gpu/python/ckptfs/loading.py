"""Tensors from a checkpoint to where they belong, with bounded host memory."""

import collections
import contextlib
import ctypes
import os
from collections.abc import Iterable

import torch

from ckptfs import memory, native

Path = str | os.PathLike
Tensors = dict[str, torch.Tensor]
TensorInfo = collections.namedtuple("TensorInfo", "dtype shape bytes")
Report = collections.namedtuple("Report", "bytes read direct straight through_mount")


class Checkpoint:
    """What a step, a .safetensors file, or a file of torch.save (its storages, by their keys) holds.

        with ckptfs.Checkpoint("/ckpt/steps/global_step100") as checkpoint:
            print(checkpoint.tensors)                      # {"layers.0.weight": TensorInfo(...), ...}
            checkpoint.load({"layers.0.weight": tensor})   # into memory that is there

    Of a step: "NAME" as the model computes with it, "NAME/fp32", "NAME/exp_avg" and so on. `problems`: what could not be
    read. Raises OSError, in words.
    """

    def __init__(self, path: Path):
        self._open = contextlib.ExitStack()
        self.handle = self._open.enter_context(native.checkpoint(path))
        self.path = path
        library = native.library()
        self.tensors, self._numbers = {}, {}
        for number in range(library.ckptfs_checkpoint_tensors(self.handle)):
            tensor = native.Tensor()
            native.call("ckptfs_checkpoint_tensor", self.handle, number, ctypes.byref(tensor))
            name = tensor.name.decode(errors="surrogateescape")
            self.tensors[name] = TensorInfo(memory.DTYPES[tensor.dtype.decode()], tuple(tensor.shape[:tensor.dimensions]),
                                            tensor.bytes)
            self._numbers[name] = number
        self.problems = []
        while (problem := library.ckptfs_checkpoint_problem(self.handle, len(self.problems))) is not None:
            self.problems.append(problem.decode(errors="replace"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.handle = None
        self._open.close()

    def load(self, into: "Tensors", *, stream: "torch.cuda.Stream | None" = None) -> "Report":
        """Fills the tensors of a dict, by name: contiguous, of the same type and shape. Returns a Report."""
        for name, tensor in into.items():
            self._check(name, tensor)
        return self.load_spans([(name, 0, *memory.span(tensor)) for name, tensor in into.items()],
                               memory.device_of(into.values()), stream)

    def load_spans(self, spans, device, stream=None):
        """As load(), of (name, offset in it, address, bytes): any part of any tensor, anywhere."""
        if self.handle is None:
            raise ValueError(f"{self.path}: the checkpoint is closed")
        targets = (native.Target * len(spans))()
        for target, (name, offset, address, size) in zip(targets, spans, strict=True):
            target.tensor, target.offset, target.bytes, target.memory = self._numbers[name], offset, size, address
        report = native.LoadReport()
        native.call("ckptfs_load", self.handle, native.ring(device), targets, len(spans),
                    memory.stream_of(device, stream), ctypes.byref(report))
        return Report(*(getattr(report, name) for name in Report._fields))

    def _check(self, name, tensor):
        if name not in self.tensors:
            raise KeyError(f"{self.path} has no {name}" + "".join(f"; {problem}" for problem in self.problems[:3]))
        info = self.tensors[name]
        if tensor.dtype != info.dtype or tuple(tensor.shape) != info.shape:
            raise ValueError(f"{name} is {info.dtype} {info.shape} in {self.path}, and not {tensor.dtype} "
                             f"{tuple(tensor.shape)}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: what it is loaded into is not contiguous")


def load(path: Path, into: "Tensors | torch.nn.Module | None" = None, *, device: "str | torch.device" = "cpu",
         names: "Iterable[str] | None" = None, stream: "torch.cuda.Stream | None" = None) -> "Tensors":
    """The tensors of a checkpoint, as a dict by name.

        tensors = ckptfs.load("/ckpt/steps/step_100", device="cuda")
        ckptfs.load("model.safetensors", into=model)             # a module's parameters and buffers, in place
        ckptfs.load("/ckpt/steps/global_step100", names=["layers.0.weight/exp_avg"])

    `into`: a dict of tensors, or a module; without it tensors are made on `device`. All is there when it returns.
    """
    with Checkpoint(path) as checkpoint:
        if into is None:
            wanted = checkpoint.tensors if names is None else {name: checkpoint.tensors.get(name) for name in names}
            missing = [name for name, info in wanted.items() if info is None]
            if missing:
                raise KeyError(f"{path} has no {missing[0]}")
            into = {name: torch.empty(info.shape, dtype=info.dtype, device=device) for name, info in wanted.items()}
        elif isinstance(into, torch.nn.Module):
            into = {name: tensor.data for name, tensor in into.state_dict(keep_vars=True).items()}
        if names is not None:
            into = {name: into[name] for name in names}
        checkpoint.load(into, stream=stream)
        return into
