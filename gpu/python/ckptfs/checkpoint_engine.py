"""DeepSpeed's checkpoints past the page cache and past a copy in CPU memory: ckptfs.deepspeed.CheckpointEngine.

    engine.checkpoint_engine = ckptfs.deepspeed.CheckpointEngine(engine)     # after deepspeed.initialize

From then on engine.save_checkpoint returns when the tensors are copied out (the disk is waited for behind), and
engine.load_checkpoint reads each tensor to where it belongs: over the live one, where there is one. The files are
torch's own, as before, and every tool that reads DeepSpeed's checkpoints reads them.

A step appears whole, with its .pt files of all ranks, some time after save_checkpoint has returned (from the next
optimizer step on, which tells that all ranks are through), and `latest` after it; wait() waits for that. What a crash
left, or a rank that failed, never becomes a step. A save that fails is logged, and training goes on.
"""

import atexit
import logging
import os
import pathlib
import weakref

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine as _Base

from ckptfs import durable, torch_files
from ckptfs.saving import Save, new_attempt

_log = logging.getLogger("ckptfs")


def _deepspeed_classes():
    """What DeepSpeed leaves in its files as objects."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]


class CheckpointEngine(_Base):
    """See above. `seal`: steps on a ckptfs mount become read-only; `allow`: more classes that files may hold."""

    def __init__(self, engine, *, seal=True, allow=()):
        super().__init__()
        self.name = "ckptfs"
        self.seal, self.allow = seal, [*_deepspeed_classes(), *allow]
        self._engine = weakref.ref(engine)
        self._step, self._info, self._released, self._again = None, None, False, (None, None)
        if engine.checkpoint_engine is not None:
            engine.checkpoint_engine.cleanup()
        atexit.register(_finish_at_exit, weakref.ref(self))

    # --- saving

    def is_decoupled(self):
        return True

    def create(self, info):
        """Called by every rank, before anything of a step is saved."""
        self._again = (None, None)
        self._finish()
        self._info, self._released = info, False
        rank, world_size = self._ranks()
        attempt = new_attempt(world_size)
        try:
            pathlib.Path(info.save_dir).mkdir(parents=True, exist_ok=True)
            self._step = Save(info.save_dir, info.tag, attempt, rank, world_size, device=_device(), seal=self.seal)
        except Exception as problem:  # noqa: BLE001 - training goes on
            self._failed(problem)

    def makedirs(self, path, exist_ok=False):
        """The step's own folder appears with its files."""
        if self._info is None or pathlib.Path(path) != self._folder():
            super().makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict, path):
        """Returns when the tensors are copied."""
        path = pathlib.Path(path)
        if self._info is None or path.parent != self._folder():
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

    def commit(self, info):
        """Of save_16bit_model, whose file is no part of a step."""
        return True

    def get_commit_info(self):
        """Asked before each optimizer step: by then every rank has returned from save_checkpoint."""
        self._release()
        return None  # the step, and `latest`, appear by themselves

    def wait(self):
        """By every rank: until the step that was saved last is there. False: it will never be; the log says why."""
        if self._info is None:
            return False
        self._finish()
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        return any(self._folder().glob("*.pt"))

    def cleanup(self):
        self._finish()

    def _folder(self):
        return pathlib.Path(self._info.save_dir) / str(self._info.tag)

    def _ranks(self):
        engine = self._engine()
        if engine.use_node_local_storage():
            return engine.local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_SIZE", "1")))
        return engine.global_rank, engine.world_size

    def _release(self):
        if self._step is None or self._released:
            return
        self._released = True
        info = self._info

        def point_to_it():
            if info.save_latest:
                durable.replace(pathlib.Path(info.save_dir) / "latest", str(info.tag))

        self._step.finish_behind(point_to_it)

    def _finish(self):
        """Until this rank has done all it has to do for the last step."""
        if self._step is None:
            return
        step = self._step
        try:
            self._release()
            step.wait()
        except Exception:  # noqa: BLE001 - logged where it happened; training goes on
            pass
        finally:
            self._step = None
            step.close()

    def _failed(self, problem):
        _log.error("the step %s will not be saved: %s; `latest` stays what it is, and training goes on", self._info.tag,
                   problem)
        step, self._step = self._step, None
        if step is not None:
            step.close()

    # --- loading

    def load(self, path, map_location=None):
        """As torch.load, but for what is executed (nothing that is not known), and for where it lands."""
        found, value = self._again
        self._again = (None, None)
        state = _identity(path)
        if found == state:  # DeepSpeed reads model_states.pt twice, the first time for one number
            return value
        file = torch_files.TorchFile(path, self.allow)
        value = file.read(self._places(file, path), _device_of(map_location))
        if str(path).endswith("model_states.pt"):
            self._again = (state, value)
        return value

    def _places(self, file, path):
        """The memory that storages of the file belong to: {key: storage over it}."""
        engine = self._engine()
        if engine is None or not self._is_own(path):
            return {}
        outline = file.outline()
        places = {}
        for saved, live in _pairs(outline, engine):
            _offer(places, file, saved, live)
        return {key: storage for key, storage in places.items() if storage is not None}

    def _is_own(self, path):
        """Other ranks' files are not this one's state."""
        path, engine = pathlib.Path(path), self._engine()
        if path.name.endswith("model_states.pt"):
            return True
        return path.name == os.path.basename(engine._get_zero_ckpt_name(str(path.parent.parent), path.parent.name))


