"""DeepSpeed's checkpoints past the page cache and past a copy in CPU memory: ckptfs.deepspeed.CheckpointEngine.

    engine.checkpoint_engine = ckptfs.deepspeed.CheckpointEngine(engine)     # after deepspeed.initialize

From then on engine.save_checkpoint returns when the tensors are copied out (the disk is waited for behind), and
engine.load_checkpoint reads each tensor to where it belongs: over the live one, where the checkpoint is of the same model
and ranks. The files are torch's own, as before: torch.load, zero_to_fp32.py and DeepSpeed's own engine read them (the
sums in their zip headers are of no use, as torch has it for files that are filled later; torch does not look at them).

A step's .pt files appear all at once, of all ranks, some time after save_checkpoint has returned, and `latest` after
them; wait() waits for that. What a crash left, or a rank that failed, never becomes a step. A save that fails is logged,
and training goes on.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import inspect
import json
import logging
import os
import pathlib
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine as _Base

from ckptfs import durable, memory, states, torch_files
from ckptfs.deepspeed import IDS, ids_of
from ckptfs.saving import Save, new_attempt

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo

__all__ = ["CheckpointEngine"]

_Pair = tuple[torch.Tensor, torch.Tensor]  # saved, live
_log = logging.getLogger("ckptfs")


class CheckpointEngine(_Base):  # type: ignore[misc] # DeepSpeed has no types
    """DeepSpeed's checkpoint engine, for `engine.checkpoint_engine`. `seal`: steps on a ckptfs mount become read-only.
    `allow`: more classes that files may hold. wait(), by all ranks, waits for the last step; False: it has failed."""

    is_ckptfs = True  # for ckptfs.deepspeed's functions

    def __init__(self, engine: DeepSpeedEngine, *, seal: bool = True,
                 allow: Iterable[Callable[..., Any] | tuple[Callable[..., Any], str]] = ()) -> None:
        super().__init__()
        torch_files.check_torch()
        self.name = "ckptfs"
        self.seal, self.allow = seal, [*states.classes(), *allow]
        self._engine, self._process = weakref.ref(engine), os.getpid()
        self._rank, self._ranks = _ranks_of(engine)
        self._saving, self._loading = False, False  # within the engine's own functions
        self._info: CheckpointCommitInfo | None = None
        self._attempt: str | None = None
        self._step: Save | None = None
        self._again: tuple[_Identity | None, Any] = (None, None)
        if engine.checkpoint_engine is not None:
            engine.checkpoint_engine.cleanup()
        self._wrap(engine)
        atexit.register(_finish_at_exit, weakref.ref(self))

    def _wrap(self, engine: DeepSpeedEngine) -> None:
        """save_checkpoint has ended when every rank's has: only then is it known that nothing will be added."""
        save, load = engine.save_checkpoint, engine.load_checkpoint

        @functools.wraps(save)
        def save_checkpoint(*arguments: Any, **named: Any) -> Any:
            with self._while_saving():
                return save(*arguments, **named)

        @functools.wraps(load)
        def load_checkpoint(*arguments: Any, **named: Any) -> Any:
            with self._while_loading(inspect.signature(load).bind(*arguments, **named).arguments):
                return load(*arguments, **named)

        engine.save_checkpoint, engine.load_checkpoint = save_checkpoint, load_checkpoint

    # --- saving

    def is_decoupled(self) -> bool:
        return True

    def get_commit_info(self) -> None:
        return None  # the step, and `latest`, appear by themselves

    @contextlib.contextmanager
    def _while_saving(self) -> Iterator[None]:
        self._saving, before = True, self._step
        try:
            yield
        except BaseException as problem:
            if self._step is not before:  # else it was not begun, and that is another one's
                self._failed(problem)
            raise
        finally:
            self._saving = False
        if self._step is not None and self._step is not before:
            self._add_ids(self._step)
        if self._step is not None and self._step is not before:
            self._step.finish_behind(self._point_to_it, self._sync_swapped)

    def _add_ids(self, step: Save) -> None:
        """The names of the numbers that DeepSpeed's files have, for the views."""
        try:
            ids = ids_of(self._engine()) if self._rank == 0 else {}
            if ids:
                step.add_bytes(IDS, json.dumps(ids).encode())
                step.wait_copied()
        except Exception as problem:  # noqa: BLE001 - training goes on
            self._failed(problem)

    def create(self, info: CheckpointCommitInfo) -> None:
        """Called by every rank, before anything of a step is saved."""
        self._again = (None, None)
        self._finish()
        if not self._saving:  # save_16bit_model: no part of a step
            if info.save_latest:
                _log.warning("%s is saved past engine.save_checkpoint: by torch.save, and `latest` is not written", info.tag)
            return
        self._tell_if_lost()
        self._info, self._attempt = info, new_attempt(self._ranks)
        try:
            pathlib.Path(info.save_dir).mkdir(parents=True, exist_ok=True)
            self._step = Save(info.save_dir, str(info.tag), self._attempt, self._rank, self._ranks,
                              device=memory.current(), seal=self.seal)
        except Exception as problem:  # noqa: BLE001 - training goes on
            self._failed(problem)

    def makedirs(self, path: str | os.PathLike[str], exist_ok: bool = False) -> None:
        """The step's own folder appears with its files."""
        if not self._saving or self._info is None or pathlib.Path(path) != self._folder():
            super().makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict: object, path: str | os.PathLike[str]) -> None:
        """Returns when the tensors are copied."""
        path = pathlib.Path(path)
        if not self._saving or self._info is None or path.parent != self._folder():
            _log.info("%s: no part of a step: saved by torch.save", path)
            torch.save(state_dict, path)
            return
        if self._step is None:  # it has failed already
            return
        try:
            skeleton = torch_files.Skeleton(state_dict)
            self._step.add_file(path.name, skeleton.size, skeleton.parts, keep=skeleton)
            self._step.wait_copied()
        except Exception as problem:  # noqa: BLE001 - training goes on
            self._failed(problem)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """Of save_16bit_model, whose file is there."""
        return True

    def wait(self) -> bool:
        """By every rank: until the step that was saved last is there. False: it will never be; the log says why."""
        self._finish()
        _barrier()
        return self._is_there()

    def cleanup(self) -> None:
        self._finish()

    def _folder(self) -> pathlib.Path:
        assert self._info is not None, "a save was begun"
        return pathlib.Path(self._info.save_dir) / str(self._info.tag)

    def _is_there(self) -> bool:
        """Does the step hold what this attempt has saved?"""
        if self._info is None:
            return False
        try:
            manifest: dict[str, Any] = json.loads((self._folder() / f"ckptfs.rank{self._rank:02d}.json").read_text())
        except (OSError, ValueError):
            return False
        return manifest.get("attempt") == self._attempt

    def _tell_if_lost(self) -> None:
        """What this rank could not know when it was through: that another one failed."""
        if self._info is None:
            return
        _barrier()
        if not self._is_there():
            _log.error("the step %s was not saved: not all ranks could (their logs say why)", self._info.tag)

    def _sync_swapped(self) -> None:
        """What DeepSpeed itself has copied into the step: the swap files of an optimizer on NVMe."""
        folder = self._folder() / "offloaded_tensors" / f"rank{self._rank:02d}"
        if folder.is_dir():
            durable.sync(folder)
            durable.sync_one(folder.parent)

    def _point_to_it(self) -> None:
        if self._info is not None and self._info.save_latest:
            durable.replace(pathlib.Path(self._info.save_dir) / "latest", str(self._info.tag))

    def _finish(self) -> None:
        """Until this rank has done all it has to do for the last step."""
        step, self._step = self._step, None
        if step is None:
            return
        try:
            step.wait()
        except Exception:  # noqa: BLE001 - logged where it happened; training goes on
            pass
        finally:
            step.close()

    def _failed(self, problem: BaseException) -> None:
        if self._info is not None:
            _log.error("the step %s will not be saved: %s; `latest` stays what it is, and training goes on", self._info.tag,
                       problem)
        step, self._step = self._step, None
        if step is not None:
            step.close()

    # --- loading

    @contextlib.contextmanager
    def _while_loading(self, options: Mapping[str, Any]) -> Iterator[None]:
        self._finish()
        _barrier()  # the step that was saved last is there, and `latest`
        engine = self._engine()
        assert engine is not None, "its own function runs"
        self._loading = (options.get("load_module_strict", True) and not options.get("custom_load_fn")
                         and not engine.load_universal_checkpoint())
        try:
            yield
        finally:
            self._loading, self._again = False, (None, None)

    def load(self, path: str | os.PathLike[str], map_location: Any = None) -> Any:
        """As torch.load, but for what is executed (nothing that is not known), and for where it lands."""
        found, value = self._again
        self._again = (None, None)
        state = _identity(path)
        if found == state:  # DeepSpeed reads model_states.pt twice, the first time for one number
            return value
        if not zipfile.is_zipfile(path):
            _log.warning("%s: of torch's old format, read by torch.load", path)
            return torch.load(path, map_location=map_location, weights_only=True)
        file = torch_files.TorchFile(path, self.allow)
        value = file.read(self._places(file, path), _device_of(map_location))
        if self._loading and str(path).endswith("model_states.pt"):
            self._again = (state, value)
        return value

    def _places(self, file: torch_files.TorchFile, path: str | os.PathLike[str]) -> dict[str, torch.UntypedStorage]:
        """The memory that storages of the file belong to: {key: storage over it}."""
        engine = self._engine()
        if not self._loading or engine is None or not _is_own(engine, path):
            return {}
        places = _Places(file)
        for pairs in _pairs(file.outline(), engine):
            places.offer(pairs)
        return places.found()


