"""Fills a ZeRO-3 engine of DeepSpeed from a step of other ranks, other sub-groups or another kind of offload.

DeepSpeed's own load wants the ranks and the sub-groups that the step was saved with. Here each rank reads its own part of
each tensor by the tensor's name, straight into the optimizer's buffers. A sub-group that is swapped is brought into
memory, filled and swapped out, as a step of the optimizer does it; no swap file is written by hand.

How ZeRO-3 cuts its state (DeepSpeed 0.19.8, runtime/zero/stage3.py): a rank has ceil(elements / ranks) of each flattened
parameter, the last ones with padding. A sub-group is a run of parameters of one param group; it ends when this rank's
parts of them reach sub_group_size, so the sub-groups change with the ranks.

Memory beside the engine's own: that of a ckptfs.Checkpoint, and at the first load of a swapped engine the two moments of
one sub-group, as at its first step. ckptfs.deepspeed.load_checkpoint calls this.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from deepspeed import comm as dist

from ckptfs import deepspeed as ours
from ckptfs import memory, states
from ckptfs.loading import Checkpoint

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

_log = logging.getLogger("ckptfs")
_Parameter = Any  # torch's, with what ZeRO-3 adds to it: ds_shape, ds_numel, ds_tensor (this rank's part), partition_numel()

MOMENTS = ("exp_avg", "exp_avg_sq")
_ADAMS = ("DeepSpeedCPUAdam", "FusedAdam", "Adam", "AdamW")
_SETTINGS = ("loss_scaler", "dynamic_loss_scale", "overflow")
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")
# What DeepSpeed's own load keeps to itself of model_states.pt; the rest is the client's state.
_OF_DEEPSPEED = {"module", "global_steps", "skipped_steps", "dp_world_size", "mp_world_size", "data_sampler", "random_ltd",
                 "lr_scheduler", "optimizer"}
_INSIDE = {
    "engine": ("param_names", "has_moe_layers", "mp_world_size", "lr_scheduler", "module"),
    "engine.optimizer": ("fp16_groups", "fp16_partitioned_groups_flat_numel", "fp32_partitioned_groups_flat", "optimizer",
                         "sub_group_to_group_id", "dp_process_group", "_swappable_optimizer_subgroup",
                         "_optimizer_states_and_gradient_swap_in", "_optimizer_states_and_gradient_swap_out",
                         "_reassign_or_swap_out_partitioned_parameters", "checkpoint_event_prologue",
                         "checkpoint_event_epilogue", *_SETTINGS),
}


class Step:
    """The small state of a step: of its first rank that is here. What is used of it is the same in each rank's."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.model_file, optimizer_file = states.small_files(path)
        self.model: dict[str, Any] = states.load(self.model_file)
        self.outer: dict[str, Any] = states.load(optimizer_file)["optimizer_state_dict"]
        self.swapped = (path / "offloaded_tensors").is_dir()
        base = self.outer.get("optimizer_state_dict", self.outer.get("base_optimizer_state"))
        self.base: dict[str, Any] = base if isinstance(base, dict) else {}

    def other_layout(self, engine: DeepSpeedEngine) -> str:
        """In words, how its state is cut and how the engine's is; empty where both are the same."""
        optimizer, count = engine.optimizer, self.outer.get("partition_count", 0)
        ranks = max(count, default=0) if isinstance(count, list) else count  # ZeRO 1 and 2: of each group
        groups = self.outer.get("fp32_flat_groups", [])
        saved = _Layout(ranks, bool(self.swapped), _sub_groups(groups, self.swapped))
        swapped = bool(optimizer.swap_optimizer)
        live = _Layout(optimizer.partition_count, swapped, _sub_groups(optimizer.fp32_partitioned_groups_flat, swapped))
        return "" if saved == live else f"{saved} -> {live}"


@dataclasses.dataclass(frozen=True)
class _Layout:
    ranks: int
    swapped: bool
    sub_groups: list[object]

    def __str__(self) -> str:
        return f"{self.ranks} ranks with {len(self.sub_groups)} sub-groups {'on NVMe' if self.swapped else 'in memory'}"


def _sub_groups(groups: Sequence[torch.Tensor], swapped: bool) -> list[object]:
    """What tells them apart: their names, or in memory, where not every file has these, their lengths."""
    return [getattr(group, "ds_id", None) if swapped else group.numel() for group in groups]


