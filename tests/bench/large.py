"""A large model on the machine's disk: saves of its swap state, and checkpoints by torch.save.

As a program it saves and loads such checkpoints. A parameter has 2 bytes of weights in bf16, and in fp32 12 bytes: the
master weight and Adam's two moments."""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import checking
import child
import machine
import measure
import memory
import mounting
import notes
import plan
import training

SWAP = "A large model: saves of its swap state"
SWAP_SPACE = "A large model: the space that a save of its swap state takes"
CHECKPOINTS = "A large model: checkpoints by torch.save"
SPACE = "A large model: the space that a checkpoint takes"
GIBIBYTES = (1 / plan.GIB, "GiB", 2)
STATE = 14  # bytes of a parameter
RANKS, GROUPS = 2, tuple(f"{3 * number}_{3 * number + 2}" for number in range(8))
PIECE = 64 * plan.MIB
WAYS = {  # to save the swap state
    "setxattr": None,
    "ckptfs save": (mounting.CKPTFS, "save", "round", "."),
    "cp -r --reflink=always, then syncfs": ("cp", "-r", "--reflink=always", training.STAGE, "copy"),
    "cp -r --reflink=never, then syncfs": ("cp", "-r", "--reflink=never", training.STAGE, "copy"),
}
OURS = 2  # of these ways are ckptfs's
NATIVE = "native XFS"
MODES = {"ckptfs": "passthrough", "ckptfs, passthrough=off": "direct"}
FILES = {"pytorch_model.bin": "bfloat16",  # as a Trainer calls them
         "optimizer.pt": "float32", "optimizer_1.pt": "float32", "optimizer_2.pt": "float32"}
TENSORS = 100  # in each file
CHANGES = {"mostly frozen": TENSORS, "full training": 1}  # one tensor of so many differs from the step before


def section(context):
    parameters = context.sizes.parameters
    here = dataclasses.replace(context, pairs=min(context.pairs, 3), place=notes.ON_DISK)
    # Two states, a quarter more, and the index.
    image = 9 * STATE * parameters // 4 + plan.GIB
    for wanted, free, what in ((image + plan.GIB, mounting.free_bytes(mounting.scratch_root()), "disk"),
                               (8 * parameters + 2 * plan.GIB, machine.memory("MemAvailable"), "memory")):
        if free < wanted:
            reason = f"{free / plan.GIB:.1f} GiB of {what} are free, not {wanted / plan.GIB:.1f}"
            here.add(SWAP, measure.Missing("all", reason))
            return
    with mounting.workspace("large") as here.work, machine.disk(here.work, image) as (here.disk, _):
        title = f"{STATE * parameters / plan.GIB:.1f} GiB, {parameters / 1e9:g} billion parameters"
        swap_state(here, title)
        checkpoints(here, title)


def sides_of(context, sides):
    """Yields each side once per round; the order rotates."""
    names = list(sides)
    for number in range(context.pairs):
        yield from names[number % len(names):] + names[:number % len(names)]


@contextlib.contextmanager
def fresh(context, side, what):
    """Yields an empty folder of that side, and removes it. What it has held is freed behind, on both sides."""
    mode, before = MODES.get(side), used(context)
    if mode is None:
        folder = context.disk / "native"
        folder.mkdir()
        yield folder
        shutil.rmtree(folder)
    else:
        with context.mounted(f"a large model, {what}: {mode}", mode, "safe") as mount:
            yield mount.path
    mounting.wait_until("what was removed is freed", lambda: used(context) <= before + 16 * plan.MIB, 120)


def used(context):
    """Without what XFS has allocated ahead of writers, and gives back by itself later."""
    machine.settle(context.disk)
    mounting.free_preallocated(context.disk)
    return mounting.used_bytes(context.disk)


def swap_state(context, title):
    noise = memoryview(os.urandom(2 * min(PIECE, context.sizes.parameters)))
    seconds, right_after, later = ({way: [] for way in WAYS} for _ in range(3))
    ours, others = list(WAYS)[:OURS], list(WAYS)[OURS:]
    for way in sides_of(context, WAYS):
        with fresh(context, "ckptfs" if way in ours else NATIVE, "swap state") as root:
            write_state(context, root, noise, 0)
            before = used(context)
            seconds[way].append(save(context, root, WAYS[way]))
            right_after[way].append(used(context) - before)
            write_state(context, root, noise, 1)
            later[way].append(used(context) - before)
    for way, other in itertools.product(ours, others):
        context.add(SWAP, measure.Row(f"{way}, {title}", other, measure.MILLISECONDS, seconds[way], seconds[other]))
    add_space(context, SWAP_SPACE, "right after the save", right_after)
    add_space(context, SWAP_SPACE, "once training has overwritten all of the swap state", later)


