"""DeepSpeed checkpoints with an NVMe optimizer that lose nothing.

    ckptfs.deepspeed.check("/ckpt").raise_if_unsafe()          # may DeepSpeed read garbage there?
    ckptfs.deepspeed.save_checkpoint(engine, "/ckpt/steps")    # `latest` only when every rank's files are durable
    ckptfs.deepspeed.load_checkpoint(engine, "/ckpt/steps")    # moments, step, hyperparameters, small sub-groups, scaler

DeepSpeed's own load brings back the master weights of what it swaps, and nothing else: Adam's moments begin at zero, its
step at 0, the learning rate at its first value, and what was too small to swap keeps its random start. Here the run goes
on as if it had never stopped, to the last bit. Both functions are called by every rank, as DeepSpeed's own. They work
on any path, not only on a ckptfs mount. ckptfs.patch puts them in the place of DeepSpeed's own, for engines on a mount.
An engine of ZeRO 1, 2 or 3 takes a step of any number of ranks and any of these stages (ckptfs.elastic).

What this knows of DeepSpeed's inside is in `_check_inside`. A load by another version than those of `TESTED` is refused
by name, and nothing is changed. CKPTFS_DEEPSPEED=VERSION in the environment tries one more version.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import dataclasses
import errno
import hashlib
import json
import logging
import mmap
import os
import pathlib
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ckptfs import durable, mounts, states

if TYPE_CHECKING:
    import types

    from deepspeed import DeepSpeedEngine

    from ckptfs import elastic
    from ckptfs.checkpoint_engine import CheckpointEngine

__all__ = ["Alignment", "CheckpointEngine", "NotSupported", "accumulation_steps", "check", "latest_of", "load_checkpoint",
           "save_checkpoint"]

# The path that was loaded, and the client's state; two times None, if there was nothing to load.
Loaded: TypeAlias = "tuple[str | None, dict[str, Any] | None]"
_log = logging.getLogger("ckptfs")

TESTED = ("0.18.9", "0.19.8")
IDS = "ckptfs.ds_ids.json"  # in the step: name -> ds_id, for the views


if not TYPE_CHECKING:  # its base is DeepSpeed's, which takes long to import
    def __getattr__(name):
        if name == "CheckpointEngine":
            from ckptfs.checkpoint_engine import CheckpointEngine
            return CheckpointEngine
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class NotSupported(RuntimeError):
    """The function does not know this DeepSpeed, or this configuration. Nothing was changed."""


# --- alignment


@dataclasses.dataclass(frozen=True)
class Alignment:
    """Whether O_DIRECT below `path` takes the requests that DeepSpeed makes. DeepSpeed never looks what became of them."""

    path: str
    safe: bool
    reason: str

    def raise_if_unsafe(self) -> None:
        if not self.safe:
            raise RuntimeError(f"{self.path}: {self.reason}")


_BLOCK = 1 << 20
_MEMORY = (4, 64, 508)  # offsets of gradients in DeepSpeed's buffers are multiples of 4 bytes
_OFFSET = 1024  # of its files and lengths


def check(path: str | os.PathLike[str]) -> Alignment:
    """Makes the requests that DeepSpeed would make, on a file of its own in the folder `path`."""
    path = os.fspath(path)
    with tempfile.NamedTemporaryFile(dir=path, prefix=".ckptfs-check-") as file, mmap.mmap(-1, 3 * _BLOCK) as memory:
        data = os.urandom(_BLOCK)
        os.pwrite(file.fileno(), data, 0)
        os.fsync(file.fileno())
        try:
            direct = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError as problem:
            return Alignment(path, False, f"O_DIRECT is refused ({problem.strerror})")
        try:
            return _check_reads(path, direct, memory, data)
        finally:
            os.close(direct)


def _check_reads(path: str, direct: int, memory: mmap.mmap, data: bytes) -> Alignment:
    for shift, offset, size in [(shift, 0, _BLOCK) for shift in _MEMORY] + [(0, _OFFSET, _OFFSET)]:
        what = f"O_DIRECT into memory {shift} bytes off" if shift else f"O_DIRECT of {size} bytes at {offset}"
        with memoryview(memory) as whole, whole[shift : shift + size] as buffer:
            try:
                got = os.preadv(direct, [buffer], offset)
            except OSError as problem:
                if problem.errno != errno.EINVAL:
                    raise
                return Alignment(path, False, f"{what} is refused, and DeepSpeed, which does not look, trains on garbage: "
                                              "use a ckptfs mount with -o odirect=safe (the default)")
            if got != size or bytes(buffer) != data[offset : offset + size]:
                return Alignment(path, False, f"{what} reads something else than was written")
    return Alignment(path, True, "O_DIRECT takes what DeepSpeed asks for")


# --- DeepSpeed's own functions, called from here


_calling = contextvars.ContextVar("ckptfs.deepspeed calls DeepSpeed's own function", default=False)


def is_own_call() -> bool:
    """Does ckptfs.deepspeed itself call DeepSpeed's function? Then ckptfs.patch leaves the call alone."""
    return _calling.get()


