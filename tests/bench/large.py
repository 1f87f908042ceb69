"""A model of a billion parameters, on the machine's disk: saves of its swap state, and checkpoints by torch.save.

As a program it holds the state of that model: 2 bytes of weights for each parameter, and 12 of its optimizer."""

import dataclasses
import json
import os
import pathlib
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import child
import data
import machine
import measure
import mounting
import plan
import saves

SWAP = "A model of a billion parameters: saves of its swap state"
CHECKPOINTS = "A model of a billion parameters: checkpoints by torch.save"
SPACE = "A model of a billion parameters: the space that a checkpoint takes"
FILES = {"pytorch_model.bin": {"weights": "bfloat16"},  # as a Trainer calls them
         "optimizer.pt": {"master": "float32", "exp_avg": "float32", "exp_avg_sq": "float32"}}
BYTES = 14  # of a parameter
TENSORS = 100  # of each part
CHANGES = {"full training": 1.0, "mostly frozen": 0.01}
SIDES = {"ours": "ckptfs", "native": "native XFS"}


def section(context):
    state = BYTES * context.sizes.parameters
    image = 9 * state // 4 + plan.GIB
    free = shutil.disk_usage(mounting.BUILD).free
    if reason := child.lacks("torch") or (free < image and f"{mounting.BUILD} has {free >> 30} GiB free, not {image >> 30}"):
        context.add(CHECKPOINTS, measure.Missing("all", reason))
        return
    os.environ["CKPTFS_TMP"] = str(mounting.BUILD)
    with mounting.workspace("large") as work, machine.disk(work, image) as (disk, _):
        here = dataclasses.replace(context, work=work, disk=disk)
        swap_state(here, state // 2)
        checkpoints(here)


def swap_state(context, size):
    """Of one of two ranks."""
    count = 8
    shape = f"{count} files of {size // count // plan.MIB} MiB"
    with context.mounted(f"large: {shape}", "passthrough", "safe") as mount:
        native, live = context.disk / "native", mount.path / data.SWAP
        for folder in (native, live):
            saves.fill(folder, count, size // count // plan.MIB * plan.MIB)
        saves.against_copies(context, mount, native, live, shape, SWAP)
        shutil.rmtree(native)


def checkpoints(context):
    """Runs of two steps, on each side in turn: the disk has room for one run."""
    size = f"{BYTES * context.sizes.parameters / plan.GIB:.1f} GiB"
    with child.running(context.work / "large.log", __file__, context.sizes.parameters) as trainer:
        for change, share in CHANGES.items():
            took, grew = ({side: [] for side in SIDES} for _ in range(2))
            with context.mounted(f"large: checkpoints, {change}", "passthrough", "safe") as mount:
                folders = {"ours": mount.path / "runs", "native": context.disk / "native"}
                for _ in range(context.pairs):
                    for side, folder in folders.items():
                        save(context, trainer, folder / "checkpoint-1")
                        trainer.ask(do="train", share=share)
                        seconds, grown = save(context, trainer, folder / "checkpoint-2")
                        took[side].append(seconds)
                        grew[side].append(grown)
                        remove(context, folder)
            title = f"torch.save of {size}, {change}"
            context.add(CHECKPOINTS, measure.Row(title, SIDES["native"], measure.SECONDS, took["ours"], took["native"]))
            context.add(SPACE, measure.Row(title, SIDES["native"], measure.MEBIBYTES, grew["ours"], grew["native"]))


def save(context, trainer, folder):
    """Returns the seconds until all is on the disk, and by how much that has filled."""
    folder.mkdir(parents=True)
    before, began = mounting.used_bytes(context.disk), time.monotonic()
    trainer.ask(do="save", folder=str(folder))
    machine.sync_filesystem(context.disk)
    return time.monotonic() - began, mounting.used_bytes(context.disk) - before


def remove(context, folder):
    """Returns once what it has held is free: on both sides that happens behind."""
    shutil.rmtree(folder)
    before = None
    while before != (before := mounting.used_bytes(context.disk)):
        machine.sync_filesystem(context.disk)
        time.sleep(2)


# --- the program


def make(parameters):
    import torch
    torch.manual_seed(1)
    base = torch.randn(parameters // TENSORS)
    return {file: {f"{part}.{number:02d}": (base * (1 + 0.01 * number)).to(getattr(torch, dtype))
                   for part, dtype in parts.items() for number in range(TENSORS)} for file, parts in FILES.items()}


def main():
    import torch
    state = make(int(sys.argv[1]))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        if question["do"] == "train":
            for name, tensor in (one for tensors in state.values() for one in tensors.items()):
                if int(name.rpartition(".")[2]) < TENSORS * question["share"]:
                    tensor.mul_(-1.01)
        else:
            folder = pathlib.Path(question["folder"])
            (folder / "config.json").write_text("{}")
            for name, tensors in state.items():
                torch.save(tensors, folder / name)
            (folder / "trainer_state.json").write_text('{"global_step": 1, "log_history": []}')
        print(json.dumps("done"), flush=True)


if __name__ == "__main__":
    main()
