"""Which part of each parameter a rank's ZeRO optimizer of DeepSpeed has, and where in its buffers (DeepSpeed 0.18.9, 0.19.8).

ZeRO-3 (runtime/zero/stage3.py): a rank has ceil(elements / ranks) of each flattened parameter, the last ones with padding. A
sub-group is a run of parameters of one param group; it ends when this rank's parts of them reach sub_group_size, so the
sub-groups change with the ranks. One that is swapped is brought into memory, filled and swapped out, as a step of the
optimizer does it; no swap file is written by hand.

ZeRO 1 and 2 (runtime/zero/stage_1_and_2.py): the parameters of a param group lie end to end, in the order that
round_robin_gradients gives them, some with padding behind them. A rank has an equal run of that, so a parameter lies with some
ranks, and not with others.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from deepspeed import comm as dist

from ckptfs import deepspeed as ours

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

Parameter = Any  # torch's, in ZeRO-3 with ds_shape, ds_numel, ds_tensor (this rank's part), partition_numel()

MOMENTS = ("exp_avg", "exp_avg_sq")


class Part(NamedTuple):
    """The elements [begin, end) of the flattened parameter lie at `offset` of the buffer. There may be none."""

    param: Parameter
    begin: int
    end: int
    offset: int


class SubGroup(NamedTuple):
    """Parameters that the optimizer has as one."""

    number: int
    param_group: int  # its number among the optimizer's param_groups
    flat: torch.Tensor  # this rank's part of the master weights, and the key of its states; empty while it is swapped out
    params: list[Parameter]  # all of them, also those of which this rank has nothing


def of(engine: DeepSpeedEngine) -> Zero3 | Zero12:
    """NotSupported: it has another kind of optimizer."""
    kind = type(engine.optimizer).__name__
    ours.require(ours.is_zero3(engine) or ours.is_zero12(engine), f"a step of other ranks does not go into a {kind}")
    return Zero3(engine.optimizer) if ours.is_zero3(engine) else Zero12(engine.optimizer, engine.param_names)


class Zero3:
    """An optimizer of ZeRO-3."""

    stage = "ZeRO-3"
    inside = ("fp16_groups", "fp32_partitioned_groups_flat", "sub_group_to_group_id", "_swappable_optimizer_subgroup",
              "_optimizer_states_and_gradient_swap_in", "_optimizer_states_and_gradient_swap_out",
              "_reassign_or_swap_out_partitioned_parameters", "checkpoint_event_prologue", "checkpoint_event_epilogue")

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._rank = optimizer, dist.get_rank(group=optimizer.dp_process_group)

    @property
    def ranks(self) -> int:
        return int(self._optimizer.partition_count)

    @property
    def cut(self) -> list[object]:
        """What tells its sub-groups from those of another cut; where they are not swapped, a file may have their lengths only."""
        swaps = self._optimizer.swap_optimizer
        return [getattr(flat, "ds_id", None) if swaps else flat.numel() for flat in self._optimizer.fp32_partitioned_groups_flat]

    @property
    def sub_groups(self) -> list[SubGroup]:
        optimizer = self._optimizer
        return [SubGroup(number, optimizer.sub_group_to_group_id[number], flat, params) for number, (params, flat) in
                enumerate(zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat, strict=True))]

    @staticmethod
    def shape(param: Parameter) -> tuple[int, ...]:
        return tuple(param.ds_shape)

    def parts(self, group: SubGroup) -> Iterator[Part]:
        offset = 0
        for param in group.params:
            yield self._part(param, offset)
            offset += param.partition_numel()

    def _part(self, param: Parameter, offset: int) -> Part:
        size = param.partition_numel()
        begin = min(self._rank * size, param.ds_numel)
        return Part(param, begin, min(begin + size, param.ds_numel), offset)

    def frozen(self, param: Parameter) -> tuple[torch.Tensor, Part]:
        """Where this rank has its part of it, and which."""
        return param.ds_tensor.data, self._part(param, 0)

    def check_frozen(self, name: str, param: Parameter) -> None:
        on_nvme = getattr(param.ds_tensor, "final_location", None) == "nvme" or int(param.ds_tensor.status.value) != 1
        ours.require(not on_nvme, f"{name} is frozen and on NVMe: use offload_param with the device cpu, or none")
        ours.require(not hasattr(param.ds_tensor, "ds_quant_scale"), f"{name} is quantised, which is not supported")

    def begin(self) -> None:
        self._optimizer.checkpoint_event_prologue()

    @contextlib.contextmanager
    def in_memory(self, group: SubGroup) -> Iterator[None]:
        """While its buffers are filled; then the 16-bit parameters are made of them."""
        swapped = self._optimizer._swappable_optimizer_subgroup(group.number)
        if swapped:
            self._optimizer._optimizer_states_and_gradient_swap_in(group.number)
        yield
        self._optimizer._reassign_or_swap_out_partitioned_parameters(group.number)
        if swapped:
            self._optimizer._optimizer_states_and_gradient_swap_out(group.number)
            for key in MOMENTS:
                self._optimizer.optimizer.state[group.flat][key].data = torch.Tensor()  # the pipelined swapper leaves it

    def set_clip_grad(self, saved: Mapping[str, Any]) -> None:
        """It is a setting here: DeepSpeed's own load leaves it alone."""

    def finish(self) -> None:
        """By all ranks together."""
        self._optimizer.checkpoint_event_epilogue()


