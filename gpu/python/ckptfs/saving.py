"""Steps of tensors, saved while the training goes on."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist

from ckptfs import memory, native, pieces
from ckptfs.agreement import Agreed, Agreement
from ckptfs.group import LONG_SLEEP, Group, GroupError

if TYPE_CHECKING:
    import types

    from torch.distributed import ProcessGroup

__all__ = ["Save", "Saver", "new_attempt"]

_Places = Mapping[str, tuple[str, Sequence[int], Sequence[int]]]
_AnySave = TypeVar("_AnySave", bound="Save")
_log = logging.getLogger("ckptfs")


# Seconds until a rank gives up the others, which are there and do not become durable.
_PATIENCE = 1800
_SECONDS_TO_SEE = 30  # until a rank sees what other ranks have written
_BESIDE_COPIES = 32 << 20  # bytes: of the header, and of slots that are not full


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _world(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None:
        rank = dist.get_rank() if _is_distributed() else 0
    if world_size is None:
        world_size = dist.get_world_size() if _is_distributed() else 1
    return rank, world_size


def new_attempt(world_size: int = 1) -> str:
    """A word for one attempt to save a step, the same on all ranks; where there are several, all of them call this."""
    word = [uuid.uuid4().hex[:12]]
    if _is_distributed() and dist.get_world_size() > 1:
        dist.broadcast_object_list(word, src=0)
    elif world_size > 1:
        raise ValueError("several ranks, and no torch.distributed to agree by: give all of them the same `attempt`")
    return word[0]


class Save:
    """One rank's part of a step on its way to the disk. `Saver.save` makes it.

    Who waits gets the errors. What was never committed lies in `partial-ATTEMPT-TAG`: `ckptfs ls` lists it, and the rule
    `keep_partial` removes it. `with` closes the save at its end.
    """

    def __init__(self, series: str | os.PathLike[str], tag: str, attempt: str, rank: int, world_size: int, *,
                 device: str = "twin", seal: bool = True, ring: native.OwnRing | None = None, digests: bool = False) -> None:
        self.tag, self.attempt, self.seal, self.device = tag, attempt, seal, device
        self.committed = False
        self._handle: ctypes.c_void_p | None = ctypes.c_void_p()
        self._owner = os.getpid()
        self._held: list[object] = []  # what is being copied
        self._ring = ring  # where to; None: the process's ring
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._finished = False
        handle = native.ring(device) if ring is None else ring.handle
        native.call("ckptfs_save_begin", handle, os.fsencode(series), tag.encode(), attempt.encode(), rank,
                    world_size, ctypes.byref(self._handle))
        self._call("ckptfs_save_digests", int(digests))
        self.folder = os.fsdecode(native.library().ckptfs_save_folder(self._handle))

    def __enter__(self: _AnySave) -> _AnySave:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Waits for what is under way. A step that was not committed stays as it is, and never becomes one."""
        if os.getpid() != getattr(self, "_owner", None):  # a child of fork: its parent's, and its parent's thread
            return
        self._join()
        if self._handle:
            handle, self._handle = self._handle, None
            native.library().ckptfs_save_close(handle)

    def _join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _call(self, name: str, *arguments: object) -> None:
        if not self._handle:
            raise ValueError(f"the save of {self.tag} is closed")
        native.call(name, self._handle, *arguments)

    def _fail(self, problem: object) -> None:
        """Called once this rank's part cannot be saved any more."""

    def wait_copied(self) -> None:
        """Returns when the tensors may be changed."""
        if self._thread is None:  # else it has waited
            self._call("ckptfs_save_wait_copied")
        self._held.clear()

    def wait_durable(self) -> None:
        """Returns when this rank's files are on the disk."""
        self._call("ckptfs_save_wait_durable")
        self._held.clear()

    def commit(self) -> bool:
        """Makes the step appear, once all ranks are durable. False: others are not, and the last of them will do it."""
        committed = ctypes.c_int()
        self._call("ckptfs_save_commit", int(self.seal), ctypes.byref(committed))
        self.committed = bool(committed.value)
        return self.committed

    def finish_behind(self, then: Callable[[], object] | None = None, before: Callable[[], object] | None = None) -> None:
        """Waits for the copies, and does the rest on a thread: `before`, wait_durable(), commit(), and `then`, if this
        rank has seen the step appear."""
        self.wait_copied()
        thread = threading.Thread(target=self._finish, args=(before, then), name=f"ckptfs save {self.tag}")
        try:
            thread.start()
        except RuntimeError as problem:  # no more threads, or the interpreter ends: then here
            _log.info("the step %s is finished without a thread: %s", self.tag, problem)
            self._finish(before, then)
        else:
            self._thread = thread

    def _finish(self, before: Callable[[], object] | None, then: Callable[[], object] | None) -> None:
        try:
            if before is not None:
                before()
            self.wait_durable()
            self.commit()
            if self.committed and then is not None:
                then()
        except Exception as problem:  # noqa: BLE001 - whoever waits gets it
            self._failure = problem
            self._fail(problem)
            _log.error("the step %s %s: %s", self.tag, "is there, but not all that was to follow" if self.committed
                       else "was not saved", problem)
        self._finished = True

    def wait(self) -> bool:
        """Waits until this rank is done, or raises what went wrong. True: the step is there."""
        if self._thread is None and not self._finished:
            self.wait_durable()
            return self.commit()
        self._join()
        if self._failure is not None:
            raise self._failure
        return self.committed

    def add_bytes(self, name: str, content: bytes) -> None:
        """Adds a small file to the step, before wait_durable(). The content is copied."""
        buffer = ctypes.create_string_buffer(content, len(content))
        self.add_file(name, len(content), [(ctypes.addressof(buffer), len(content), 0)], keep=buffer)

    # --- for the adapters

    def add_tensors(self, name: str, tensors: Mapping[str, torch.Tensor], stream: torch.cuda.Stream | None = None,
                    places: _Places | None = None) -> None:
        """Begins to save one more safetensors file, `name`. `places` says of which tensor a piece is a box: its name, its
        shape, and the piece's offsets. The tensors must not change before wait_copied()."""
        self._check_device(tensors.values())
        with memory.on(stream):
            held = {key: tensor.detach().resolve_conj().resolve_neg().contiguous() for key, tensor in tensors.items()}
        saved = (native.SavedTensor * len(held))()
        for one, (key, tensor) in zip(saved, held.items(), strict=True):
            shape = (ctypes.c_uint64 * tensor.dim())(*tensor.shape)
            one.name, one.dtype = native.encoded(key), memory.name_of(tensor.dtype).encode()
            one.shape, one.dimensions = shape, tensor.dim()
            one.memory, one.bytes = memory.span(tensor)
            if places and key in places:
                of, whole, offsets = places[key]
                one.of = native.encoded(of)
                one.whole, one.offsets = (ctypes.c_uint64 * len(whole))(*whole), (ctypes.c_uint64 * len(whole))(*offsets)
        self._held.append(held)
        self._call("ckptfs_save_tensors", name.encode(), saved, len(held), memory.stream_of(self.device, stream))

    def _check_device(self, tensors: Iterable[torch.Tensor]) -> None:
        device = memory.device_of(tensors)
        if device not in ("twin", self.device):
            raise ValueError(f"tensors of {device}, and the save is for those of {self.device}")

    def add_file(self, name: str, size: int, parts: Sequence[tuple[int, int, int]],
                 stream: torch.cuda.Stream | None = None, keep: object = None) -> None:
        """Begins to save a file of `size` bytes made of parts: (address, bytes, offset in the file). `keep` owns that
        memory, and is kept until it is copied."""
        native_parts = (native.Part * len(parts))()
        for part, (address, length, offset) in zip(native_parts, parts, strict=True):
            part.memory, part.bytes, part.offset = address, length, offset
        self._held.append(keep)
        self._call("ckptfs_save_file", name.encode(), size, native_parts, len(parts),
                   memory.stream_of(self.device, stream))

    def note(self, stage: str, seconds: float) -> None:
        """Adds seconds to a stage of the step's timing (`ckptfs show --timing`), before wait_durable()."""
        self._call("ckptfs_save_note", stage.encode(), seconds)