def save(context, root, command):
    """Returns the seconds until all is durable, with nothing in memory before but the program."""
    prepare_memory(STATE * context.sizes.parameters)
    if command:
        mounting.run(command[0], "--help")
    began = time.monotonic()
    if command:
        mounting.run(*command, cwd=root, timeout=1800)
    else:
        os.setxattr(root / "steps", "user.ckptfs.save", b"round")
    machine.sync_filesystem(context.disk)
    took = time.monotonic() - began
    state, *saved = (sorted((file.name, file.stat().st_size) for file in folder.rglob("*.swp"))
                     for folder in (root / training.STAGE, root / "steps" / "round", root / "copy") if folder.exists())
    checking.equal(saved, [state], f"the swap files saved in {root}")
    return took


def write_state(context, root, noise, version):
    """No two blocks are equal: each piece begins elsewhere in the noise, and in another place of a block."""
    size, pieces = len(noise) // 2, 0
    names = list(training.swap_names(RANKS, GROUPS))
    optimizer = 12 * context.sizes.parameters // sum("/optimizer/" in name for name in names)
    for name in names:
        length = optimizer if "/optimizer/" in name else 2 * context.sizes.parameters // RANKS
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if path.exists() else "xb", buffering=0) as file:  # in place
            for at in range(0, length, size):
                pieces += 1
                begin = (2 * pieces + version) * 4099 % size
                checking.write_all(file.fileno(), noise[begin:begin + min(size, length - at)])
    machine.sync_filesystem(context.disk)


def prepare_memory(size):
    memory.drop_caches()
    memory.touch_free(min(size, 3 * plan.GIB))


def add_space(context, section, title, grown):
    texts = {side: f"{statistics.median(figures) / plan.GIB:.2f} GiB" for side, figures in grown.items()}
    context.add(section, measure.Figures(title, texts))


def checkpoints(context, title):
    sides = [NATIVE, *(side for side, mode in MODES.items() if mode == "direct" or mounting.supports_passthrough())]
    saves, loads, grown = ({change: {side: [] for side in sides} for change in CHANGES} for _ in range(3))
    with child.running(context.work / "large.log", __file__, context.sizes.parameters, context.disk) as trainer:
        for side, change in itertools.product(sides_of(context, sides), CHANGES):
            with fresh(context, side, "checkpoints") as root:
                trainer.ask(folder=str(root / "runs" / "checkpoint-1"), version=0, one_of=1, load=False)
                before = used(context)
                step = root / "runs" / "checkpoint-2"
                took = trainer.ask(folder=str(step), version=1, one_of=CHANGES[change], load=True)
                grown[change][side].append(used(context) - before)
                saves[change][side].append(took["save"])
                loads[change][side].append(took["load"])
    for what, figures in (("torch.save", saves), ("torch.load", loads)):
        for change, side in itertools.product(CHANGES, sides[1:]):
            took, text = figures[change], f"{what} of {title}, {change}{side.removeprefix('ckptfs')}"
            context.add(CHECKPOINTS, measure.Row(text, NATIVE, measure.SECONDS, took[side], took[NATIVE]))
    for change in CHANGES:
        add_space(context, SPACE, change, grown[change])


# --- the program


def tensors_of(file, elements, version, one_of):
    """Returns the file's tensors: one of so many of that version, the others of version 0. No two blocks are equal."""
    import torch
    dtype = getattr(torch, FILES[file])
    random_bits = torch.Generator().manual_seed(1)
    base = torch.randint(-(1 << 62), 1 << 62, (elements * dtype.itemsize // 8,), generator=random_bits)
    versions = (version if number % one_of == one_of // 2 else 0 for number in range(TENSORS))
    return {f"layers.{number}.weight": (base ^ random.Random(f"{file} {number} {of}").getrandbits(62)).view(dtype)
            for number, of in enumerate(versions)}


def timed(disk, size, action, *arguments):
    """Returns the seconds of the action and a sync, with no file in memory before, and what it returns."""
    machine.sync_filesystem(disk)
    prepare_memory(size)
    began = time.monotonic()
    result = action(*arguments)
    machine.sync_filesystem(disk)
    return time.monotonic() - began, result


def main():
    """Makes one file after the other, so that memory holds one, or two while it compares. Making is not in the times.
    The last file is that of a Trainer, too: it makes the folder a step, so that the next step's files find it."""
    import torch
    elements, disk = int(sys.argv[1]) // TENSORS // 4 * 4, sys.argv[2]
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        question, took = json.loads(line), {"save": 0, "load": 0}
        folder = pathlib.Path(question["folder"])
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        for file in FILES:
            path = folder / file
            tensors = tensors_of(file, elements, question["version"], question["one_of"])
            took["save"] += timed(disk, 4 * TENSORS * elements, torch.save, tensors, path)[0]
            if question["load"]:
                seconds, loaded = timed(disk, 4 * TENSORS * elements, torch.load, path)
                took["load"] += seconds
                for name, tensor in tensors.items():
                    if not torch.equal(loaded[name].view(torch.int64), tensor.view(torch.int64)):
                        raise ValueError(f"{path}: {name} is not what was saved")
                del loaded
            del tensors
        (folder / "trainer_state.json").write_text('{"global_step": 1, "log_history": []}')
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
