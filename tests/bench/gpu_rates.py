"""How quick loads and saves of a GPU's memory are, beside other ways, and beside what the machine can do.

    python3 tests/bench/gpu_rates.py FOLDER [--bytes N] [--rounds N] [--only warm]

It needs torch and a GPU; fastsafetensors and runai-model-streamer are measured where they are installed. Each way is run
once in each round; the median of the rounds counts. Run it as root, on an idle machine.
"""

import argparse
import contextlib
import importlib.util
import itertools
import logging
import mmap
import os
import pathlib
import shutil
import statistics
import sys
import threading
import time
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "gpu", "python"))

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import ckptfs

GB, MIB = 1e9, 1 << 20
TENSORS = 64
PARTS = ("cold", "warm", "saves")
CHUNK, THREADS = 8 * MIB, 8  # of the plain reads and writes


def seconds_of(function):
    torch.cuda.synchronize()
    begun = time.monotonic()
    function()
    torch.cuda.synchronize()
    return time.monotonic() - begun


def drop(_path):
    """Drops what is on the disk from the page cache."""
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("1")


def remember(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(MIB):
            pass


class Plain:
    """The machine's own rates: copies of pinned memory, and plain reads and writes by several threads."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size
        self.host = torch.ones(size // 4, dtype=torch.uint8).pin_memory()
        self.device = torch.ones_like(self.host, device="cuda")

    def to_device(self):
        for _ in range(4):
            self.device.copy_(self.host, non_blocking=True)

    def to_host(self):
        for _ in range(4):
            self.host.copy_(self.device, non_blocking=True)

    def transfer(self, path, flags, function):
        """All of the file by THREADS threads, each with a buffer of its own."""
        file, offsets = os.open(path, flags), iter(range(0, self.size, CHUNK))
        buffers = [mmap.mmap(-1, CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
                   for _ in range(THREADS)]
        lock = threading.Lock()

        def work(buffer):
            while True:
                with lock:
                    offset = next(offsets, None)
                if offset is None:
                    return
                function(file, [buffer], offset)

        threads = [threading.Thread(target=work, args=(buffer,)) for buffer in buffers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os.fsync(file)
        os.close(file)

    def read(self, path, direct):
        self.transfer(path, os.O_RDONLY | (os.O_DIRECT if direct else 0), os.preadv)

    def write(self):
        path = self.folder / "plain"
        self.transfer(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, os.pwritev)
        path.unlink()


class Loads:
    """Ways to load model.safetensors to the GPU."""

    def __init__(self, folder):
        self.path, self.pt = folder / "model.safetensors", folder / "model.pt"
        self.ways = {"ckptfs.load": self.ours, "safetensors": self.safetensors, "torch.load, mmap": self.torch_mmap}
        for name, way in (("fastsafetensors", self.fastsafetensors), ("runai_model_streamer", self.runai)):
            if importlib.util.find_spec(name):
                self.ways[name] = way

    def ours(self):
        return ckptfs.load(self.path, device="cuda")

    def safetensors(self):
        return safetensors.torch.load_file(self.path, device="cuda")

    def torch_mmap(self):
        return torch.load(self.pt, map_location="cuda", weights_only=True, mmap=True)

    def fastsafetensors(self):
        from fastsafetensors import fastsafe_open
        with fastsafe_open(str(self.path), framework="pt", device="cuda:0", nogds=True) as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}

    def runai(self):
        from runai_model_streamer import SafetensorsStreamer
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(str(self.path))
            return {name: tensor.to("cuda") for name, tensor in streamer.get_tensors()}


class Saves:
    """Ways to save the tensors: each returns the seconds until training goes on, and until the step is durable."""

    def __init__(self, folder, state):
        self.folder, self.state, self.numbers = folder, state, itertools.count()
        self.savers = {"ckptfs": ckptfs.Saver(folder / "ours"), "ckptfs, digests": ckptfs.Saver(folder / "ours", digests=True),
                       "ckptfs, copies": ckptfs.Saver(folder / "ours", copies=True)}
        self.ways = {**{name: lambda path, saver=saver: self.ours(saver, path) for name, saver in self.savers.items()},
                     "torch.save, fsync": self.torch_save, "dcp.save": self.dcp_save, "dcp.async_save": self.dcp_async}

    def measure(self, how):
        path = self.folder / "ours" / f"step_{next(self.numbers)}"
        torch.cuda.synchronize()
        begun = time.monotonic()
        stall = self.ways[how](path)
        durable = time.monotonic() - begun
        shutil.rmtree(path)
        os.sync()
        return {"stall": stall - begun, "durable": durable}

    def ours(self, saver, path):
        save = saver.save(path.name, self.state)
        save.wait_copied()
        stall = time.monotonic()
        save.wait()
        return stall

    def torch_save(self, path):
        path.mkdir()
        with open(path / "model.pt", "wb") as file:
            torch.save(self.state, file)
            os.fsync(file.fileno())
        return time.monotonic()

    def dcp_save(self, path):
        dcp.save(self.state, checkpoint_id=str(path))
        return time.monotonic()

    def dcp_async(self, path):
        future = dcp.async_save(self.state, checkpoint_id=str(path))
        stall = time.monotonic()
        future.result()
        return stall


def say(title, size, figures, ours, limit):
    """A row for each way: its rate, and ours to it."""
    for how, seconds in figures.items():
        ratio = statistics.median(mine / other for mine, other in zip(figures[ours], seconds, strict=True))
        print(f"{title}; {how}: {statistics.median(seconds):.2f} s, {size / statistics.median(seconds) / GB:.1f} GB/s "
              f"[{size / max(seconds) / GB:.1f} .. {size / min(seconds) / GB:.1f}]; {ours} takes {ratio:.2f} of it", flush=True)
    print(f"{title}; the machine: {limit / GB:.1f} GB/s; {ours}: {size / statistics.median(figures[ours]) / limit:.0%} of it",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--bytes", type=int, default=4 << 30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=PARTS, default=None)
    options = parser.parse_args()
    folder, size = options.folder, options.bytes
    logging.basicConfig(level=logging.WARNING)
    warnings.simplefilter("ignore")
    (folder / "ours").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        measure(folder, size, options.rounds, [options.only] if options.only else PARTS)


def measure(folder, size, rounds, parts):
    plain = Plain(folder, size)
    to_device, to_host = (min(seconds_of(copy) for _ in range(5)) for copy in (plain.to_device, plain.to_host))
    print(f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores; {size / MIB:.0f} MiB; pinned memory to the GPU: "
          f"{size / to_device / GB:.1f} GB/s, back: {size / to_host / GB:.1f} GB/s", flush=True)
    state = {f"layers.{number}.weight": torch.randn(size // TENSORS // 2, dtype=torch.bfloat16, device="cuda")
             for number in range(TENSORS)}
    path = folder / "model.safetensors"
    safetensors.torch.save_file(state, path)
    torch.save(state, folder / "model.pt")
    for part, prepare in (("cold", drop), ("warm", remember)):
        if part in parts:
            loads(part, prepare, Loads(folder), plain, state, size / to_device, rounds)
    if "saves" in parts:
        saves(folder, plain, state, size / to_host, rounds)


def loads(part, prepare, ways, plain, state, to_device, rounds):
    """Cold: from the disk. Warm: from the page cache."""
    size, found, own = plain.size, {how: [] for how in ways.ways}, []
    for _ in range(rounds + 1):  # the first one warms up
        prepare(ways.path)
        own.append(seconds_of(lambda: plain.read(ways.path, direct=part == "cold")))
        for how, way in ways.ways.items():
            prepare(ways.pt if "torch" in how else ways.path)
            found[how].append(load(way, state, how))
    limit = min(size / statistics.median(own[1:]), to_device)
    say(f"load, {part}", size, {how: all_[1:] for how, all_ in found.items()}, "ckptfs.load", limit)


def load(way, state, how):
    """Seconds; nothing of what it loads stays."""
    begun = time.monotonic()
    loaded = way()
    torch.cuda.synchronize()
    seconds = time.monotonic() - begun
    if not all(torch.equal(loaded[name].view(torch.int16), tensor.view(torch.int16)) for name, tensor in state.items()):
        raise AssertionError(f"{how}: what it has loaded is not what was saved")
    return seconds


def saves(folder, plain, state, to_host, rounds):
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29411")
    dist.init_process_group("cpu:gloo,cuda:nccl")
    ways, size = Saves(folder, state), plain.size
    found, own = {how: [] for how in ways.ways}, []
    for _ in range(rounds + 1):
        own.append(seconds_of(plain.write))
        for how in ways.ways:
            found[how].append(ways.measure(how))
    to_disk = size / statistics.median(own[1:])
    for stage, ours, limit in (("stall", "ckptfs, copies", to_host), ("durable", "ckptfs", to_disk)):
        say(f"save, {stage}", size, {how: [one[stage] for one in all_[1:]] for how, all_ in found.items()}, ours, limit)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