@contextlib.contextmanager
def _own_call() -> Iterator[None]:
    token = _calling.set(True)
    try:
        yield
    finally:
        _calling.reset(token)


# --- saving


def save_checkpoint(engine: DeepSpeedEngine, save_dir: str | os.PathLike[str], tag: str | None = None,
                    client_state: Mapping[str, object] | None = None, save_latest: bool = True, **options: Any) -> bool:
    """Saves as engine.save_checkpoint does, and writes `latest` once all of it is durable. All ranks call it. If one fails,
    all raise, and `latest` stays. With a ckptfs CheckpointEngine it is engine.save_checkpoint itself.
    """
    return save_by(engine.save_checkpoint, engine, save_dir, tag, client_state, save_latest, **options)


def save_by(plain: Callable[..., bool], engine: DeepSpeedEngine, save_dir: str | os.PathLike[str], tag: str | None = None,
            client_state: Mapping[str, object] | None = None, save_latest: bool = True, **options: Any) -> bool:
    """save_checkpoint, where `plain` is DeepSpeed's own, bound to the engine."""
    writer = getattr(engine, "checkpoint_engine", None)
    if getattr(writer, "is_ckptfs", False):
        return plain(save_dir, tag=tag, client_state=client_state or {}, save_latest=save_latest, **options)
    require(not saves_later(engine), "a checkpoint engine that writes after save_checkpoint has returned is not supported")
    tag = str(tag if tag is not None else f"global_step{engine.global_steps}")
    with _own_call():
        saved = plain(save_dir, tag=tag, client_state=client_state or {}, save_latest=False, **options)
    step = pathlib.Path(save_dir) / tag
    rank, ranks = _share(engine)
    with Together("the step is not complete, and `latest` was left as it is"):  # all files are there
        ids = ids_of(engine) if rank == 0 else {}
        if ids:
            durable.replace(step / IDS, json.dumps(ids))
    with Together("the step is not durable, and `latest` was left as it is"):
        durable.sync(step, rank, ranks)
        durable.sync_one(step.parent)
    tell_attempt(engine, step)
    with Together("`latest` could not be written"):
        if save_latest and rank == 0:
            durable.replace(pathlib.Path(save_dir) / "latest", tag)
    return saved


def tell_attempt(engine: DeepSpeedEngine, step: str | os.PathLike[str]) -> None:
    """Tells the mounts of all nodes that what their ranks have just written to the step is one save. All ranks call it,
    after they have written. Only what several nodes push to one remote needs it (docs/remote.md)."""
    dist: Any = sys.modules.get("torch.distributed")
    is_alone = dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1
    if is_alone or saves_later(engine):
        return
    if not on_all_ranks(mounts.holds(step)):  # from here on all of them have written
        return
    word = [uuid.uuid4().hex[:12]]
    dist.broadcast_object_list(word, src=0)
    try:
        os.setxattr(step, "user.ckptfs.attempt", word[0].encode())
    except OSError as problem:
        _log.warning("%s: the mount was not told which save it is: %s", os.fspath(step), problem)


