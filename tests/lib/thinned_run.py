"""A run that saves step after step into a series with keep_full, keep_every and keep_last, and what theory says of it:
which steps stay, which of them in full, and how much they take."""

import errno
import json
import os

from checking import noise
from hugging import safetensors
from mounting import KIB

KEEP_FULL, KEEP_EVERY, KEEP_LAST = 2, 100, 20
RULES = {"keep_full": KEEP_FULL, "keep_every": KEEP_EVERY, "keep_last": KEEP_LAST, "thin_to": "bf16"}
SMALL = 4 * KIB  # what a small file takes


def files_of(number, weights):
    """The files of a step as a Trainer writes them, in that order. Its weights are so many bytes of fp32, and Adam's
    moments twice as many. Nothing of it is that of another step."""
    tensor = {"w": ("F32", [weights // 4], noise(weights, number))}
    state = json.dumps({"global_step": number, "log_history": []}).encode()
    return {"config.json": b'{"model_type": "none"}', "model.safetensors": safetensors(tensor),
            "training_args.bin": b"arguments", "optimizer.pt": noise(2 * weights, 1_000_000 + number),
            "scheduler.pt": b"scheduler of %d" % number, "rng_state.pth": b"dice of %d" % number,
            "trainer_state.json": state}


def save(series, number, files, between=lambda: None):
    """Writes the step. `between` is called before each file."""
    step = series / f"checkpoint-{number}"
    step.mkdir()
    for name, data in files.items():
        between()
        (step / name).write_bytes(data)


def full(last):
    """The steps that can be resumed from when so many were saved."""
    return list(range(max(1, last - KEEP_FULL + 1), last + 1))


def thin(last):
    """The steps of which the weights stay."""
    stay = [number for number in range(1, last + 1) if number > last - KEEP_LAST or number % KEEP_EVERY == 0]
    return [number for number in stay if number not in full(last)]


def theory(last, weights):
    """The bytes on the disk of all steps."""
    return len(full(last)) * full_size(weights) + len(thin(last)) * (weights // 2 + 4 * SMALL)


def full_size(weights):
    return 3 * weights + 5 * SMALL


def states(series):
    """Number -> state of the steps that are there."""
    found = {}
    for name in os.listdir(series):
        try:
            state = os.getxattr(series / name, "user.ckptfs.state").decode()
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENODATA):
                raise
            continue  # it was removed this moment; the kernel may still know its folder, which is no step any more
        found[int(name.removeprefix("checkpoint-"))] = state
    return found


def is_settled(series, last):
    return states(series) == dict.fromkeys(full(last), "complete") | dict.fromkeys(thin(last), "weights")


def space(store):
    """The bytes on the disk of all blobs."""
    total = 0
    for entry in os.scandir(store.blobs):
        try:
            total += entry.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total
