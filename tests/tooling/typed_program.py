"""What a type checker knows of the Python package: lint/types checks this program, and nothing runs it.

assert_type() fails for Any, too. A `type: ignore` is an error if mypy finds nothing to ignore there.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter
from typing_extensions import assert_type

import ckptfs
import ckptfs.dcp
import ckptfs.deepspeed
import ckptfs.durable
import ckptfs.mounts
import ckptfs.patch
import ckptfs.transformers
import ckptfs.universal

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

STEP = "/ckpt/steps/step_1"


def loads(model: nn.Module, state: dict[str, dict[str, torch.Tensor]]) -> None:
    assert_type(ckptfs.load(STEP), dict[str, torch.Tensor])
    assert_type(ckptfs.load(STEP, into=model, names=["weight"], group=True, mode="each"), dict[str, torch.Tensor])
    assert_type(ckptfs.load(STEP, into=state, group=True), Mapping[str, dict[str, torch.Tensor]])
    with ckptfs.Checkpoint(STEP, names="saved", timeout=5) as checkpoint:
        assert_type(checkpoint, ckptfs.Checkpoint)
        assert_type(checkpoint.tensors["weight"].shape, tuple[int, ...])
        assert_type(checkpoint.tensors["weight"].dtype, torch.dtype)
        assert_type(checkpoint.load({"weight": torch.zeros(2)}).checked, int)
        assert_type(checkpoint.problems, list[str])
    ckptfs.load(STEP, mode="both")  # type: ignore[call-overload] # no such mode
    ckptfs.load(STEP, into={"weight": 1})  # type: ignore[type-var] # no tensor


def saves(model: nn.Module) -> None:
    ckptfs.configure(ring=64 << 20)
    saver = ckptfs.Saver("/ckpt/steps", group=True, copies=True)
    part = ckptfs.Slice("weight", (4, 2), (0, 4), torch.zeros(4))
    assert_type(saver.save("step_1", {"model": model.state_dict(), "parts": [part]}), ckptfs.Save)
    with saver.save("step_2", {"weight": torch.zeros(2)}) as save:
        assert_type(save, ckptfs.Save)
        save.wait_copied()
        save.finish_behind(then=saver.close)
        try:
            assert_type(save.wait(), bool)
        except ckptfs.GroupError as problem:
            assert_type(problem, ckptfs.GroupError)
    ckptfs.Saver(123, nonsense=True)  # type: ignore[arg-type, call-arg] # neither a path nor an option
    saver.save("step_3", {"lr": 0.1})  # type: ignore[dict-item] # no tensor


def asks() -> None:
    assert_type(ckptfs.latest("/ckpt/steps"), ckptfs.Step | None)
    assert_type(ckptfs.state(STEP).kept_by, tuple[str, ...])
    assert_type(ckptfs.steps("/ckpt/steps"), list[ckptfs.Step])
    for event in ckptfs.watch("/ckpt/steps", since=3):
        assert_type(event, ckptfs.Event)
    assert_type(ckptfs.mounts.holds(STEP), bool)
    assert_type(ckptfs.__version__, str)
    ckptfs.saver  # type: ignore[attr-defined] # noqa: B018 - no such name


def trainers(engine: "DeepSpeedEngine", model: nn.Module) -> None:
    assert_type(ckptfs.deepspeed.check("/ckpt"), ckptfs.deepspeed.Alignment)
    assert_type(ckptfs.deepspeed.save_checkpoint(engine, "/ckpt/steps", client_state={"epoch": 1}), bool)
    assert_type(ckptfs.deepspeed.load_checkpoint(engine, "/ckpt/steps")[0], str | None)
    assert_type(ckptfs.deepspeed.CheckpointEngine(engine, seal=False).wait(), bool)
    assert_type(ckptfs.transformers.Callback().wait(), bool)
    writers: list[StorageWriter] = [ckptfs.dcp.Writer(seal=False), ckptfs.dcp.UnsealedWriter(STEP)]
    readers: list[StorageReader] = [ckptfs.dcp.Reader(STEP)]
    assert_type((writers, readers), tuple[list[StorageWriter], list[StorageReader]])
    ckptfs.dcp.install()
    ckptfs.patch.install()
    ckptfs.universal.convert(STEP, f"{STEP}_universal")
