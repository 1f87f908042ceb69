"""Fills a ZeRO engine of DeepSpeed from a step of other ranks, another stage, other sub-groups or another kind of offload.

DeepSpeed's own load wants the ranks and the sub-groups that the step was saved with. Here each rank reads its own part of
each tensor by the tensor's name, straight into the optimizer's buffers (ckptfs.partitions says which part that is).

Memory beside the engine's own: that of a ckptfs.Checkpoint, and at the first load of a swapped engine the two moments of
one sub-group. ckptfs.deepspeed.load_checkpoint calls this.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import os
import pathlib
import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from deepspeed import comm as dist

from ckptfs import deepspeed as ours
from ckptfs import memory, partitions, states
from ckptfs.loading import Checkpoint
from ckptfs.partitions import MOMENTS, Parameter, Part, SubGroup

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

_log = logging.getLogger("ckptfs")

_ADAMS = ("DeepSpeedCPUAdam", "FusedAdam", "Adam", "AdamW")  # of DeepSpeed or of torch
_SCALE = ("loss_scaler", "dynamic_loss_scale", "overflow")
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
_SIZES = ("dp_world_size", "mp_world_size")
# What DeepSpeed's own load keeps to itself of model_states.pt; the rest is the client's state.
_OF_DEEPSPEED = {"module", "global_steps", "skipped_steps", "data_sampler", "random_ltd", "optimizer", *_SIZES}
# Of a group's settings: how a class of optimizers computes, and not what.
_OF_THE_CLASS = {"params", "step", "fused", "foreach", "capturable", "differentiable", "decoupled_weight_decay"}
_INSIDE = {
    "engine": ("param_names", "has_moe_layers", "mp_world_size", "lr_scheduler", "module", *_COUNTERS),
    "engine.optimizer": ("optimizer", "dp_process_group", *_SCALE),
}


class Step:
    """The small state of a step: of the rank of this number, or of the step's first rank if it has none of this number."""

    def __init__(self, path: pathlib.Path, rank: int, optimizer_file: str = "") -> None:
        """`optimizer_file`: where DeepSpeed has this rank's, if it is there."""
        self.path, self.rank = path, rank
        if not os.path.exists(optimizer_file):
            optimizer_file = str(self._files[1])
        self.outer: dict[str, Any] = states.load(optimizer_file)["optimizer_state_dict"]
        base = self.outer.get("optimizer_state_dict", self.outer.get("base_optimizer_state"))
        if not isinstance(base, dict):
            raise ours.NotSupported(f"{path}: {optimizer_file} has no settings of the optimizer (zero.elastic_checkpoint)")
        self.base: dict[str, Any] = base
        self.groups: list[dict[str, Any]] = self.base.get("param_groups", [])

    @functools.cached_property
    def _files(self) -> tuple[pathlib.Path, pathlib.Path]:
        return states.small_files(self.path, self.rank)

    @property
    def model_file(self) -> pathlib.Path:
        return self._files[0]

    @functools.cached_property
    def model(self) -> dict[str, Any]:
        loaded: dict[str, Any] = states.load(self.model_file)
        return loaded

    def other_layout(self, engine: DeepSpeedEngine) -> str:
        """In words, how its state is cut and how the engine's is; empty where both are the same."""
        live, saved = partitions.of(engine), self._layout()
        here = _Layout(live.stage, live.ranks, ours.is_swapped(engine), _of_torch(engine.optimizer.optimizer.param_groups),
                       live.cut)
        if saved == here:
            return f"{saved}, in another order" if self._is_in_another_order(live) else ""
        return f"{saved} -> {here}" if str(saved) != str(here) else f"{saved}, cut otherwise"

    def _is_in_another_order(self, live: partitions.Zero3 | partitions.Zero12) -> bool:
        if not isinstance(live, partitions.Zero12):
            return False
        try:
            saved = [list(names) for names in self.model["param_shapes"]]
        except pickle.UnpicklingError as problem:
            _log.warning("nothing tells whether round_robin_gradients is as it was: %s", problem)
            return False
        return any(there != here and set(there) == set(here) for there, here in zip(saved, live.names, strict=True))

    def _layout(self) -> _Layout:
        count = self.outer.get("partition_count", 0)
        ranks = max(count, default=0) if isinstance(count, list) else count  # ZeRO 1 and 2: of each group
        swaps, of_3 = (self.path / "offloaded_tensors").is_dir(), "fp32_flat_groups" in self.outer
        flats = self.outer["fp32_flat_groups" if of_3 else "single_partition_of_fp32_groups"]
        if not of_3:
            return _Layout(partitions.Zero12.stage, ranks, False, _of_torch(self.groups), [None for _ in flats])
        cut = [getattr(flat, "ds_id", None) if swaps else flat.numel() for flat in flats]
        return _Layout(partitions.Zero3.stage, ranks, swaps, _of_torch(self.groups), cut)