def _durable(attempt: str) -> str:
    """The key by which the ranks of a group count who is durable; and those of what they tell each other."""
    return f"{attempt}/durable"


def _failed(attempt: str) -> str:
    return f"{attempt}/failed"


def _committed(attempt: str) -> str:
    return f"{attempt}/committed"


def _left(attempt: str) -> str:
    return f"{attempt}/left"


class _GroupSave(Save):
    """A Save that all ranks of a group make together: commit() returns when the step is there, and never before.

    commit() and wait() raise GroupError, on every rank, if a rank failed, ended, or closed its save too early.
    """

    def __init__(self, group: Group, *arguments: Any, **named: Any) -> None:
        self._group, self._told, self._left = group, False, False
        super().__init__(*arguments, **named)

    def close(self) -> None:
        if getattr(self, "_handle", None) and os.getpid() == getattr(self, "_owner", None):
            self._join()
            if not self.committed and not self._told:
                _log.error("the step %s was not saved: its save was closed before it was committed", self.tag)
                self._fail("its save was closed before it was committed")
            self._leave()
        super().close()

    def wait_copied(self) -> None:
        self._try(super().wait_copied)

    def wait_durable(self) -> None:
        self._try(super().wait_durable)

    def _try(self, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as problem:
            self._fail(problem)
            raise

    def commit(self) -> bool:
        if self.committed:
            return True
        if self._told:
            raise GroupError(f"the step {self.tag} was not saved: this rank has given it up")
        self._try(self._commit_together)
        with contextlib.suppress(GroupError):  # then they look for the step
            self._group.tell(_committed(self.attempt), "1")
        self.committed = True
        self._leave()
        return True

    def _commit_together(self) -> None:
        last = self._group.count(_durable(self.attempt)) == self._group.size
        self._check_others()
        if not last:
            self._wait_for_others()
            return
        seen_by = time.monotonic() + _SECONDS_TO_SEE
        while not super().commit():
            if time.monotonic() > seen_by:
                raise GroupError(f"the step {self.tag} was not saved: all ranks are durable, and their files are not all "
                                 f"in {self.folder}; do all ranks see one folder?")
            time.sleep(LONG_SLEEP)

    def _check_others(self) -> None:
        failed = self._group.told(_failed(self.attempt))
        if failed:
            raise GroupError(f"the step {self.tag} was not saved: {failed}")

    def _wait_for_others(self) -> None:
        def is_decided() -> str | None:
            self._check_others()
            return self._group.told(_committed(self.attempt))

        try:
            self._group.wait_until(is_decided, time.monotonic() + _PATIENCE, LONG_SLEEP)
        except GroupError:
            if not self._failed_elsewhere() and super().commit():  # the rank that committed could not tell
                return
            raise

    def _failed_elsewhere(self) -> str | None:
        try:
            return self._group.told(_failed(self.attempt))
        except GroupError:  # who could tell is gone
            return None

    def _leave(self) -> None:
        """This rank asks no more. The last one removes what the ranks told each other of this save."""
        if self._left:
            return
        self._left = True
        with contextlib.suppress(GroupError):
            if self._group.count(_left(self.attempt)) == self._group.size:
                self._group.forget([key(self.attempt) for key in (_durable, _failed, _committed, _left)])

    def _fail(self, problem: object) -> None:
        """Tells the other ranks, once, that this one will not become durable."""
        if self.committed or self._told:
            return
        self._told = True
        with contextlib.suppress(GroupError):  # then they see it by themselves
            if not self._group.told(_failed(self.attempt)):  # the first failure is the cause
                self._group.tell(_failed(self.attempt), f"rank {self._group.rank}: {problem}")


class Saver:
    """Saves dicts of tensors as steps of a series, which is a folder.

        saver = ckptfs.Saver("/ckpt/steps")
        save = saver.save("step_100", model.state_dict())
        save.wait_copied()      # before the next optimizer step: from here on the tensors may change
        save.wait()             # whenever: durable, and the step is there

    Each rank makes a Saver and calls `save` for the same tags. It saves its own tensors, in `rank00.safetensors` and so
    on. `rank` and `world_size` are by default those of torch.distributed, or 0 and 1.

    With `group`, a process group of torch.distributed or True for the default one, the tensors of all ranks are one
    state: what several ranks hold is written once, DTensors and Slices are pieces of whole tensors, and any number of
    ranks can load the step.

    `seal` makes the step read-only on a ckptfs mount. With `copies` the Saver keeps memory for all that this rank writes,
    so that wait_copied() waits for no disk. With `digests` the step has a digest of each MiB, which loads check.
    """

    def __init__(self, series: str | os.PathLike[str], *, group: ProcessGroup | Literal[True] | None = None,
                 rank: int | None = None, world_size: int | None = None, seal: bool = True, copies: bool = False,
                 digests: bool = False) -> None:
        self.series, self.seal, self._digests = os.fspath(series), seal, digests
        self._copies = copies
        self._ring: native.OwnRing | None = None
        self._group = None if group is None else Group(None if group is True else group)
        if self._group is None:
            self.rank, self.world_size = _world(rank, world_size)
            return
        if rank is not None or world_size is not None:
            raise ValueError("the group tells rank and world_size")
        self.rank, self.world_size = self._group.rank, self._group.size
        self._agreement = Agreement(self._group, "steps", whole=True)
        self._saves: weakref.WeakSet[_GroupSave] = weakref.WeakSet()

    def close(self) -> None:
        """Ends a group's Saver once its saves are through: the other ranks no longer wait for this one."""
        if self._group is not None:
            for save in list(self._saves):
                save._join()
            self._group.close()

    def save(self, tag: str, tensors: Mapping[str, pieces.State], *, attempt: str | None = None,
             stream: torch.cuda.Stream | None = None) -> Save:
        """Begins to save. The tensors must not change before wait_copied(), and are kept until then. Without a group
        `tensors` is a plain dict. `attempt`: a word that all ranks know, if there is no torch.distributed to agree by.
        TypeError, ValueError: something cannot be saved. GroupError: a rank has failed."""
        if self._group is not None:
            return self._save_together(self._group, str(tag), tensors, stream)
        if attempt is None:
            attempt = new_attempt(self.world_size)
        plain = cast(Mapping[str, torch.Tensor], tensors)  # what is none fails here
        save = self._begin(Save, str(tag), attempt, plain)
        return self._begun(save, plain, stream)

    def _save_together(self, group: Group, tag: str, state: pieces.State, stream: torch.cuda.Stream | None) -> Save:
        holdings: list[pieces.Holding] = []

        def describe() -> list[pieces.Holding]:
            holdings.extend(pieces.holdings_of(state))
            return holdings

        agreed = self._agreement.agree(tag, describe)
        try:
            return self._save_planned(group, tag, holdings, agreed, stream)
        except BaseException as problem:
            with contextlib.suppress(GroupError):
                group.tell(_failed(agreed.attempt), f"rank {self.rank}: {str(problem) or type(problem).__name__}")
            raise

    def _save_planned(self, group: Group, tag: str, holdings: list[pieces.Holding], agreed: Agreed,
                      stream: torch.cuda.Stream | None) -> Save:
        with memory.on(stream):
            tensors, places = pieces.to_write(holdings, agreed.plan.owned)
        save = self._begin(functools.partial(_GroupSave, group), tag, agreed.attempt, tensors)
        self._saves.add(save)
        for stage, seconds in agreed.seconds.items():
            save.note(stage, seconds)
        return self._begun(save, tensors, stream, places)

    def _begin(self, make: Callable[..., _AnySave], tag: str, attempt: str,
               tensors: Mapping[str, torch.Tensor]) -> _AnySave:
        device = memory.device_of(tensors.values())
        return make(self.series, tag, attempt, self.rank, self.world_size, device=device, seal=self.seal,
                    digests=self._digests, ring=self._room_for(tensors, device) if self._copies else None)

    def _room_for(self, tensors: Mapping[str, torch.Tensor], device: str) -> native.OwnRing:
        """A ring that holds a copy of all of them. The one before is closed with the last save that uses it."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) + _BESIDE_COPIES
        if self._ring is None or self._ring.size < size or self._ring.device != device:
            self._ring = native.OwnRing(device, size)
        return self._ring

    def _begun(self, save: Save, tensors: Mapping[str, torch.Tensor], stream: torch.cuda.Stream | None,
               places: _Places | None = None) -> Save:
        try:
            save.add_tensors(f"rank{self.rank:02d}.safetensors", tensors, stream, places)
        except BaseException as problem:
            save._fail(problem)
            save.close()
            raise
        return save