def _finish_at_exit(reference: weakref.ref[CheckpointEngine]) -> None:
    engine = reference()
    if engine is not None and engine._process == os.getpid():
        engine._finish()


def _barrier() -> None:
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        torch.distributed.barrier()


def _ranks_of(engine: DeepSpeedEngine) -> tuple[int, int]:
    """This rank's number and how many there are, of those that see the same files."""
    if not engine.use_node_local_storage():
        return engine.global_rank, torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE"))
    if ranks is None:
        raise ValueError("use_node_local_storage: LOCAL_WORLD_SIZE has to say how many ranks this node has")
    return engine.local_rank, int(ranks)


def _device_of(map_location: Any) -> Callable[[str], str | torch.device]:
    """What torch.load's argument means for a storage that has no place."""
    if map_location is None:
        return lambda location: "cpu" if location == "cpu" or not torch.cuda.is_available() else memory.current()
    if isinstance(map_location, dict):
        return lambda location: map_location.get(location, location)
    return lambda _location: "cpu" if callable(map_location) else map_location


_Identity = tuple[str, int, int, int]


def _identity(path: str | os.PathLike[str]) -> _Identity:
    stat = os.stat(path)
    return str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns


# --- where what is loaded belongs


def _is_own(engine: DeepSpeedEngine, path: str | os.PathLike[str]) -> bool:
    """Is the file this rank's, of the same kind of run? Other ranks' are not its state."""
    path = pathlib.Path(path)
    if getattr(engine, "has_moe_layers", False) or engine.zero_elastic_checkpoint():
        return False
    names = [engine._get_ckpt_name(str(path.parent.parent), path.parent.name)]
    if hasattr(engine.optimizer, "dp_process_group"):
        names.append(engine._get_zero_ckpt_name(str(path.parent.parent), path.parent.name))
    return path.name in map(os.path.basename, names)


