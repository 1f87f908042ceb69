"""Checkpoints of a Trainer, and what their views hold."""

import struct

from checking import noise, write
from hugging import safetensors

SERIES, TAG = "runs", "checkpoint-7"
# name: (dtype, shape)
TENSORS = {
    "embed.weight": ("F32", [1000, 333]),
    "layer/odd name": ("BF16", [77]),
    "counter": ("I64", []),
    "nothing": ("F32", [0, 3]),
}


def content(seed):
    """Floats that are exact in every type: small whole numbers."""
    made = {}
    for number, (name, (dtype, shape)) in enumerate(TENSORS.items()):
        count = 1
        for length in shape:
            count *= length
        values = [(index * 7 + number + seed) % 251 for index in range(count)]
        if dtype == "F32":
            data = struct.pack(f"<{count}f", *values)
        elif dtype == "BF16":
            data = b"".join(struct.pack("<f", value)[2:] for value in values)
        else:
            data = struct.pack(f"<{count}q", *values)
        made[name] = (dtype, shape, data)
    return made


def step_with(mount, seed=0, tag=TAG):
    """A checkpoint of a Trainer; what its tensors are, and its view."""
    step = mount.path / SERIES / tag
    step.mkdir(parents=True)
    tensors = content(seed)
    write(step / "config.json", b'{"model_type": "none"}')
    write(step / "tokenizer.json", b"{}")
    write(step / "model.safetensors", safetensors(tensors))
    write(step / "trainer_state.json", b"{}")
    return tensors, mount.path / "views" / SERIES / tag


def as_fp32(tensor):
    dtype, shape, data = tensor
    if dtype != "BF16":
        return tensor
    return "F32", shape, b"".join(b"\0\0" + data[at : at + 2] for at in range(0, len(data), 2))


def as_bf16(tensor):
    dtype, shape, data = tensor
    return ("BF16", shape, b"".join(data[at + 2 : at + 4] for at in range(0, len(data), 4))) if dtype == "F32" else tensor


def floats(shapes, seed=1):
    """Weights of these shapes, by a name each."""
    made = {}
    for number, shape in enumerate(shapes):
        count = 1
        for length in shape:
            count *= length
        made[f"layers.{number}.weight"] = ("F32", list(shape), noise(4 * count, seed + number))
    return made
