"""What DeepSpeed's *_states.pt files hold beside tensors, read without running anything of theirs."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any


def classes() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """What DeepSpeed leaves in its files as objects."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


def load(path: str | os.PathLike[str]) -> Any:
    """The file's object, its tensors mapped: pipelined runs leave gigabytes of recycled buffers in it, which nobody needs.

    Made are tensors, plain values, `classes()` and what torch.serialization.add_safe_globals was told; anything else is
    pickle.UnpicklingError, before it is called.
    """
    import torch
    if not hasattr(torch.serialization, "skip_data"):
        raise ImportError(f"torch {torch.__version__} may run what a file tells it to: 2.6 or newer is needed")
    with torch.serialization.safe_globals(classes()):
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as problem:
            raise pickle.UnpicklingError(f"{path}: {problem}") from None
