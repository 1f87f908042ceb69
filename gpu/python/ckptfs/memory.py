"""What torch knows of tensors, as libckptfs wants it: types by their safetensors names, devices, streams."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable

import torch

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
    "C64": torch.complex64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def name_of(dtype: torch.dtype) -> str:
    if dtype not in NAMES:
        raise TypeError(f"{dtype} has no name in safetensors")
    return NAMES[dtype]


def device_of(tensors: Iterable[torch.Tensor]) -> str:
    """The one whose ring moves these tensors: that of those that are not in host memory."""
    devices = {tensor.device for tensor in tensors} - {torch.device("cpu")}
    if not devices:
        return "twin"
    if len(devices) > 1 or next(iter(devices)).type != "cuda":
        raise ValueError(f"tensors of {', '.join(sorted(map(str, devices)))}: one CUDA device (and host memory) at a time")
    return ring_of(devices.pop())


def stream_of(device: str, stream: torch.cuda.Stream | None = None) -> ctypes.c_void_p | None:
    """The native handle of a torch stream; the current one where none is given. Without a device nothing can be ordered
    behind the stream, so this waits for it."""
    if device == "twin":
        if stream is not None:
            stream.synchronize()
        return None
    return ctypes.c_void_p((stream or torch.cuda.current_stream(torch.device(device))).cuda_stream)


def on(stream: torch.cuda.Stream | None = None) -> contextlib.AbstractContextManager[object]:
    """What torch does within is on that stream: its copies, and the memory that it takes."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def ring_of(device: torch.device) -> str:
    """The ring that moves the memory of a torch device: the GPU's, where there is one, also moves host memory."""
    if device.type == "cuda":
        return f"cuda:{torch.cuda.current_device() if device.index is None else device.index}"
    return current()


def current() -> str:
    """The device of this process."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "twin"


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """(address, bytes) of a tensor whose elements lie in order."""
    if not tensor.is_contiguous():
        raise ValueError("its elements do not lie in order (it is not contiguous)")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()
