"""Processes that save steps as trainings do, when they are told to, and what they write."""

import json
import os
import pathlib
import pickle
import socket
import struct
import subprocess
import sys
import time

from checking import read, write
from hugging import safetensors
from mounting import KIB
from viewing import sample_of, torch_file

OLD = 2.2  # seconds: a process that is younger when it writes is a command (meta/steps/ledger.cc)
PROGRAM = (sys.executable, "-S", "-E", pathlib.Path(__file__).with_name("save_worker.py"))


class Worker:
    """A program of its own, no fork of this one, that writes what it is told. It ends with this one."""

    def __init__(self):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.file = self.socket.makefile("rwb")
        self.born = time.monotonic()
        self.process = subprocess.Popen((*PROGRAM, str(theirs.fileno())), pass_fds=[theirs.fileno()])
        self.pid = self.process.pid
        theirs.close()

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
            self.process.kill()
            self.process.wait()
            self.file.close()
            self.socket.close()
        self.pid = 0


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