class Zero12:
    """An optimizer of ZeRO 1 or 2. The model has each parameter whole."""

    stage = "ZeRO 1 or 2"
    inside = ("round_robin_bit16_groups", "single_partition_of_fp32_groups", "clip_grad", "update_lp_params",
              "_link_all_hp_params", "_hp_optimizer_states_linked")

    def __init__(self, optimizer: Any, names: Mapping[Parameter, str]) -> None:
        self._optimizer, self._rank, self._names = optimizer, dist.get_rank(group=optimizer.dp_process_group), names

    @property
    def ranks(self) -> int:
        return int(max(self._optimizer.partition_count))

    @property
    def cut(self) -> list[object]:
        """DeepSpeed's own load takes any lengths that the same ranks have."""
        return [None for _ in self._optimizer.single_partition_of_fp32_groups]

    @property
    def names(self) -> list[list[str | None]]:
        """In the order in which the parameters lie. DeepSpeed's own load does not see another one."""
        return [[self._names.get(param) for param in group.params] for group in self.sub_groups]

    @property
    def sub_groups(self) -> list[SubGroup]:
        optimizer = self._optimizer
        return [SubGroup(number, number, flat, params) for number, (params, flat) in
                enumerate(zip(optimizer.round_robin_bit16_groups, optimizer.single_partition_of_fp32_groups, strict=True))]

    @staticmethod
    def shape(param: Parameter) -> tuple[int, ...]:
        return tuple(param.shape)

    def parts(self, group: SubGroup) -> Iterator[Part]:
        first, size = self._rank * group.flat.numel(), group.flat.numel()
        for param, at in zip(group.params, self._offsets(group), strict=True):
            begin, end = (min(max(border - at, 0), param.numel()) for border in (first, first + size))
            yield Part(param, begin, end, max(at + begin - first, 0))

    def _offsets(self, group: SubGroup) -> list[int]:
        """Where each of its parameters begins. Before 0.19 there is no padding between them, and nothing that tells it."""
        told = getattr(self._optimizer, "round_robin_bit16_offsets", None)
        if told is not None:
            return list(told[group.number])
        return list(itertools.accumulate((param.numel() for param in group.params[:-1]), initial=0))

    @staticmethod
    def frozen(param: Parameter) -> tuple[torch.Tensor, Part]:
        return param.data, Part(param, 0, param.numel(), 0)

    def check_frozen(self, name: str, param: Parameter) -> None:
        """All of them can be filled."""

    def begin(self) -> None:
        """Nothing is swapped."""

    @contextlib.contextmanager
    def in_memory(self, _group: SubGroup) -> Iterator[None]:
        yield

    def set_clip_grad(self, saved: Mapping[str, Any]) -> None:
        """As DeepSpeed's own load takes it from the step."""
        self._optimizer.clip_grad = saved.get("clip_grad", self._optimizer.clip_grad)

    def finish(self) -> None:
        """By all ranks together: makes the 16-bit parameters, and what DeepSpeed's safe_get_* functions show."""
        self._optimizer.update_lp_params()
        self._optimizer._link_all_hp_params()
        self._optimizer._hp_optimizer_states_linked = False
        self._optimizer._lazy_init_hp_params_optimizer_state()
