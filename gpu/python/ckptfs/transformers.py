"""Hugging Face's Trainer, its checkpoints saved while it trains on.

    trainer = transformers.Trainer(..., callbacks=[ckptfs.transformers.Callback()])

Where the Trainer would save, the callback does: the same files, which `resume_from_checkpoint` takes, written past the
page cache; training waits for the copy out of memory only, and checkpoint-N appears whole, when all of it is durable.
save_total_limit does not see these: rotation on a ckptfs mount does (ckptfs policy). What it cannot save it leaves to
the Trainer, and says so. A Trainer with DeepSpeed saves by itself; the callback only patches it (ckptfs.patch), so that
with the optimizer on NVMe a resume loses nothing. So make the callback before you call train().
"""

from __future__ import annotations

import io
import logging
import os
import pathlib
import random
import tempfile
from collections.abc import Mapping
from typing import Any, cast

import torch
import transformers
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import ParallelMode, TrainingArguments

from ckptfs import memory, patch, torch_files
from ckptfs.saving import Save, new_attempt

__all__ = ["Callback"]

_log = logging.getLogger("ckptfs")


def _why_not(args: TrainingArguments, model: object) -> str | None:
    """What the Trainer keeps where no callback sees it, or saves in a way of its own."""
    reasons = {
        "DeepSpeed": getattr(args, "deepspeed", None),
        "FSDP": getattr(args, "fsdp", None),
        "fp16, for its scaler's state": args.fp16,
        "load_best_model_at_end": args.load_best_model_at_end,
        "push_to_hub": args.push_to_hub,
        "a PEFT model": hasattr(model, "peft_config"),
        "a model that is no PreTrainedModel": not isinstance(model, transformers.PreTrainedModel),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class Callback(TrainerCallback):
    """Saves in the Trainer's place. wait() waits for the last checkpoint; False: it has failed, and the log says why."""

    def __init__(self) -> None:
        torch_files.check_torch()
        patch.install()
        self._save: Save | None = None
        self._due = False
        self._left: str | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: object = None,
                       **_: Any) -> None:
        self._left = _why_not(args, model)
        if self._left:
            _log.warning("the callback leaves the saves to the Trainer, which waits for them: %s", self._left)
        elif args.save_total_limit:
            _log.warning("save_total_limit does not remove what ckptfs saves: `ckptfs policy %s --set keep_last=%s` does",
                         args.output_dir, args.save_total_limit)

    def _take_over(self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
                   things: Mapping[str, Any]) -> None:
        if control.should_save and self._left is None:
            control.should_save, self._due = False, True
        if not (control.should_log or control.should_evaluate):  # what they add belongs to the checkpoint
            self._save_if_due(args, state, things)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **things: Any) -> None:
        self._take_over(args, state, control, things)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **things: Any) -> None:
        self._take_over(args, state, control, things)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **things: Any) -> None:
        if not control.should_evaluate:
            self._save_if_due(args, state, things)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **things: Any) -> None:
        self._save_if_due(args, state, things)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **things: Any) -> None:
        self._save_if_due(args, state, things)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **things: Any) -> None:
        self._save_if_due(args, state, things)
        self.wait()

    def wait(self) -> bool:
        """Waits until the last checkpoint is there, or has failed (False)."""
        save, self._save = self._save, None
        if save is None:
            return True
        try:
            save.wait()
            return True
        except Exception:  # noqa: BLE001 - logged where it happened; training goes on
            return False
        finally:
            save.close()

    def _save_if_due(self, args: TrainingArguments, state: TrainerState, things: Mapping[str, Any]) -> None:
        if not self._due:
            return
        self._due = False
        self.wait()
        tag = f"checkpoint-{state.global_step}"
        attempt = new_attempt(args.world_size)
        output = cast(str, args.output_dir)
        try:
            pathlib.Path(output).mkdir(parents=True, exist_ok=True)
            save = Save(output, tag, attempt, args.process_index, args.world_size, device=memory.current(), seal=False)
        except Exception as problem:  # noqa: BLE001 - training goes on
            _log.error("%s will not be saved: %s", tag, problem)
            return
        try:
            _add_files(save, args, state, things)
            save.wait_copied()
        except Exception as problem:  # noqa: BLE001
            _log.error("%s will not be saved: %s", tag, problem)
            save.close()
            return
        save.finish_behind()
        self._save = save


def _add_files(save: Save, args: TrainingArguments, state: TrainerState, things: Mapping[str, Any]) -> None:
    """As Trainer._save_checkpoint has them (transformers 5)."""
    model = things["model"]
    optimizer: Any = things.get("optimizer")
    scheduler: Any = things.get("lr_scheduler")
    if args.should_save:
        save.add_tensors("model.safetensors", _weights(model))
        for name, content in _small_files(args, state, model, things.get("processing_class")).items():
            save.add_bytes(name, content)
        if not args.save_only_model:
            skeleton = torch_files.Skeleton(optimizer.state_dict())
            save.add_file("optimizer.pt", skeleton.size, skeleton.parts, keep=skeleton)
            save.add_bytes("scheduler.pt", _pickled(scheduler.state_dict()))
    if not args.save_only_model:
        name = "rng_state.pth" if args.world_size <= 1 else f"rng_state_{args.process_index}.pth"
        save.add_bytes(name, _pickled(_random_state(args)))


def _weights(model: Any) -> dict[str, torch.Tensor]:
    """Tensors that are one in memory are saved once, under the name that they are loaded by."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    weights: dict[str, torch.Tensor] = {}
    seen = set()
    for name, tensor in sorted(model.state_dict().items(), key=lambda item: item[0] in tied):
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or place not in seen:
            weights[name] = tensor
        seen.add(place)
    return weights


def _small_files(args: TrainingArguments, state: TrainerState, model: Any, processing: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        if model.can_generate():
            model.generation_config.save_pretrained(folder)
        if processing is not None:
            processing.save_pretrained(folder)
        state.save_to_json(os.path.join(folder, "trainer_state.json"))
        torch.save(args, os.path.join(folder, "training_args.bin"))
        return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir() if path.is_file()}


def _pickled(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _random_state(args: TrainingArguments) -> dict[str, Any]:
    import numpy
    states: dict[str, Any] = {"python": random.getstate(), "numpy": numpy.random.get_state(),
                              "cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        distributed = args.parallel_mode == ParallelMode.DISTRIBUTED
        states["cuda"] = torch.cuda.random.get_rng_state_all() if distributed else torch.cuda.random.get_rng_state()
    return states

