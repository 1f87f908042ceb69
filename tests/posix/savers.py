"""Processes that save steps as trainings do, when they are told to, and what they write."""

import contextlib
import ctypes
import json
import os
import pickle
import signal
import socket
import struct
import time

from checking import read, write
from hugging import safetensors
from mounting import KIB
from viewing import sample_of, torch_file

OLD = 2.2  # seconds: a process that is younger when it writes is a command (meta/steps/ledger.cc)
DEATH_SIGNAL = 1  # of prctl


class Worker:
    """A process that writes what it is told, and dies with this one."""

    def __init__(self):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.file = self.socket.makefile("rwb")
        self.born = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
                self.file = theirs.makefile("rwb")
                self.serve()
            finally:
                os._exit(0)
        theirs.close()

    def serve(self):
        files = {}
        while True:
            done, error = 0, None
            for one in pickle.load(self.file):
                try:
                    perform(files, *one)
                except OSError as problem:
                    error = problem.errno
                    break
                done += 1
            if error:  # a training that gets an error closes its files
                for file in files.values():
                    with contextlib.suppress(OSError):
                        os.close(file)
                files.clear()
            self.tell((done, error))

    def tell(self, what):
        pickle.dump(what, self.file)
        self.file.flush()

    def answer(self):
        return pickle.load(self.file)

    def do(self, operations):
        """Returns how many of them were done, and the error of the next one."""
        self.tell(operations)
        return self.answer()

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.file.close()
            self.socket.close()
        self.pid = 0


def perform(files, what, path, data=b""):
    if what == "mkdir":
        os.makedirs(path, exist_ok=True)
    elif what == "write":
        write(path, data)
    elif what == "replace":  # as safetensors writes
        temporary = os.path.join(os.path.dirname(path), ".tmp" + os.path.basename(path)[:6])
        write(temporary, data)
        os.rename(temporary, path)
    elif what == "half":
        files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(files[path], data[: len(data) // 2])
    elif what == "rest":
        file = files.pop(path)
        try:
            os.write(file, data[len(data) // 2 :])
        finally:
            os.close(file)


class Pool:
    """Workers that have lived for long enough to be no commands."""

    def __init__(self, count):
        self.count = count
        self.idle, self.used = [], []
        self.fill()

    def fill(self):
        while len(self.idle) < self.count:
            self.idle.append(Worker())

    def take(self):
        worker = self.idle.pop(0) if self.idle else Worker()
        time.sleep(max(0.0, worker.born + OLD - time.monotonic()))
        self.used.append(worker)
        return worker

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in (*self.idle, *self.used):
            worker.kill()


# --- what a training writes


def trainers(dice, number, loss):
    tensors = {f"{name}.weight": ("F32", [8], struct.pack("<8f", *dice.choices(range(200), k=8))) for name in "ab"}
    yield "config.json", b'{"model_type": "none"}'
    if dice.random() < 0.3:
        shards = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
        for shard, (name, tensor) in zip(shards, tensors.items()):
            yield shard, safetensors({name: tensor})
        yield "model.safetensors.index.json", json.dumps({"weight_map": dict(zip(tensors, shards))}).encode()
    else:
        yield "model.safetensors", safetensors(tensors)
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        yield name, torch_file(dice.randbytes(dice.randrange(100, 4000)))
    history = [{"step": number, "eval_loss": loss}]
    yield "trainer_state.json", json.dumps({"global_step": number, "log_history": history}).encode()


def exported():
    """A model alone, as a training saves its last step, or a tool that merges shards."""
    shards = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
    yield "config.json", b'{"model_type": "none"}'
    for shard, name in zip(shards, "ab"):
        yield shard, safetensors({name: ("F32", [1], b"1234")})
    yield "model.safetensors.index.json", json.dumps({"weight_map": dict(zip("ab", shards))}).encode()


def deepspeeds(dice, _number, _loss):
    model, optim = sample_of("deepspeed", "stage_3")
    for prefix in ("", "exp_avg-", "exp_avg_sq-"):
        yield f"offloaded_tensors/rank00/{prefix}0_0.tensor.swp", dice.randbytes(2 * KIB)
    yield "zero_pp_rank_0_mp_rank_00_model_states.pt", model
    yield "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", optim


def dcps(_dice, _number, _loss):
    metadata, first, second = sample_of("checkpoint", "dcp")
    yield "__0_0.distcp", first
    yield "__1_0.distcp", second
    yield ".metadata", metadata


KINDS = {"checkpoint-": trainers, "global_step": deepspeeds, "step_": dcps}  # by the names of the steps


def is_note(name):
    return name.endswith(".json") and name not in ("trainer_state.json", "model.safetensors.index.json")


def is_of_state(name):
    """Weights or an optimizer's state, which a save writes before its last file."""
    return name.endswith((".safetensors", ".distcp", ".swp", "_states.pt")) or name == "optimizer.pt"


def synchronize(source, target):
    """As rsync does: under temporary names, with the times of the source."""
    write("/proc/self/comm", b"rsync", os.O_WRONLY)
    try:
        for path in sorted(source.rglob("*")):
            place = target / path.relative_to(source)
            if path.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.with_name(f".{place.name}.aB3xYz")
            write(temporary, read(path))
            os.utime(temporary, ns=(os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns))
            os.rename(temporary, place)
    except FileNotFoundError:
        return False
    return True
