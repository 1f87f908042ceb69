"""What DeepSpeed's *_states.pt files hold beside tensors, read without running anything of theirs."""

from __future__ import annotations

import os
import pathlib
import pickle
import re
from collections.abc import Callable
from typing import Any

_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_00_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt")
_OTHERS = re.compile(r"mp_rank_(?!00)\d+_|^layer_|_expert_")


def small_files(step: pathlib.Path, rank: int = 0) -> tuple[pathlib.Path, pathlib.Path]:
    """A rank's model_states.pt (without ZeRO-3 that of all) and optim_states.pt. If the step has none of this rank here, they
    are those of its first one. FileNotFoundError: it has none. ValueError: it has several, or its model is cut in another way
    than by ZeRO."""
    names = sorted(os.listdir(step))
    if others := [name for name in names if _OTHERS.search(name)]:
        raise ValueError(f"{step}: model parallel and expert checkpoints are not supported: {others[0]}")
    of_rank = {int(match[1]) for name in names if (match := _OPTIMIZER.fullmatch(name))}
    chosen = str(rank if rank in of_rank else min(of_rank, default=rank))
    found = []
    for pattern in (_MODEL, _OPTIMIZER):
        fitting = [name for name in names if (match := pattern.fullmatch(name)) and match[1] in (None, chosen)]
        if len(fitting) != 1:
            problem = ValueError if fitting else FileNotFoundError
            raise problem(f"{step} has {len(fitting)} files like {pattern.pattern} of rank {chosen}, not one")
        found.append(step / fitting[0])
    return found[0], found[1]


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
