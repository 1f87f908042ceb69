"""Loads or saves a checkpoint in one way for each line of input; child.py starts it.

load: {"how", "path"} -> {"seconds", "extra": on the first load, the peak of memory above what was loaded}
save: {"how", "series", "tag", "size"} -> {"seconds", "copied", "extra"}

`how`: "twin" and "host" are libckptfs with the memory of its twin device or with host memory. The others are loaders of
Python (Loader), which take {"do": "prepare", "tensors", "values"} first.
"""

import ctypes
import json
import mmap
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "gpu", "python"))


def status(field):
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


class Memory:
    """Allocates memory of that size and touches all of it."""

    def __init__(self, how, size):
        from ckptfs import native
        self.native, self.how, self.size = native, how, size
        if how == "twin":
            address = ctypes.c_void_p()
            native.call("ckptfs_memory_allocate", native.ring("twin"), size, ctypes.byref(address))
            self.address = address.value
        else:
            self.map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
            ctypes.memset(self.address, 1, size)


class Ours:
    def __init__(self, how):
        from ckptfs import native
        self.native, self.how, self.memory = native, how, None
        native.library()

    def room(self, size):
        if self.memory is None or self.memory.size < size:
            self.memory = Memory(self.how, size)
        return self.memory.address

    def load(self, path):
        native = self.native
        with native.checkpoint(path) as checkpoint:
            library, spans, end = native.library(), [], 0
            for number in range(library.ckptfs_checkpoint_tensors(checkpoint)):
                tensor = native.Tensor()
                native.call("ckptfs_checkpoint_tensor", checkpoint, number, ctypes.byref(tensor))
                spans.append((number, end, tensor.bytes))
                end += tensor.bytes
            first = self.memory is None
            address = self.room(end)
            targets = (native.Target * len(spans))(*((number, 0, size, address + at) for number, at, size in spans))
            report = native.LoadReport()
            if first and self.how == "twin":  # a load is the only way to touch the twin's memory
                native.call("ckptfs_load", checkpoint, native.ring("twin"), targets, len(spans), None, ctypes.byref(report))
            start = time.monotonic()
            native.call("ckptfs_load", checkpoint, native.ring("twin"), targets, len(spans), None, ctypes.byref(report))
            return {"seconds": time.monotonic() - start, "bytes": end, "direct": report.direct}

    def save(self, series, tag, size):
        native, parts, tensors = self.native, 64, []
        address = self.room(size)
        names = [f"layers.{number}.weight".encode() for number in range(parts)]
        shape = (ctypes.c_uint64 * 1)(size // parts)
        tensors = (native.SavedTensor * parts)(*((name, b"U8", shape, 1, address + number * (size // parts), size // parts)
                                                 for number, name in enumerate(names)))
        ring, save = native.ring("twin"), ctypes.c_void_p()
        start = time.monotonic()
        native.call("ckptfs_save_begin", ring, os.fsencode(series), tag.encode(), b"bench", 0, 1, ctypes.byref(save))
        native.call("ckptfs_save_tensors", save, b"rank00.safetensors", tensors, parts, None)
        native.call("ckptfs_save_wait_copied", save)
        copied = time.monotonic() - start
        native.call("ckptfs_save_wait_durable", save)
        seconds, committed = time.monotonic() - start, ctypes.c_int()
        native.call("ckptfs_save_commit", save, 0, ctypes.byref(committed))
        native.library().ckptfs_save_close(save)
        return {"seconds": seconds, "copied": copied, "bytes": size}


class Loader:
    """A library of Python, or read(2), with all that it imports. It loads into memory that was touched before.

    `into`: the tensors of a model. ckptfs.load and read(2) fill them; what maps the file (MAPS) is copied into them, so
    that every byte is read. The others make their tensors by themselves, from memory that malloc has kept for them; only
    fastsafetensors asks the kernel for it.
    """

    MAPS = ("torch.load, mmap", "safetensors")
    FILLS = ("ckptfs.load", "read(2)")

    def __init__(self, how):
        self.how, self.into, self.loaded = how, {}, {}
        import safetensors.torch
        import torch
        self.torch, self.safetensors = torch, safetensors.torch
        torch.set_num_threads(2)
        if how == "fastsafetensors":
            import fastsafetensors
            self.library = fastsafetensors
        elif how == "runai-model-streamer":
            import runai_model_streamer
            self.library = runai_model_streamer
        elif how == "ckptfs.load":
            import ckptfs.loading
            import ckptfs.native
            ckptfs.native.library()
            self.library = ckptfs

    def prepare(self, tensors, values):
        """Touches the memory for so many tensors of so many bf16 values."""
        if self.how in (*self.MAPS, *self.FILLS):
            self.into = {f"layers.{number}.weight": self.torch.ones(values, dtype=self.torch.bfloat16)
                         for number in range(tensors)}
        else:
            keep_freed_memory()
            self.torch.ones(tensors * values, dtype=self.torch.bfloat16)
        return {"bytes": tensors * values * 2}

    def load(self, path):
        start = time.monotonic()
        found = self.tensors(path)
        if self.how in self.MAPS:
            for name, tensor in found.items():
                self.into[name].copy_(tensor)
            found = self.into
        seconds, peak = time.monotonic() - start, status("VmHWM")
        self.loaded = found  # until the process ends
        return {"seconds": seconds, "bytes": sum(one.nbytes for one in found.values()), "peak": peak,
                "sum": sum(int(one.view(self.torch.int32).sum()) for one in found.values())}

    def tensors(self, path):
        if self.how == "torch.load":
            return self.torch.load(path, map_location="cpu", weights_only=True)
        if self.how == "torch.load, mmap":
            return self.torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if self.how.startswith("safetensors"):
            return self.safetensors.load_file(path, backend="pread" if self.how == "safetensors, pread" else "mmap")
        if self.how == "ckptfs.load":
            return self.library.load(path, into=self.into)
        if self.how == "read(2)":
            return self.read(path)
        if self.how == "fastsafetensors":
            with self.library.fastsafe_open(path, framework="pt", device="cpu", nogds=True) as file:
                return {name: file.get_tensor(name) for name in file.keys()}
        with self.library.SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return dict(streamer.get_tensors())

    def read(self, path):
        """Copies the data of a .safetensors file into `into` by one preadv(2), in the order of the file."""
        file = os.open(path, os.O_RDONLY)
        try:
            header = int.from_bytes(os.pread(file, 8, 0), "little")
            entries = json.loads(os.pread(file, header, 8))
            names = sorted(self.into, key=lambda name: entries[name]["data_offsets"])
            memory = [self.into[name].view(self.torch.uint8).numpy() for name in names]
            if os.preadv(file, memory, 8 + header) != sum(map(len, memory)):
                raise OSError(f"{path}: a short read")
        finally:
            os.close(file)
        return self.into


def keep_freed_memory():
    """Makes malloc take all memory from its heap, and give none of it back to the kernel."""
    trim_threshold, mmap_max = -1, -4
    libc = ctypes.CDLL(None)
    for option, value in ((trim_threshold, 2**31 - 1), (mmap_max, 0)):
        if libc.mallopt(option, value) != 1:
            raise RuntimeError(f"mallopt({option}, {value})")


def main():
    how, first = sys.argv[1], True
    mover = Ours(how) if how in ("twin", "host") else Loader(how)
    baseline = status("VmRSS")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        what = question.pop("do")
        answer = getattr(mover, what)(**question)
        if what != "prepare" and first:
            answer["extra"] = answer.pop("peak", status("VmHWM")) - baseline - answer["bytes"]
            first = False
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