def saves_later(engine: DeepSpeedEngine) -> bool:
    """Does its checkpoint engine write after save_checkpoint has returned?"""
    writer = getattr(engine, "checkpoint_engine", None)
    return writer is not None and hasattr(writer, "is_decoupled") and bool(writer.is_decoupled())


def ids_of(engine: DeepSpeedEngine) -> dict[str, int]:
    """name -> ds_id, of ZeRO-3's parameters."""
    return {name: parameter.ds_id for name, parameter in engine.module.named_parameters() if hasattr(parameter, "ds_id")}


def _share(engine: DeepSpeedEngine) -> tuple[int, int]:
    """This rank's number and how many there are, of those that see the same files."""
    if engine.use_node_local_storage():
        return engine.local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "1")))
    import torch.distributed as dist
    return engine.global_rank, dist.get_world_size()


class Together:
    """What every rank of a group does (of all ranks without one): where it fails on one, it fails on all, and none waits for
    ever for another."""

    def __init__(self, what: str, group: Any = None) -> None:
        self.what, self.group = what, group

    def __enter__(self) -> Together:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None,
                 _trace: types.TracebackType | None) -> Literal[False]:
        import torch
        from deepspeed import comm as dist
        if problem is not None and not isinstance(problem, Exception):
            return False
        failed = torch.tensor([0 if problem is None else 1], dtype=torch.int64, device=_device())
        dist.all_reduce(failed, group=self.group)
        if problem is None and failed.item() > 0:
            raise RuntimeError(f"{int(failed.item())} other ranks failed (their errors say why): {self.what}")
        return False


def _device() -> str:
    from deepspeed.accelerator import get_accelerator
    return str(get_accelerator().current_device_name())


# --- loading


def load_checkpoint(engine: DeepSpeedEngine, load_dir: str | os.PathLike[str], tag: str | None = None,
                    **options: Any) -> Loaded:
    """Loads as engine.load_checkpoint does, and restores what that leaves out. All ranks call it, at any step. With ZeRO the
    step may be of any number of ranks, another stage, other sub-groups, and another kind of offload (ckptfs.elastic).
    NotSupported (on other ranks RuntimeError), before anything is changed: this DeepSpeed is not known, or the checkpoint
    is of other parameters.
    """
    return load_by(engine.load_checkpoint, engine, load_dir, tag, **options)


def load_by(plain: Callable[..., Loaded], engine: DeepSpeedEngine, load_dir: str | os.PathLike[str],
            tag: str | None = None, **options: Any) -> Loaded:
    """load_checkpoint, where `plain` is DeepSpeed's own, bound to the engine."""
    tag = None if tag is None else str(tag)  # DeepSpeed takes numbers, too
    reader, swapped = getattr(engine, "checkpoint_engine", None), is_swapped(engine)
    if reader is not None and getattr(reader, "is_ckptfs", False):
        reader.wait()  # what was saved last is there, and `latest`
    if not swapped and not _may_be_elastic(engine, load_dir, tag, options):
        return plain(load_dir, tag, **options)
    group = engine.optimizer.dp_process_group
    with Together("nothing was changed", group):
        if swapped:
            _check_inside(engine, options)
        tag = tag if tag is not None else latest_of(load_dir)
        step, other = _inspect(engine, pathlib.Path(load_dir) / tag, swapped)
    _require_one_tag(tag, load_dir, group)
    if not on_all_ranks(not other, group):
        with contextlib.ExitStack() as opened:
            with Together("nothing was changed", group):
                filling = opened.enter_context(_filling(engine, step, options))
                filling.check()
            return filling.fill()
    with Together("nothing was changed", group):
        state = _Saved(engine, load_dir, tag) if swapped else None
    with _own_call():
        result = plain(load_dir, tag, **options)
    if state is not None and result[0] is not None:
        state.restore(options.get("load_lr_scheduler_states", True))
    return result


