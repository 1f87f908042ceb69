"""DeepSpeedEngine's load_checkpoint and save_checkpoint, as ckptfs.patch replaces them.

Whoever calls them, a Trainer, accelerate, Lightning or a program of one's own, gets ckptfs.deepspeed's functions, if
the engine's optimizer is on NVMe, and both its swap files and the checkpoint are on a ckptfs mount, on every rank. Any
engine of ZeRO gets the load, if the checkpoint is on a mount. Any other engine gets DeepSpeed's own. After any save on a
mount the ranks agree on a word for it, and tell their mounts (docs/remote.md, Several nodes).
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ckptfs.deepspeed
from ckptfs import mounts

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

_log = logging.getLogger("ckptfs")
_told: set[str] = set()


def install(engine_class: type[DeepSpeedEngine] | None) -> None:
    """Replaces both functions of the class; a second time it changes nothing."""
    replaced: tuple[tuple[str, Callable[..., bool], Callable[..., object], Callable[..., None] | None], ...] = (
        ("load_checkpoint", _takes_over_load, ckptfs.deepspeed.load_by, None),
        ("save_checkpoint", _takes_over_save, ckptfs.deepspeed.save_by, _tell_attempt))
    for name, takes_over, by, after in replaced:
        plain = getattr(engine_class, name, None)
        if plain is None:
            _tell(f"DeepSpeed's engine has no {name}: ckptfs.patch leaves it as it is")
        elif not hasattr(plain, "ckptfs"):
            setattr(engine_class, name, _replacement(plain, takes_over, by, after))


def _replacement(plain: Callable[..., object], takes_over: Callable[..., bool],
                 by: Callable[..., object], after: Callable[..., None] | None) -> Callable[..., object]:
    """`after`: called when DeepSpeed's own function has returned, if that was not taken over."""
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def method(engine: DeepSpeedEngine, *arguments: Any, **named: Any) -> object:
        if ckptfs.deepspeed.is_own_call():
            return plain(engine, *arguments, **named)
        _engine, *given = signature.bind(engine, *arguments, **named).arguments.items()
        if not takes_over(engine, **dict(given)):
            done = plain(engine, *arguments, **named)
            if after is not None:
                after(engine, **dict(given))
            return done
        return by(functools.partial(plain, engine), engine, **dict(given))

    method.ckptfs = True  # type: ignore[attr-defined] # so that it is known as ours
    return method


def _takes_over_load(engine: DeepSpeedEngine, load_dir: str, tag: str | None = None, load_optimizer_states: bool = True,
                     load_module_only: bool = False, **_: object) -> bool:
    ds = ckptfs.deepspeed
    if not (ds.is_swapped(engine) or ds.is_zero3(engine) or ds.is_zero12(engine)):
        return False
    if not load_optimizer_states or load_module_only or engine.load_universal_checkpoint():
        return False
    is_there = tag is not None or os.path.isfile(os.path.join(load_dir, "latest"))
    return ckptfs.deepspeed.on_all_ranks(is_there and _is_on_mount(engine, load_dir), engine.optimizer.dp_process_group)


def _takes_over_save(engine: DeepSpeedEngine, save_dir: str, **_: object) -> bool:
    """With a checkpoint engine that writes later, `latest` is that one's business."""
    if not ckptfs.deepspeed.is_swapped(engine) or ckptfs.deepspeed.saves_later(engine):
        return False
    if not ckptfs.deepspeed.on_all_ranks(_is_on_mount(engine, save_dir)):
        return False
    if not ckptfs.deepspeed.is_known_version():
        import deepspeed
        known = ", ".join(ckptfs.deepspeed.TESTED)
        _tell(f"ckptfs.patch does not know DeepSpeed {deepspeed.__version__} (known: {known}): it saves by itself, "
              "`latest` may name a step before it is durable, and a resume will be refused")
        return False
    return True


def _tell_attempt(engine: DeepSpeedEngine, save_dir: str, tag: str | None = None, **_: object) -> None:
    if not getattr(getattr(engine, "checkpoint_engine", None), "is_ckptfs", False):
        ckptfs.deepspeed.tell_attempt(engine, os.path.join(save_dir, str(tag or f"global_step{engine.global_steps}")))


def _is_on_mount(engine: DeepSpeedEngine, folder: str) -> bool:
    swapper = getattr(engine.optimizer, "optimizer_swapper", None)
    return mounts.holds(folder) and mounts.holds(getattr(swapper, "swap_folder", folder))


def _tell(what: str) -> None:
    """Once for each process."""
    if what not in _told:
        _told.add(what)
        _log.warning("%s", what)