def _pairs(outline: object, engine: DeepSpeedEngine) -> Iterator[list[_Pair]]:
    """Lists of (saved, live) tensors, each of all that belongs together; nothing where the checkpoint is of another model,
    or of other ranks: that is for DeepSpeed to refuse, or to make the best of."""
    if not isinstance(outline, dict):
        return
    module, states = outline.get("module"), outline.get("optimizer_state_dict")
    if isinstance(module, dict) and engine.zero_optimization_stage() < 3 and \
            outline.get("mp_world_size") == engine.mp_world_size:
        live = engine.module.state_dict(keep_vars=True)
        if module.keys() == live.keys():
            yield [(tensor, live[name]) for name, tensor in module.items() if torch.is_tensor(live[name])]
    if isinstance(states, dict):
        yield from _optimizer_pairs(states, engine.optimizer)


def _optimizer_pairs(states: Mapping[str, Any], optimizer: Any) -> Iterator[list[_Pair]]:
    masters = getattr(optimizer, "fp32_partitioned_groups_flat", None)
    saved = states.get("fp32_flat_groups")
    if masters is None:
        masters, saved = (getattr(optimizer, "single_partition_of_fp32_groups", None),
                          states.get("single_partition_of_fp32_groups"))
    if not masters or not saved or len(masters) != len(saved) or \
            states.get("partition_count") != getattr(optimizer, "partition_count", None):
        return
    yield list(zip(saved, masters, strict=True))
    base = states.get("base_optimizer_state") or states.get("optimizer_state_dict")
    if not isinstance(base, dict) or set(base.get("state", {})) - set(range(len(masters))):
        return
    for number, state in base["state"].items():
        live = optimizer.optimizer.state.get(masters[number], {})
        yield [(tensor, live[name]) for name, tensor in state.items()
               if torch.is_tensor(tensor) and torch.is_tensor(live.get(name)) and tensor.dim() > 0]


class _Places:
    """Which storage of a file lands over which live one: whole over whole, with every tensor of either at its offset."""

    def __init__(self, file: torch_files.TorchFile) -> None:
        self._file = file
        # By key: the live storages that tensors of it belong to, by address.
        self._live: dict[str, dict[int, torch.UntypedStorage | None]] = {}
        self._keys: dict[int, set[str]] = {}  # by address of a live storage: the keys
        self._offered: collections.Counter[str] = collections.Counter()  # by key: how many of its tensors

    def offer(self, pairs: Iterable[_Pair]) -> None:
        for saved, live in pairs:
            if not torch.is_tensor(saved) or saved.numel() == 0:
                continue
            key, whole = self._file.key_of(saved), live.detach().untyped_storage()
            self._offered[key] += 1
            known = self._live.setdefault(key, {})
            if known.get(whole.data_ptr(), whole) is not None:
                known[whole.data_ptr()] = whole if self._fits(key, saved, live, whole) else None
            self._keys.setdefault(whole.data_ptr(), set()).add(key)

    def _fits(self, key: str, saved: torch.Tensor, live: torch.Tensor, whole: torch.UntypedStorage) -> bool:
        # A flat group is saved without its padding, as the beginning of its storage.
        same_shape = saved.shape == live.shape or (saved.dim() == live.dim() == 1 and saved.numel() <= live.numel())
        return bool(same_shape and saved.dtype == live.dtype and saved.stride() == live.stride()
                and saved.storage_offset() == live.storage_offset() and self._file.size_of(key) == whole.nbytes())

    def found(self) -> dict[str, torch.UntypedStorage]:
        return {key: whole for key, over in self._live.items() for address, whole in over.items()
                if len(over) == 1 and whole is not None and len(self._keys[address]) == 1
                and self._offered[key] == self._file.uses[key]}  # else somebody else would have the live memory, too