def _finish_at_exit(reference):
    engine = reference()
    if engine is not None:
        engine._finish()


def _device():
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "twin"


def _device_of(map_location):
    """What torch.load's argument means for a storage that has no place."""
    if map_location is None:
        return lambda location: "cpu" if location == "cpu" or not torch.cuda.is_available() else _device()
    if isinstance(map_location, dict):
        return lambda location: map_location.get(location, location)
    return lambda _location: "cpu" if callable(map_location) else map_location


def _identity(path):
    stat = os.stat(path)
    return str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns


def _pairs(outline, engine):
    """(saved, live) tensors of a file of DeepSpeed's. What is not known to it has no pair, and is just loaded."""
    if not isinstance(outline, dict):
        return
    module = outline.get("module")
    if isinstance(module, dict) and engine.zero_optimization_stage() < 3:
        live = engine.module.state_dict(keep_vars=True)
        yield from ((tensor, live.get(name)) for name, tensor in module.items())
    states = outline.get("optimizer_state_dict")
    if not isinstance(states, dict):
        return
    masters = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)
    if masters is None:
        masters = getattr(engine.optimizer, "single_partition_of_fp32_groups", [])
    saved = states.get("fp32_flat_groups") or states.get("single_partition_of_fp32_groups") or []
    yield from zip(saved, masters, strict=False)
    base = states.get("base_optimizer_state") or states.get("optimizer_state_dict")
    if not isinstance(base, dict) or len(masters) != len(saved):
        return
    kept = getattr(engine.optimizer.optimizer, "state", {})
    for number, state in base.get("state", {}).items():
        if isinstance(number, int) and number < len(masters) and masters[number] in kept:
            live = kept[masters[number]]
            yield from ((tensor, live.get(name)) for name, tensor in state.items())


def _offer(places, file, saved, live):
    """The storage of `saved` is put over the memory of `live` if all that it holds finds its place there."""
    if not (torch.is_tensor(saved) and torch.is_tensor(live)) or saved.numel() == 0:
        return
    key = file.key_of(saved)
    live = live.detach()
    fits = saved.dtype == live.dtype and saved.is_contiguous() and live.is_contiguous()
    size, whole = file.size_of(key), live.untyped_storage()
    begin = live.storage_offset() * live.element_size() - saved.storage_offset() * saved.element_size()
    if not fits or saved.numel() > live.numel() or begin < 0 or begin + size > whole.nbytes():
        places[key] = None  # no place fits all that wants it
        return
    if key not in places:
        places[key] = whole[begin:begin + size]
    elif places[key] is not None and places[key].data_ptr() != whole.data_ptr() + begin:
        places[key] = None