def _inspect(engine: DeepSpeedEngine, path: pathlib.Path, must: bool) -> tuple[elastic.Step | Exception, str]:
    """The step, and in words, how it is cut otherwise than the engine, if it is. Without `must`, what cannot be inspected
    (and why) is left to DeepSpeed's own load. Not so a step without files: that load ends in a bare AssertionError, or,
    where only the optimizer's are missing, goes on with new moments and says nothing."""
    import torch.distributed as dist
    try:
        from ckptfs import elastic
        step = elastic.Step(path, dist.get_rank(engine.optimizer.dp_process_group),
                            engine._get_zero_ckpt_name(path.parent, path.name))
        return step, step.other_layout(engine)
    except FileNotFoundError:
        raise
    except Exception as problem:
        if must:
            raise
        _log.warning("%s: loaded by DeepSpeed alone: %s", path, problem)
        return problem, ""


def _filling(engine: DeepSpeedEngine, step: elastic.Step | Exception,
             options: Mapping[str, Any]) -> contextlib.closing[elastic.Filling]:
    from ckptfs import elastic
    if isinstance(step, Exception):
        raise NotSupported(f"the step has another layout than this run, and its small state cannot be read here: {step}")
    return contextlib.closing(elastic.Filling(engine, step, options))


def _require_one_tag(tag: str, folder: str | os.PathLike[str], group: Any) -> None:
    """Each rank has read `latest` by itself."""
    number = int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=7).digest(), "big")
    if len({_largest(number, group), -_largest(-number, group)}) > 1:
        raise NotSupported(f"the ranks were told different steps of {folder}, this one {tag}; nothing was changed")


def is_swapped(engine: DeepSpeedEngine) -> bool:
    """Is its optimizer on NVMe?"""
    return bool(getattr(getattr(engine, "optimizer", None), "swap_optimizer", False))


def is_zero3(engine: DeepSpeedEngine) -> bool:
    return type(getattr(engine, "optimizer", None)).__name__ == "DeepSpeedZeroOptimizer_Stage3"


def is_zero12(engine: DeepSpeedEngine) -> bool:
    """Is it ZeRO 1 or 2 of a model that is cut in no other way? Else DeepSpeed's own load is left alone."""
    kind = type(getattr(engine, "optimizer", None)).__name__
    return kind == "DeepSpeedZeroOptimizer" and not (engine.pipeline_parallelism or engine.has_moe_layers or
                                                     engine.mp_world_size != 1)


def _may_be_elastic(engine: DeepSpeedEngine, load_dir: str | os.PathLike[str], tag: str | None,
                    options: Mapping[str, Any]) -> bool:
    """Is all of a step wanted in a ZeRO engine of a version that is known? Then the step is looked into."""
    if not (is_zero3(engine) or is_zero12(engine)) or engine.load_universal_checkpoint() or not is_known_version():
        return False
    if not options.get("load_optimizer_states", True) or options.get("load_module_only", False):
        return False
    named = tag is not None or os.path.isfile(os.path.join(load_dir, "latest"))
    return on_all_ranks(named, engine.optimizer.dp_process_group)


def on_all_ranks(condition: bool, group: Any = None) -> bool:
    """Does it hold on every rank of the group, of all ranks without one? Else some would wait for ever for others. All of
    them ask."""
    return _largest(0 if condition else 1, group) == 0


def _largest(number: int, group: Any) -> int:
    """Of the numbers that the ranks of the group give."""
    import torch
    from deepspeed import comm as dist
    numbers = torch.tensor([number], dtype=torch.int64, device=_device())
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=group)
    return int(numbers.item())