@dataclasses.dataclass(frozen=True)
class _Layout:
    stage: str
    ranks: int
    swaps: bool
    of_torch: bool
    sub_groups: list[object]  # what tells them from those of another cut (ckptfs.partitions)

    def __str__(self) -> str:
        where, by = "on NVMe" if self.swaps else "in memory", "torch" if self.of_torch else "DeepSpeed"
        return f"{self.stage} of {self.ranks} ranks with {len(self.sub_groups)} sub-groups {where}, Adam of {by}"


def _of_torch(settings: Sequence[Mapping[str, Any]]) -> bool:
    """DeepSpeed's Adams have one setting more than torch's, and another type of step."""
    return bool(settings) and "bias_correction" not in settings[0]


class Filling:
    """The load of one step into one engine: check(), then fill(). Close it."""

    def __init__(self, engine: DeepSpeedEngine, step: Step, options: Mapping[str, Any]) -> None:
        """`options`: of load_checkpoint."""
        self.engine, self.optimizer, self.step, self.cut = engine, engine.optimizer, step, partitions.of(engine)
        self.adam = self.optimizer.optimizer
        self.strict = options.get("load_module_strict", True)
        self.with_scheduler = options.get("load_lr_scheduler_states", True) and engine.lr_scheduler is not None
        self.options = options
        self.group_of: dict[str, int] = {}  # by the parameter's name
        self.steps: dict[str, int] = {}  # that it has made; -1: the step does not tell
        self._opened: Checkpoint | None = None

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def checkpoint(self) -> Checkpoint:
        if self._opened is None:
            self._opened = Checkpoint(self.step.path)
        return self._opened

    # --- checks; nothing is changed

    def check(self) -> None:
        """NotSupported or ValueError, in words: the step does not fit this engine, or is not known well enough."""
        ours.check_version()
        ours.check_names(self.engine, {**_INSIDE, "engine.optimizer": (*_INSIDE["engine.optimizer"], *self.cut.inside)})
        ours.check_optimizer(self.optimizer)
        self._check_engine()
        self._read_small_state()
        self._check_trained()
        self._check_frozen()
        self._check_module()
        self._check_rest()

    def _check_engine(self) -> None:
        optimizer, adam = self.optimizer, type(self.adam)
        ours.require(getattr(optimizer, "zero_hpz_partition_size", 1) in (0, 1), "zero_hpz_partition_size is not supported")
        ours.require(getattr(optimizer, "master_weights_and_grads_dtype", torch.float32) == torch.float32,
                     "master weights of another type than fp32 are not supported")
        ours.require(not getattr(optimizer, "offloaded_states", None), "offload_states() is not supported: reload_states() first")
        ours.require(not self.engine.has_moe_layers, "experts are not supported: all ranks need the step's layout")
        ours.require(self.engine.mp_world_size == 1, "tensor parallelism is not supported: all ranks need the step's layout")
        ours.require(adam.__name__ in _ADAMS and adam.__module__.startswith(("deepspeed.ops.adam", "torch.optim")),
                     f"the optimizer {adam.__module__}.{adam.__name__} is not supported ({', '.join(_ADAMS)})")
        ours.require(self.options.get("custom_load_fn") is None, "custom_load_fn is not supported")

    def _read_small_state(self) -> None:
        path, shapes, base = self.step.path, self.step.model.get("param_shapes"), self.step.base
        cut = [(index, base["state"].get(number, {})) for index, group in enumerate(self.step.groups)
               for number in group["params"]]
        ours.require(isinstance(shapes, list) and len(shapes) == len(cut) > 0,
                     f"{path}: nothing tells the parameters of its optimizer's groups")
        theirs, here = len(self.step.groups), len(self.adam.param_groups)
        ours.require(theirs == here, f"{path} has {theirs} groups of parameters, and there are {here} here")
        for (index, state), names in zip(cut, shapes or [], strict=True):
            more = state.keys() - {"step", *MOMENTS}
            ours.require(not more, f"{path} has {sorted(more)}: only Adam's states are known")
            step = state.get("step", self.step.groups[index].get("step"))
            for name in names:
                self.group_of[name] = index
                self.steps[name] = -1 if step is None else int(step)

    def _check_trained(self) -> None:
        live, path = set(), self.step.path
        for sub_group in self.cut.sub_groups:
            group = sub_group.param_group
            for param in sub_group.params:
                name = self._name(param)
                live.add(name)
                ours.require(name in self.group_of, f"{name} is trained here, and {path} has no optimizer state of it")
                ours.require(self.group_of[name] == group, f"{name} is in group {self.group_of[name]} of {path}, and in "
                                                           f"group {group} here")
                ours.require(self.steps[name] >= 0, f"{path} was saved before the optimizer's first step: it has no state of "
                                                    f"{name}")
                for key in ("fp32", *MOMENTS):
                    self._check_tensor(f"{name}/{key}", self.cut.shape(param), torch.float32)
            steps = {self.steps[self._name(param)] for param in sub_group.params}
            ours.require(len(steps) == 1, f"{self._name(sub_group.params[0])} and its neighbours have made {sorted(steps)} steps in {path}")
        more = self.group_of.keys() - live
        ours.require(not more, f"{path} has {next(iter(more), '')}, which is not trained here")

    def _check_frozen(self) -> None:
        for param in self._frozen():
            name = self._name(param)
            self._check_tensor(name, self.cut.shape(param))
            self.cut.check_frozen(name, param)

    def _check_module(self) -> None:
        """What torch's load_state_dict would ask of the module's state beside parameters."""
        saved, live, path = self.step.model["module"], self.engine.module.state_dict().keys(), self.step.path
        for name in saved.keys() ^ live if self.strict else ():
            ours.require(False, f"{name} is {'here, and not in ' if name in live else 'not here, but in '}{path}")
        known = {name for tensors in (self.engine.module.named_parameters, self.engine.module.named_buffers)
                 for name, _ in tensors(remove_duplicate=False)}
        for name in live - known:  # an _extra_state, or what a quantised parameter needs
            ours.require(False, f"{name} is no parameter and no buffer, and is not supported")
        for name, buffer in self._buffers():
            ours.require(torch.is_tensor(saved[name]) and saved[name].shape == buffer.shape, f"{path} has no such buffer {name}")

    def _check_rest(self) -> None:
        model, path = self.step.model, self.step.path
        for key in ("data_sampler", "random_ltd"):
            ours.require(model.get(key) is None, f"{path} has the state of a {key}, which is of its ranks")
        ours.require(not self.with_scheduler or model.get("lr_scheduler") is not None,
                     f"{path} has no state of a scheduler: load with load_lr_scheduler_states=False")
        for key in (*_COUNTERS, *_SIZES):
            ours.require(key in model, f"{path} does not tell its {key}")
        of_torch = type(self.adam).__module__.startswith("torch.optim")
        for saved, live in zip(self.step.groups, self.adam.param_groups, strict=True):
            ours.require("betas" in saved, f"{path} does not tell Adam's betas")
            ours.require(not live.get("amsgrad") and not saved.get("amsgrad"), "amsgrad is not supported")
            ours.require(not of_torch or saved.get("bias_correction", True), f"{path} has bias_correction=False, and torch's "
                                                                           "Adam has none")

    def _check_tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
        told = self.checkpoint.tensors.get(name)
        if told is None:
            why = "; ".join(self.checkpoint.problems[:3])
            raise ours.NotSupported(f"{self.step.path} has no {name}{': ' if why else ''}{why}; nothing was changed")
        ours.require(told.shape == shape, f"{name} is {told.shape} in {self.step.path}, and {shape} here")
        ours.require(dtype in (None, told.dtype), f"{name} is {told.dtype} in {self.step.path}, and {dtype} here")

    # --- the engine's parameters

    def _name(self, param: Parameter) -> str:
        name = self.engine.param_names.get(param)
        ours.require(name is not None, f"a parameter of shape {self.cut.shape(param)} has no name")
        return str(name)

    def _frozen(self) -> list[Parameter]:
        """Those that the optimizer does not have, to be filled: without load_module_strict, as Trainers load adapters, those that
        the step has."""
        trained = {id(param) for group in self.cut.sub_groups for param in group.params}
        frozen = [param for param in self.engine.module.parameters() if id(param) not in trained]
        return [param for param in frozen if self.strict or self._name(param) in self.checkpoint.tensors]

    def _buffers(self) -> list[tuple[str, torch.Tensor]]:
        saved, live = self.step.model["module"], self.engine.module.state_dict().keys()
        return [(name, buffer) for name, buffer in self.engine.module.named_buffers() if name in live and name in saved]

    # --- the load

    def fill(self) -> ours.Loaded:
        """Called by all ranks. If one fails, all raise, and the engine is of no use any more."""
        group = self.optimizer.dp_process_group
        if dist.get_rank(group=group) == 0:
            why = self.step.other_layout(self.engine) or "other ranks' parts have other lengths"
            _log.warning("%s: loaded by the parameters' names: %s", self.step.path, why)
        with ours.Together(f"the engine has a part of {self.step.path}: do not train with it", group), torch.no_grad():
            self.cut.begin()
            for sub_group in self.cut.sub_groups:
                self._fill_group(sub_group)
            for param in self._frozen():
                self._fill_frozen(param)
            self._fill_small_state()
        self.cut.finish()
        own = _OF_DEEPSPEED | ({"lr_scheduler"} if self.options.get("load_lr_scheduler_states", True) else set())
        return str(self.step.model_file), {key: value for key, value in self.step.model.items() if key not in own}

    def _fill_group(self, group: SubGroup) -> None:
        flat = group.flat
        with self.cut.in_memory(group):
            self._read(list(self.cut.parts(group)), "/fp32", flat.data)
            state = self.adam.state[flat]
            for key in MOMENTS:
                live = state.get(key)
                if not torch.is_tensor(live) or (live.numel(), live.dtype) != (flat.numel(), flat.dtype):
                    state[key] = torch.empty_like(flat.data)
                self._read(list(self.cut.parts(group)), f"/{key}", state[key])
            state["step"] = self._step_of(group)

    def _step_of(self, group: SubGroup) -> int | torch.Tensor:
        """How many steps a sub-group has made, as its class of Adam has it."""
        step = self.steps[self._name(group.params[0])]
        if not type(self.adam).__module__.startswith("torch.optim"):
            return step
        settings = self.adam.param_groups[group.param_group]
        on_device = settings.get("fused") or settings.get("capturable")
        return torch.tensor(float(step), device=group.flat.device if on_device else "cpu")

    def _fill_frozen(self, param: Parameter) -> None:
        live, part = self.cut.frozen(param)
        read = torch.empty(live.shape, dtype=self.checkpoint.tensors[self._name(param)].dtype)
        self._read([part], "", read.view(-1))
        live.copy_(read)

    def _read(self, parts: Sequence[Part], state: str, flat: torch.Tensor) -> None:
        """Reads them into the buffer. What lies between and behind them is padding, and zero."""
        boxes, filled = [], 0
        for part in parts:
            name, size = self._name(part.param) + state, part.end - part.begin
            if size == 0:
                continue
            told = self.checkpoint.tensors[name]
            if told.dtype != flat.dtype or part.offset < filled or part.offset + size > flat.numel():
                raise RuntimeError(f"{name} does not fit into a buffer of {flat.numel()} elements of {flat.dtype}")
            flat[filled : part.offset].zero_()
            address = flat.data_ptr() + part.offset * flat.element_size()
            boxes.append((name, (0,) * len(told.shape), told.shape, part.begin, part.end, address))
            filled = part.offset + size
        flat[filled:].zero_()
        if boxes:
            self.checkpoint.load_boxes(boxes, memory.device_of([flat]))

    def _fill_small_state(self) -> None:
        engine, model, groups = self.engine, self.step.model, self.step.groups
        for name, buffer in self._buffers():
            buffer.copy_(model["module"][name])
        for live, saved in zip(self.adam.param_groups, groups, strict=True):
            live.update({key: copy.deepcopy(saved[key]) for key in live.keys() & saved.keys() - _OF_THE_CLASS})
        if self.optimizer.dynamic_loss_scale and self.step.outer.get("dynamic_loss_scale"):  # a static one is a setting
            for name in _SCALE:
                setattr(self.optimizer, name, self.step.outer[name])
        if self.with_scheduler:
            engine.lr_scheduler.load_state_dict(model["lr_scheduler"])
            ours.tell_rate(engine)
        self.cut.set_clip_grad(self.step.outer)
        for name in _COUNTERS:
            setattr(engine, name, model[name])
        for name in _SIZES:
            setattr(engine, f"loaded_checkpoint_{name}", model[name])
        made = {(self.steps[name], tuple(groups[index]["betas"])) for name, index in self.group_of.items()}
        ours.walk_powers(engine, sorted(made))
