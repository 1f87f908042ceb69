"""Loads or saves a checkpoint in one way for each line of input; child.py starts it.

load: {"how", "path"} -> {"seconds", "extra": on the first load, the peak of memory above what was loaded}
save: {"how", "series", "tag", "size"} -> {"seconds", "copied", "extra"}

`how`: "twin" and "host" are libckptfs with the memory of its twin device or with host memory. The others are Python
libraries, which allocate their own memory.
"""

import ctypes
import json
import mmap
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "gpu", "python"))

PAGE = 4096


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


class Python:
    """Other loaders, including their import. Every page of the result is touched."""

    def __init__(self, how):
        self.how, self.kept = how, None
        import torch
        import safetensors.torch
        self.torch, self.safetensors = torch, safetensors.torch
        torch.set_num_threads(2)
        if how == "fastsafetensors":
            import fastsafetensors
            self.library = fastsafetensors
        elif how == "runai-model-streamer":
            import runai_model_streamer
            self.library = runai_model_streamer
        elif how == "ckptfs.load":
            import ckptfs.loading  # the others import all that they need, too
            import ckptfs.native
            ckptfs.native.library()
            self.library = ckptfs

    def load(self, path):
        start = time.monotonic()
        self.kept = self.tensors(path)
        for tensor in self.kept.values():
            tensor.view(-1).view(self.torch.uint8)[::PAGE].sum()
        return {"seconds": time.monotonic() - start, "bytes": sum(one.nbytes for one in self.kept.values())}

    def tensors(self, path):
        if self.how == "torch.load":
            return self.torch.load(path, map_location="cpu", weights_only=True)
        if self.how == "torch.load, mmap":
            return self.torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if self.how == "safetensors":
            return self.safetensors.load_file(path)
        if self.how == "ckptfs.load":
            return self.library.load(path)
        if self.how == "fastsafetensors":
            with self.library.fastsafe_open(path, framework="pt", device="cpu", nogds=True) as file:
                return {name: file.get_tensor(name) for name in file.keys()}
        with self.library.SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return dict(streamer.get_tensors())


def main():
    how, first = sys.argv[1], True
    mover = Ours(how) if how in ("twin", "host") else Python(how)
    baseline = status("VmRSS")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        what = question.pop("do")
        answer = getattr(mover, what)(**question)
        if first:
            answer["extra"] = status("VmHWM") - baseline - answer["bytes"]
        first = False
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