def latest_of(folder: str | os.PathLike[str]) -> str:
    """Returns the tag that `latest` names. ValueError: it is empty, as DeepSpeed leaves it if it is killed then."""
    path = pathlib.Path(folder) / "latest"
    tag = path.read_text(encoding="utf-8").strip()
    if not tag:
        raise ValueError(f"{path} is empty, as a save leaves it that is killed while it writes `latest`: write the tag "
                         f"of a complete step into it (`ckptfs ls {folder}` lists them), or load with tag=")
    return tag


def accumulation_steps(step: str | os.PathLike[str], *, ranks: int, micro_batch: int) -> int:
    """The gradient_accumulation_steps that keep the global batch of the step's run, on so many ranks with so many samples
    each. ValueError: there are none, or the step does not tell its batch. FileNotFoundError: it is no step."""
    if ranks < 1 or micro_batch < 1:
        raise ValueError(f"{ranks} ranks with {micro_batch} samples each: at least one of both is needed")
    model = states.load(states.small_files(pathlib.Path(step))[0])
    config = model.get("ds_config")
    told = config if isinstance(config, dict) and config.get("sequence_parallel_size", 1) == 1 else {}
    batch, one = told.get("train_batch_size"), told.get("train_micro_batch_size_per_gpu")
    if not isinstance(batch, int) and isinstance(one, int):
        more = told.get("gradient_accumulation_steps", 1)
        batch = one * more * int(model["dp_world_size"]) if isinstance(more, int) else None
    if not isinstance(batch, int):
        raise ValueError(f"{step} does not tell the batch size of its run")
    if batch % (ranks * micro_batch) != 0:
        raise ValueError(f"the global batch of {step} is {batch}, no multiple of {ranks} ranks with {micro_batch} samples each")
    return batch // (ranks * micro_batch)


def require(condition: object, what: str) -> None:
    if not condition:
        import deepspeed
        raise NotSupported(f"DeepSpeed {deepspeed.__version__}: {what} (known: {', '.join(TESTED)}); nothing was changed")


def is_known_version() -> bool:
    import deepspeed
    return deepspeed.__version__ in (*TESTED, os.environ.get("CKPTFS_DEEPSPEED"))


_INSIDE = {
    "engine": ("_get_zero_ckpt_name", "use_node_local_storage", "local_rank", "global_rank", "lr_scheduler"),
    "engine.optimizer": ("optimizer_swapper", "optimizer", "fp32_partitioned_groups_flat", "partition_count",
                         "loss_scaler", "dynamic_loss_scale", "overflow", "checkpoint_event_prologue",
                         "checkpoint_event_epilogue", "_reassign_or_swap_out_partitioned_parameters",
                         "_swappable_optimizer_subgroup", "_set_fp32_optimizer_param_groups",
                         "_clear_fp32_optimizer_param_groups"),
    "engine.optimizer.optimizer_swapper": ("swap_params_info", "swap_folder", "dtype", "swap_element_size",
                                           "_io_aligned_numel"),
}
_INSIDE_INFO = ("has_state_tensors", "add_state_tensors", "get_swap_paths", "numel")


def check_version() -> None:
    import deepspeed
    require(is_known_version(), "ckptfs.deepspeed does not know this version. Install one that it knows, or try this one "
                                f"with CKPTFS_DEEPSPEED={deepspeed.__version__} in the environment")


def check_names(engine: DeepSpeedEngine, known: Mapping[str, Iterable[str]]) -> None:
    """Has the engine inside what is used of it? {"engine.optimizer": names, ...}"""
    for where, names in known.items():
        thing = engine
        for part in where.split(".")[1:]:
            thing = getattr(thing, part)
        for name in names:
            require(hasattr(thing, name), f"{where} has no {name}")


def check_optimizer(optimizer: Any) -> None:
    for name, wanted in (("zenflow", False), ("use_muon", False), ("partial_offload", 1.0)):
        require(getattr(optimizer, name, None) in (wanted, None), f"{name} is not supported")
    if _is_cpu_adam(optimizer.optimizer):
        require(hasattr(optimizer.optimizer, "opt_id") and
                hasattr(getattr(optimizer.optimizer, "ds_opt_adam", None), "adam_update"), "its CPUAdam has no adam_update")


