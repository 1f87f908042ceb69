"""Checkpoints of a Trainer and of others, and what their views hold."""

import io
import json
import struct
import zipfile

from checking import noise, write
from hugging import safetensors
from mounting import KIB, REPOSITORY

SERIES, TAG = "runs", "checkpoint-7"
# What a Trainer writes for a resume only.
RESUME = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
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
    write(step / "trainer_state.json", b'{"global_step": 1}')
    return tensors, mount.path / "views" / SERIES / tag


def torch_file(data):
    """A zip file with this content, as torch.save writes one. The same content makes the same bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(zipfile.ZipInfo("data"), data)
    return made.getvalue()


def full_step(mount, number, seed=0, size=1 << 20):
    """A step as a Trainer leaves it, with what only a resume needs, and a file of the user's."""
    tensors, _ = step_with(mount, seed, f"checkpoint-{number}")
    step = mount.path / SERIES / f"checkpoint-{number}"
    for at, name in enumerate(RESUME):
        write(step / name, torch_file(noise(size, number * 10 + at)))
    write(step / "notes.txt", b"mine")
    write(step / "trainer_state.json", json.dumps({"global_step": number, "log_history": []}).encode())
    return step, tensors


def sample_of(*path):
    """The files of a sample of the fuzzers: its first byte is a kind, and the next ones are the lengths of all files but
    the last."""
    data = (REPOSITORY / "tests/fuzz/corpus").joinpath(*path).read_bytes()
    lengths = struct.unpack_from("<H" if path[0] == "deepspeed" else "<2H", data, 1)
    files, at = [], 1 + 2 * len(lengths)
    for length in (*lengths, len(data)):
        files.append(data[at : at + length])
        at += length
    return files


def write_named(step, swapped):
    """A step of DeepSpeed's with the swap files of its one group (tests/fuzz/deepspeed_fuzzer.cc tells the layout); what
    it lacks still is its optim_states.pt, which is given back."""
    model, optim = sample_of("deepspeed", "stage_3")
    (step / "offloaded_tensors/rank00").mkdir(parents=True)
    for name, data in swapped.items():
        write(step / "offloaded_tensors/rank00" / name, data)
    write(step / "zero_pp_rank_0_mp_rank_00_model_states.pt", model)
    return step / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", optim


def swapped_step(step):
    """A step of DeepSpeed's, with the optimizer on NVMe."""
    write(*write_named(step, {f"{prefix}0_0.tensor.swp": bytes([number]) * 2 * KIB
                              for number, prefix in enumerate(("", "exp_avg-", "exp_avg_sq-"))}))


def sampled_step(step, sample, names):
    """A step of another kind (tests/fuzz/checkpoint_fuzzer.cc tells the layout)."""
    step.mkdir(parents=True)
    for name, data in zip(names, sample_of("checkpoint", sample)):
        write(step / name, data)


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
