"""Steps of tensors, saved while the training goes on."""

import ctypes
import logging
import os
import threading
import uuid

import torch

from ckptfs import memory, native

_log = logging.getLogger("ckptfs")


def _distributed():
    import torch.distributed as dist
    return dist if dist.is_available() and dist.is_initialized() else None


def _world(rank, world_size):
    dist = _distributed()
    if rank is None:
        rank = dist.get_rank() if dist else 0
    if world_size is None:
        world_size = dist.get_world_size() if dist else 1
    return rank, world_size


def new_attempt(world_size: int = 1) -> str:
    """A word for one attempt to save a step, the same on all ranks; where there are several, all of them call this."""
    word = [uuid.uuid4().hex[:12]]
    dist = _distributed()
    if dist is not None and dist.get_world_size() > 1:
        dist.broadcast_object_list(word, src=0)
    elif world_size > 1:
        raise ValueError("several ranks, and no torch.distributed to agree by: give all of them the same `attempt`")
    return word[0]


class Save:
    """One rank's part of a step on its way to the disk.

    wait_copied() returns when the tensors may be changed, wait_durable() when this rank's files are on the disk,
    commit() makes the step appear once all ranks are there. finish_behind() waits for the copies and does the last two on
    a thread; wait() waits for all. Errors are raised by whoever waits, and logged, as OSError. What was never committed
    lies in partial-ATTEMPT-TAG, is listed by `ckptfs ls`, and is rotation's (keep_partial). From one thread at a time.
    """

    def __init__(self, series, tag, attempt, rank, world_size, *, device="twin", seal=True):
        self.tag, self.attempt, self.seal, self.device = tag, attempt, seal, device
        self.committed = False
        self._handle, self._owner = ctypes.c_void_p(), os.getpid()
        self._held = []  # tensors that are being copied
        self._thread, self._failure, self._finished = None, None, False
        native.call("ckptfs_save_begin", native.ring(device), os.fsencode(series), tag.encode(), attempt.encode(), rank,
                    world_size, ctypes.byref(self._handle))
        self.folder = os.fsdecode(native.library().ckptfs_save_folder(self._handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()

    def close(self):
        """Waits for what is under way. A step that was not committed stays as it is."""
        if os.getpid() != getattr(self, "_owner", None):  # a child of fork: its parent's, and its parent's thread
            return
        self._join()
        if self._handle:
            handle, self._handle = self._handle, None
            native.library().ckptfs_save_close(handle)

    def _join(self):
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _call(self, name, *arguments):
        if not self._handle:
            raise ValueError(f"the save of {self.tag} is closed")
        native.call(name, self._handle, *arguments)

    def add_tensors(self, name, tensors, stream=None):
        """Begins to save a dict of tensors as the safetensors file `name`."""
        self._check_device(tensors.values())
        with memory.on(self.device, stream):
            held = {key: tensor.detach().resolve_conj().resolve_neg().contiguous() for key, tensor in tensors.items()}
        saved = (native.SavedTensor * len(held))()
        for one, (key, tensor) in zip(saved, held.items(), strict=True):
            shape = (ctypes.c_uint64 * tensor.dim())(*tensor.shape)
            one.name, one.dtype = key.encode(errors="surrogateescape"), memory.name_of(tensor.dtype).encode()
            one.shape, one.dimensions = shape, tensor.dim()
            one.memory, one.bytes = memory.span(tensor)
        self._held.append(held)
        self._call("ckptfs_save_tensors", name.encode(), saved, len(held), memory.stream_of(self.device, stream))

    def _check_device(self, tensors):
        device = memory.device_of(tensors)
        if device not in ("twin", self.device):
            raise ValueError(f"tensors of {device}, and the save is for those of {self.device}")

    def add_file(self, name, size, parts, stream=None, keep=None):
        """Begins to save a file of `size` bytes made of (address, bytes, offset); `keep` owns that memory."""
        native_parts = (native.Part * len(parts))()
        for part, (address, length, offset) in zip(native_parts, parts, strict=True):
            part.memory, part.bytes, part.offset = address, length, offset
        self._held.append(keep)
        self._call("ckptfs_save_file", name.encode(), size, native_parts, len(parts),
                   memory.stream_of(self.device, stream))

    def add_bytes(self, name, content):
        """Begins to save a small file."""
        buffer = ctypes.create_string_buffer(content, len(content))
        self.add_file(name, len(content), [(ctypes.addressof(buffer), len(content), 0)], keep=buffer)

    def wait_copied(self) -> None:
        if self._thread is None:  # else it has waited
            self._call("ckptfs_save_wait_copied")
        self._held.clear()

    def wait_durable(self) -> None:
        self._call("ckptfs_save_wait_durable")
        self._held.clear()

    def commit(self) -> bool:
        """True: the step is there. False: other ranks are not done, and the last of them will commit it."""
        committed = ctypes.c_int()
        self._call("ckptfs_save_commit", int(self.seal), ctypes.byref(committed))
        self.committed = bool(committed.value)
        return self.committed

    def finish_behind(self, then=None, before=None):
        """wait_durable() and commit() on a thread; there `before` is called first, and `then` once this rank has seen the
        step."""
        self.wait_copied()
        thread = threading.Thread(target=self._finish, args=(before, then), name=f"ckptfs save {self.tag}")
        try:
            thread.start()
        except RuntimeError as problem:  # no more threads, or the interpreter ends: then here
            _log.info("the step %s is finished without a thread: %s", self.tag, problem)
            self._finish(before, then)
        else:
            self._thread = thread

    def _finish(self, before, then):
        try:
            if before is not None:
                before()
            self.wait_durable()
            self.commit()
            if self.committed and then is not None:
                then()
        except Exception as problem:  # noqa: BLE001 - whoever waits gets it
            self._failure = problem
            _log.error("the step %s %s: %s", self.tag, "is there, but not all that was to follow" if self.committed
                       else "was not saved", problem)
        self._finished = True

    def wait(self) -> bool:
        """Until all is done that this rank has to do; raises what went wrong. True: the step is there."""
        if self._thread is None and not self._finished:
            self.wait_durable()
            return self.commit()
        self._join()
        if self._failure is not None:
            raise self._failure
        return self.committed


class Saver:
    """Saves dicts of tensors as steps of a series (a folder, on a ckptfs mount or not).

        saver = ckptfs.Saver("/ckpt/steps")
        save = saver.save("step_100", model.state_dict())
        save.wait_copied()      # before the next optimizer step
        save.wait()             # whenever: on the disk, and there

    Of several ranks each saves its own tensors (rank00.safetensors, ...), and all of them call save() for the same tag.
    """

    def __init__(self, series: "str | os.PathLike", *, rank: "int | None" = None, world_size: "int | None" = None,
                 seal: bool = True):
        self.series, self.seal = os.fspath(series), seal
        self.rank, self.world_size = _world(rank, world_size)

    def save(self, tag: str, tensors: "dict[str, torch.Tensor]", *, attempt: "str | None" = None,
             stream: "torch.cuda.Stream | None" = None) -> "Save":
        """Begins it, and returns a Save. `attempt`: where no torch.distributed finds one that all ranks know."""
        if attempt is None:
            attempt = new_attempt(self.world_size)
        save = Save(self.series, str(tag), attempt, self.rank, self.world_size,
                    device=memory.device_of(tensors.values()), seal=self.seal)
        try:
            save.add_tensors(f"rank{self.rank:02d}.safetensors", tensors, stream)
        except BaseException:
            save.close()
            raise
        return save
