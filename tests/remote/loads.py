"""What tests of loads from a remote do with torch: makes steps, and loads them from there.

    loads.py ACT JSON     ACT is a function below, JSON has its arguments. What it returns is printed as JSON.
"""

import json
import logging
import os
import pathlib
import re
import struct
import sys
import time

import torch

import ckptfs

MIB = 1 << 20
LINES = []  # of ckptfs's log


def state_of(seed, rows=4096):
    torch.manual_seed(seed)
    sizes = {"embedding": (rows, 1024), "layers.0.weight": (2048, 1024), "layers.0.bias": (2048,), "norm": (1023,)}
    return {name: torch.randn(*shape) for name, shape in sizes.items()} | {"head": torch.randn(3000, 700).bfloat16()}


def make(folder, kind, seed=1, rows=4096):
    """A step with weights of some 30 MiB, or more rows, and moments of twice as many. A Trainer's files, DCP's, or a Saver's."""
    state, path = state_of(seed, rows), pathlib.Path(folder)
    moments = {name: {"exp_avg": torch.randn(tensor.shape), "exp_avg_sq": torch.rand(tensor.shape)}
               for name, tensor in state.items()}
    if kind == "saver":
        with_moments = state | {f"{name}/{key}": one for name, both in moments.items() for key, one in both.items()}
        path.parent.mkdir(exist_ok=True)
        ckptfs.Saver(path.parent).save(path.name, with_moments).wait()
    elif kind == "dcp":
        import torch.distributed.checkpoint as dcp

        dcp.save({"model": state, "optimizer": {"state": moments}}, checkpoint_id=folder, no_dist=True)
    else:
        import safetensors.torch

        path.mkdir(parents=True)
        torch.save({"state": dict(enumerate(moments.values()))}, path / "optimizer.pt")
        (path / "trainer_state.json").write_text(json.dumps({"global_step": 1}))
        safetensors.torch.save_file(state, path / "model.safetensors", {"format": "pt"})


def model(folder, own):
    """A Trainer's step of a GPT-2 of 27 MiB, whose optimizer is twice as large. OWN: what save_pretrained makes of it."""
    import transformers

    torch.manual_seed(3)
    config = transformers.GPT2Config(vocab_size=1031, n_positions=64, n_embd=512, n_layer=2, n_head=4)
    made, path = transformers.GPT2LMHeadModel(config), pathlib.Path(folder)
    for target in (own, folder):
        made.save_pretrained(target)
    torch.save({"state": {0: {"exp_avg": torch.randn(14 * MIB)}}}, path / "optimizer.pt")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 1}))


def received():
    """Bytes that have come since the checkpoint was opened, as its log says."""
    return max(int(found[1]) for line in LINES if (found := re.search(r"for them; (\d+) in \d+ GETs", line)))


def differing(got, wanted):
    names = [name for name in wanted if name not in got or not torch.equal(got[name], wanted[name])]
    return names + sorted(set(got) - set(wanted))


def compare(local, url):
    """Which tensors differ, how many there are, and what the log says of the second load."""
    wanted = ckptfs.load(local)
    LINES.clear()
    return {"differ": differing(ckptfs.load(url), wanted), "tensors": len(wanted), "log": "\n".join(LINES)}


def load_into(local, url):
    """Over tensors that are there, one of which does not lie in order, and a part of one."""
    wanted = ckptfs.load(local)
    into = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    into["embedding"] = torch.zeros(1024, 4096).t()
    ckptfs.load(url, into=into, timeout=30)
    part = ckptfs.Slice("embedding", (4096, 1024), (77 * 1024, 177 * 1024), torch.zeros(100 * 1024))
    ckptfs.load(url, into={"embedding": part})
    right = torch.equal(part.tensor.view(100, 1024), wanted["embedding"][77:177])
    return differing(into, wanted) + ([] if right else ["the part"])


def weights(url, local):
    """Loads the weights of a Trainer's step. Returns what had to come, in whole chunks, and what came."""
    with open(f"{local}/model.safetensors", "rb") as file:
        header = struct.unpack("<Q", file.read(8))[0]
        places = json.loads(file.read(header))
    names = [name for name in places if not name.startswith("__")]
    size = os.path.getsize(f"{local}/model.safetensors")
    wanted = ckptfs.load(local, names=names)
    with ckptfs.Checkpoint(url) as checkpoint:
        tensors = checkpoint.make_tensors(names, "cpu")
        report = checkpoint.load(tensors)
    assert not differing(tensors, wanted)
    few, needed = ["layers.0.weight", "norm"], set()
    for name in few:
        begin, end = (8 + header + at for at in places[name]["data_offsets"])
        needed |= set(range(begin // MIB, (end - 1) // MIB + 1))
    came = received()
    with ckptfs.Checkpoint(url) as checkpoint:
        tensors = checkpoint.make_tensors(few, "cpu")
        some = checkpoint.load(tensors)
    assert not differing(tensors, {name: wanted[name] for name in few})
    return {"needed": size, "read": report.read, "checked": report.checked, "straight": report.straight, "received": came,
            "few_needed": len(needed) * MIB, "few_read": some.read}


def fails(url, timeout=60, names=None):
    """The errno, the words, and the seconds of a load that fails; what it was to fill is not handed out."""
    begun = time.monotonic()
    try:
        ckptfs.load(url, timeout=timeout, names=names)
    except OSError as problem:
        return [problem.errno, problem.strerror, time.monotonic() - begun]
    return [0, "it was loaded", 0]


def wrong_call():
    """What is raised when a call of the library cannot even be made."""
    from ckptfs import native

    try:
        native.call_until_stopped(native.c_ubyte(), "ckptfs_load", "no handle")
    except Exception as problem:  # noqa: BLE001 - its name is what is asked for
        return type(problem).__name__
    return "nothing"


def forked(url):
    """A child of fork ends with the checkpoint of its parent open, and loads by itself."""
    checkpoint = ckptfs.Checkpoint(url)
    child = os.fork()
    if child == 0:
        checkpoint.close()
        os._exit(0 if "norm" in ckptfs.load(url, names=["norm"]) else 1)
    code = os.waitpid(child, 0)[1]
    tensors = checkpoint.make_tensors(["norm"], "cpu")
    checkpoint.load(tensors)
    checkpoint.close()
    return code


def run(code):
    """Runs an example of the docs. Returns what it has not loaded."""
    wanted = state_of(1)
    into = {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}
    values = {"ckptfs": ckptfs, "model": into}
    exec(code, values)
    return differing(into, wanted) + sorted(set(wanted) - set(values["tensors"])) + sorted(set(wanted) - set(values["slot"]))


def rate(url):
    """Seconds, bytes."""
    with ckptfs.Checkpoint(url) as checkpoint:
        tensors = checkpoint.make_tensors(None, "cpu")
        for tensor in tensors.values():
            tensor.zero_()
        begun = time.monotonic()
        report = checkpoint.load(tensors)
        return {"seconds": time.monotonic() - begun, "bytes": report.bytes, "read": report.read, "straight": report.straight}


class _Keep(logging.Handler):
    def emit(self, record):
        LINES.append(record.getMessage())


if __name__ == "__main__":
    logging.getLogger("ckptfs").addHandler(_Keep())
    logging.getLogger("ckptfs").setLevel(logging.INFO)
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
