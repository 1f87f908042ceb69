"""Steps that tests/helpers/step_save.c saves, and their content. Raw requests of a rank."""

import json
import os
import pathlib
import socket
import subprocess

from checking import equal, true
from mounting import CKPTFS_DEBUG, Failure, helper

MASK = (1 << 64) - 1


def program(faults=None):
    """Returns the path of step_save, of the build with fault points if `faults` are given."""
    return str(pathlib.Path(CKPTFS_DEBUG).with_name("helpers") / "step_save") if faults else helper("step_save")


def command(series, tag, attempt, *, rank=0, world=1, size=600_001, seed=1, seal=1, faults=None):
    words = (program(faults), "save", series, tag, attempt, rank, world, size, seed, seal)
    environment = dict(os.environ, CKPTFS_FAULTS=faults or "", ASAN_OPTIONS="detect_leaks=1")
    return [str(word) for word in words], environment


def save(*words, status=0, **options):
    """Runs it to its end. Returns the lines that it printed."""
    arguments, environment = command(*words, **options)
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, timeout=120)
    if done.returncode != status:
        raise Failure(f"{' '.join(arguments)}: status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout.split()


def begin(*words, **options):
    """Starts it with its output piped."""
    arguments, environment = command(*words, **options)
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def content(rank, size, seed):
    """Returns the bytes of the three tensors, end to end, as step_save.c makes them."""
    state, made = (seed * 1000003 + rank + 1) & MASK, bytearray(size)
    for at in range(size):
        state ^= state << 13 & MASK
        state ^= state >> 7
        state ^= state << 17 & MASK
        made[at] = state & 0xFF
    return bytes(made)


def check(step, *, ranks=1, size=600_001, seed=1):
    """Checks that the step is complete and has what was saved."""
    step = pathlib.Path(step)
    for rank in range(ranks):
        name = f"rank{rank:02d}.safetensors"
        data = (step / name).read_bytes()
        header = 8 + int.from_bytes(data[:8], "little")
        equal(len(data), header + size, f"{step / name}: length")
        true(data[header:] == content(rank, size, seed), f"{step / name}: content")
        true((step / f"ckptfs.rank{rank:02d}.json").exists(), f"{step}: manifest of rank {rank}")


def loaded(path):
    """Returns name -> (bytes, sum, files read through the mount), as the library loads it."""
    done = subprocess.run([program(), "load", str(path)], capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise Failure(f"load {path}: {done.stdout}{done.stderr}")
    rows = [line.split() for line in done.stdout.splitlines()]
    return {name: (int(size), total, int(through)) for name, size, total, through in rows}


def ask(mount, command, **arguments):
    """A raw request; the result, or OSError, and the descriptors that came with it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(mount.ask(".", "socket"))
        connection.sendall(json.dumps({"command": command, "arguments": arguments}).encode() + b"\n")
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 128)
        while not data.endswith(b"\n"):
            data += connection.recv(1 << 20)
    reply = json.loads(data)
    if not reply["ok"]:
        raise OSError(reply["errno"], reply["error"])
    return reply["result"], descriptors