def _check_inside(engine: DeepSpeedEngine, options: Mapping[str, Any]) -> None:
    check_version()
    check_names(engine, _INSIDE)
    for info in engine.optimizer.optimizer_swapper.swap_params_info.values():
        for name in _INSIDE_INFO:
            require(hasattr(info, name), f"what it knows of a swapped sub-group has no {name}")
    check_optimizer(engine.optimizer)
    require(options.get("load_optimizer_states", True),
            "load_optimizer_states=False is not supported: use engine.load_checkpoint")
    require(not options.get("load_module_only", False), "load_module_only is not supported: use engine.load_checkpoint")


def _is_cpu_adam(adam: object) -> bool:
    return type(adam).__name__ == "DeepSpeedCPUAdam"


def tell_rate(engine: DeepSpeedEngine) -> None:
    """Lets the scheduler say which rates there are now."""
    if getattr(engine.lr_scheduler, "_last_lr", None) is not None:
        engine.lr_scheduler._last_lr = [group["lr"] for group in engine.optimizer.optimizer.param_groups]


def walk_powers(engine: DeepSpeedEngine, steps: Iterable[tuple[int, tuple[float, float]]]) -> None:
    """CPUAdam multiplies beta up step by step, in float; after a jump it takes the power, which differs in the last bit. So
    it is walked through the steps that its groups have made, each with its betas, by tensors of no elements."""
    import torch
    adam, made = engine.optimizer.optimizer, list(steps)
    if not made or not _is_cpu_adam(adam) or getattr(engine.lr_scheduler, "cycle_momentum", False):
        return
    nothing = torch.empty(0)

    def tick(step: int, betas: tuple[float, float]) -> None:
        adam.ds_opt_adam.adam_update(adam.opt_id, step, 0.0, betas[0], betas[1], 1e-8, 0.0, True, nothing, nothing, nothing,
                                     nothing)

    for step in range(1, made[0][0] + 1):
        tick(step, made[0][1])
    for step, betas in made:
        tick(step, betas)