class Filling:
    """The load of one step into one engine: check(), then fill(). Close it."""

    def __init__(self, engine: DeepSpeedEngine, step: Step) -> None:
        self.engine, self.optimizer, self.step = engine, engine.optimizer, step
        self.adam = self.optimizer.optimizer
        self.rank = dist.get_rank(group=self.optimizer.dp_process_group)
        self.groups: list[dict[str, Any]] = []  # hyperparameters
        self.group_of: dict[str, int] = {}  # by the parameter's name
        self.steps: dict[str, int] = {}  # that it has made; -1: the step does not tell
        self.opened: Checkpoint | None = None

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()

    @property
    def checkpoint(self) -> Checkpoint:
        if self.opened is None:
            self.opened = Checkpoint(self.step.path)
        return self.opened

    # --- checks; nothing is changed

    def check(self, options: Mapping[str, Any]) -> None:
        """NotSupported, in words: the step does not fit this engine, or is not known well enough."""
        ours.check_version()
        ours.check_names(self.engine, _INSIDE)
        ours.check_optimizer(self.optimizer)
        self._check_engine(options)
        self._read_small_state()
        self._check_trained()
        self._check_frozen()
        self._check_rest(options)

    def _check_engine(self, options: Mapping[str, Any]) -> None:
        kind, adam = type(self.optimizer).__name__, type(self.adam).__name__
        ours.require(kind == "DeepSpeedZeroOptimizer_Stage3", f"a step of other ranks does not go into a {kind}")
        ours.require(getattr(self.optimizer, "zero_hpz_partition_size", 1) in (0, 1), "zero_hpz_partition_size is not supported")
        ours.require(not self.engine.has_moe_layers, "experts are not supported: all ranks need the step's layout")
        ours.require(self.engine.mp_world_size == 1, "tensor parallelism is not supported: all ranks need the step's layout")
        ours.require(adam in _ADAMS, f"the optimizer {adam} is not supported ({', '.join(_ADAMS)})")
        ours.require(options.get("custom_load_fn") is None, "custom_load_fn is not supported")

    def _read_small_state(self) -> None:
        path, shapes = self.step.path, self.step.model.get("param_shapes")
        self.groups = self.step.base.get("param_groups", [])
        cut = [(index, self.step.base["state"].get(number, {})) for index, group in enumerate(self.groups)
               for number in group["params"]]
        ours.require(isinstance(shapes, list) and len(shapes) == len(cut) > 0,
                     f"{path}: nothing tells the parameters of its optimizer's groups")
        for (index, state), names in zip(cut, shapes or [], strict=True):
            more = state.keys() - {"step", *MOMENTS}
            ours.require(not more, f"{path} has {sorted(more)}: only Adam's states are known")
            step = state.get("step", self.groups[index].get("step"))
            for name in names:
                self.group_of[name] = index
                self.steps[name] = -1 if step is None else int(step)

    def _check_trained(self) -> None:
        live, path = {}, self.step.path
        for index, params in enumerate(self.optimizer.fp16_groups):
            kind = self.optimizer.fp32_partitioned_groups_flat[index].dtype
            for param in params:
                name = self._name(param)
                live[name] = group = self.optimizer.sub_group_to_group_id[index]
                ours.require(name in self.group_of, f"{name} is trained here, and {path} has no optimizer state of it")
                ours.require(self.group_of[name] == group, f"{name} is in group {self.group_of[name]} of {path}, and in "
                                                           f"group {group} here")
                for key in ("fp32", *MOMENTS):
                    self._check_tensor(f"{name}/{key}", tuple(param.ds_shape), kind)
            steps = {self.steps[self._name(param)] for param in params}
            ours.require(len(steps) == 1 and min(steps) >= 0, f"{self._name(params[0])} and its neighbours have made "
                                                              f"{sorted(steps)} steps in {path}")
        more = self.group_of.keys() - live.keys()
        ours.require(not more, f"{path} has {next(iter(more), '')}, which is not trained here")
        ours.require(len(self.groups) == len(self.adam.param_groups), f"{path} has {len(self.groups)} groups of parameters, "
                                                                      f"and there are {len(self.adam.param_groups)} here")

    def _check_frozen(self) -> None:
        for param in self._frozen():
            name = self._name(param)
            self._check_tensor(name, tuple(param.ds_shape))
            ours.require(int(param.ds_tensor.status.value) == 1,
                         f"{name} is frozen and on NVMe: use offload_param with the device cpu, or none")

    def _check_rest(self, options: Mapping[str, Any]) -> None:
        model, path = self.step.model, self.step.path
        for name, buffer in self._buffers():
            saved = model["module"].get(name)
            ours.require(torch.is_tensor(saved) and saved.shape == buffer.shape, f"{path} has no such buffer {name}")
        for key in ("data_sampler", "random_ltd"):
            ours.require(model.get(key) is None, f"{path} has the state of a {key}, which is of its ranks")
        ours.require(not self._with_scheduler(options) or model.get("lr_scheduler") is not None,
                     f"{path} has no state of a scheduler: load with load_lr_scheduler_states=False")
        self.scheduler = self._with_scheduler(options)

    def _with_scheduler(self, options: Mapping[str, Any]) -> bool:
        return options.get("load_lr_scheduler_states", True) and self.engine.lr_scheduler is not None

    def _check_tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
        told = self.checkpoint.tensors.get(name)
        if told is None:
            why = "; ".join(self.checkpoint.problems[:3])
            raise ours.NotSupported(f"{self.step.path} has no {name}{': ' if why else ''}{why}; nothing was changed")
        ours.require(told.shape == shape, f"{name} is {told.shape} in {self.step.path}, and {shape} here")
        ours.require(dtype in (None, told.dtype), f"{name} is {told.dtype} in {self.step.path}, and {dtype} here")

    # --- the engine's parameters

    def _name(self, param: _Parameter) -> str:
        name = self.engine.param_names.get(param)
        ours.require(name is not None, f"a parameter of shape {tuple(param.ds_shape)} has no name")
        return str(name)

    def _frozen(self) -> Iterator[_Parameter]:
        return (param for param in self.engine.module.parameters() if not param.requires_grad)

    def _buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Those that a checkpoint has."""
        saved = self.engine.module.state_dict().keys()
        return [(name, buffer) for name, buffer in self.engine.module.named_buffers() if name in saved]

    # --- the load

    def fill(self) -> ours.Loaded:
        """Called by all ranks. If one fails, all raise, and the engine is of no use any more."""
        if self.rank == 0:
            _log.warning("%s: loaded by the parameters' names: %s", self.step.path, self.step.other_layout(self.engine))
        with ours.Together(f"the engine has a part of {self.step.path}: do not train with it"), torch.no_grad():
            self.optimizer.checkpoint_event_prologue()
            for index in range(len(self.optimizer.fp16_groups)):
                self._fill_group(index)
            for param in self._frozen():
                self._fill_frozen(param)
            self._fill_small_state()
        self.optimizer.checkpoint_event_epilogue()  # it gathers
        client = {key: value for key, value in self.step.model.items() if key not in _OF_DEEPSPEED}
        return str(self.step.model_file), client

    def _fill_group(self, index: int) -> None:
        params, group = self.optimizer.fp16_groups[index], self.optimizer.fp32_partitioned_groups_flat[index]
        swapped = self.optimizer._swappable_optimizer_subgroup(index)
        if swapped:
            self.optimizer._optimizer_states_and_gradient_swap_in(index)
        self._read(params, "/fp32", group.data)
        state = self.adam.state[group]
        for key in MOMENTS:
            if not torch.is_tensor(state.get(key)) or state[key].numel() != group.numel():
                state[key] = torch.empty_like(group.data)
            self._read(params, f"/{key}", state[key])
        step = self.steps[self._name(params[0])]
        of_torch = type(self.adam).__module__.startswith("torch.optim")
        state["step"] = torch.tensor(float(step)) if of_torch else step
        self.optimizer._reassign_or_swap_out_partitioned_parameters(index)  # the 16-bit parameters
        if swapped:
            self.optimizer._optimizer_states_and_gradient_swap_out(index)

    def _fill_frozen(self, param: _Parameter) -> None:
        part = torch.empty(param.partition_numel(), dtype=self.checkpoint.tensors[self._name(param)].dtype)
        self._read([param], "", part)
        param.ds_tensor.data.copy_(part)

    def _read(self, params: Sequence[_Parameter], state: str, flat: torch.Tensor) -> None:
        """This rank's parts of the parameters, one behind the other. What lies behind a parameter's end is zero."""
        boxes, offset = [], 0
        for param in params:
            size, name = param.partition_numel(), self._name(param) + state
            shape = self.checkpoint.tensors[name].shape
            begin = min(self.rank * size, param.ds_numel)
            end = min(begin + size, param.ds_numel)
            flat[offset + end - begin : offset + size].zero_()
            if end > begin:
                address = flat.data_ptr() + offset * flat.element_size()
                boxes.append((name, (0,) * len(shape), shape, begin, end, address))
            offset += size
        if boxes:
            self.checkpoint.load_boxes(boxes, memory.device_of([flat]))

    def _fill_small_state(self) -> None:
        engine, model = self.engine, self.step.model
        for name, buffer in self._buffers():
            buffer.copy_(model["module"][name])
        for live, saved in zip(self.adam.param_groups, self.groups, strict=True):
            live.update({key: copy.deepcopy(value) for key, value in saved.items()
                         if key in live and key not in ("params", "step")})
        for name in _SETTINGS:
            value = self.step.outer.get(name)
            if type(value) is type(getattr(self.optimizer, name)):  # else the two have other types of 16 bits
                setattr(self.optimizer, name, value)
        if self.scheduler:
            engine.lr_scheduler.load_state_dict(model["lr_scheduler"])
        for name in _COUNTERS:
            setattr(engine, name, model[name])
        engine.loaded_checkpoint_dp_world_size = model["dp_world_size"]
        engine.loaded_checkpoint_mp_world_size = model["mp_world_size"]
        steps = [(self.steps[name], self.groups[self.group_of[name]]["betas"]) for name in self.steps]
        ours.walk_powers(engine, steps)