class _Saved:
    """What a rank's optim_states.pt holds beside the master weights, matched with the optimizer as it is now."""

    def __init__(self, engine: DeepSpeedEngine, load_dir: str | os.PathLike[str], tag: str) -> None:
        self.engine, self.optimizer = engine, engine.optimizer
        self.swapper, self.adam = self.optimizer.optimizer_swapper, self.optimizer.optimizer
        self.flat = self.optimizer.fp32_partitioned_groups_flat
        self.saved = states.load(engine._get_zero_ckpt_name(load_dir, tag))["optimizer_state_dict"]
        rank = engine.local_rank if engine.use_node_local_storage() else engine.global_rank
        self.folder = pathlib.Path(load_dir) / tag / "offloaded_tensors" / f"rank{rank:0>2d}"
        self._check_same_model()
        self.states = self._match_states()
        self.swapped = {index: self._swapped_names(index) for index in range(len(self.flat))
                        if self.optimizer._swappable_optimizer_subgroup(index)}
        self._check_files()

    def _check_same_model(self) -> None:
        groups = self.saved["optimizer_state_dict"]["param_groups"]
        require(len(groups) == len(self.adam.param_groups), "the checkpoint has other groups of parameters")

    def _match_states(self) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
        """For each sub-group its saved state and its saved group of hyperparameters."""
        saved = self.saved["optimizer_state_dict"]
        found: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.optimizer._set_fp32_optimizer_param_groups()
        try:
            for live, theirs in zip(self.adam.param_groups, saved["param_groups"], strict=True):
                require(len(live["params"]) == len(theirs["params"]), "the checkpoint has other groups of parameters")
                for parameter, number in zip(live["params"], theirs["params"], strict=True):
                    found[id(parameter)] = (saved["state"].get(number, {}), theirs)
        finally:
            self.optimizer._clear_fp32_optimizer_param_groups()
        return found

    def _state(self, index: int) -> dict[str, Any]:
        return self.states[id(self.flat[index])][0]

    def _swapped_names(self, index: int) -> list[str]:
        import torch
        return [name for name, value in self._state(index).items() if torch.is_tensor(value) and value.dim() > 0]

    def _files(self, index: int) -> list[str]:
        return [self.flat[index].ds_id] + [f"{name}-{self.flat[index].ds_id}" for name in self.swapped[index]]

    def _check_files(self) -> None:
        for index, group in enumerate(self.flat):
            if index not in self.swapped:
                same = self.saved["fp32_flat_groups"][index].numel() == group.numel()
                require(same, f"sub-group {group.ds_id} of the checkpoint has another length")
                continue
            info = self.swapper.swap_params_info[group.ds_id]
            needed = self.swapper._io_aligned_numel(info.numel()) * self.swapper.swap_element_size
            for name in self._files(index):
                path = self.folder / f"{name}.tensor.swp"
                require(path.exists() and path.stat().st_size >= needed, f"{path} is missing or shorter than {needed}")

    def restore(self, with_scheduler: bool) -> None:
        import torch
        with torch.no_grad():
            self.optimizer.checkpoint_event_prologue()
            for index in range(len(self.flat)):
                if index in self.swapped:
                    self._restore_swapped(index)
                else:
                    self._restore_small(index)
            self._restore_settings(with_scheduler)
            matched = (self.states[id(group)] for group in self.flat)
            walk_powers(self.engine, [(int(state["step"]), settings["betas"]) for state, settings in matched
                                      if "step" in state])
            self.optimizer.checkpoint_event_epilogue()  # by every rank: it gathers

    def _restore_swapped(self, index: int) -> None:
        """The copied files are read at the next step, if the swapper knows that there is a state; memory is not needed."""
        import torch
        group, state, names = self.flat[index], self._state(index), self.swapped[index]
        info = self.swapper.swap_params_info[group.ds_id]
        if info.has_state_tensors:  # steps were made in this process: the load itself has read the states
            self.adam.state[group].update({key: copy.deepcopy(value) for key, value in state.items()
                                           if key not in names})
        elif state:
            live: dict[str, Any] = {}
            for key, value in state.items():
                live[key] = torch.empty(0, dtype=self.swapper.dtype) if key in names else copy.deepcopy(value)
                if key in names:
                    live[key].ds_id = f"{key}-{group.ds_id}"
            self.adam.state[group] = live
            info.add_state_tensors([live[name] for name in names])
        wanted = {os.path.join(self.swapper.swap_folder, f"{name}.tensor.swp") for name in self._files(index)}
        if set(info.get_swap_paths()) != wanted:
            raise RuntimeError(f"sub-group {group.ds_id} is swapped to {info.get_swap_paths()} instead of {wanted}: do not "
                               "go on with this engine")

    def _restore_small(self, index: int) -> None:
        import torch
        group, state = self.flat[index], self._state(index)
        group.data.copy_(self.saved["fp32_flat_groups"][index].data)
        if state:
            self.adam.state[group] = {key: value.detach().clone() if torch.is_tensor(value) else copy.deepcopy(value)
                                      for key, value in state.items()}
        else:
            self.adam.state.pop(group, None)
        self.optimizer._reassign_or_swap_out_partitioned_parameters(index)  # and the 16-bit parameters from it

    def _restore_settings(self, with_scheduler: bool) -> None:
        for live, theirs in zip(self.adam.param_groups, self.saved["optimizer_state_dict"]["param_groups"], strict=True):
            live.update({key: copy.deepcopy(value) for key, value in theirs.items() if key != "params"})
        self.optimizer.loss_scaler = self.saved["loss_scaler"]
        self.optimizer.dynamic_loss_scale = self.saved["dynamic_loss_scale"]
        self.optimizer.overflow = self.saved["overflow"]
        if with_scheduler:
            tell_rate(self.engine)
