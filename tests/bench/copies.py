"""Copies of a tree by common tools: their time, the bytes written to the device, and the space they take."""

import os
import shlex
import shutil
import sys
import time

import child
import machine
import measure
import memory
import mounting
import plan

TIMES = "Copies"
COSTS = "Copies: what they write, and the space they take"
LABELS = {"ours": "ckptfs", "native": "native XFS", "theirs": "the other version"}
STATES = mounting.REPOSITORY / "tests" / "bench" / "states.py"
PACKAGE = mounting.REPOSITORY / "gpu" / "python"
COPYTREE = f"{shlex.quote(sys.executable)} -c 'import shutil, sys; shutil.copytree(*sys.argv[1:])' $from $to"
METHODS = {
    "cp -r": "cp -r $from $to",
    "cp -r --reflink=never": "cp -r --reflink=never $from $to",
    "tar | tar": "mkdir $to && tar -C $from -cf - . | tar -C $to -xf -",
    "rsync -a -W": "rsync -a -W $from/ $to/",
    "rsync -a --inplace": "rsync -a --inplace $from/ $to/",
    "dd bs=1M of each file": "mkdir $to && for f in $from/*; do dd if=$f of=$to/${f##*/} bs=1M status=none; done",
    "shutil.copytree": COPYTREE,
    "shutil.copytree, ckptfs.patch": f"PYTHONPATH={shlex.quote(str(PACKAGE))} "
    + COPYTREE.replace("import shutil", "import ckptfs.patch, shutil"),
}


def section(context):
    with context.mounted("copies", "passthrough", "safe") as mount:
        sides = {"ours": mount.path / "copies", "native": context.disk / "native"}
        for folder in sides.values():
            fill(folder / "from", context.sizes.copied_files, context.sizes.copied_size)
        live = mount.store.filled_blobs()
        for title, command in METHODS.items():
            costs = {}
            figures = context.rounds(
                {side: timed(context, mount, live, command, folder, costs, side) for side, folder in sides.items()}
            )
            context.add(TIMES, measure.Row(title, "native XFS", measure.SECONDS, figures["ours"], figures["native"]))
            context.add(COSTS, measure.Note(title, "; ".join(costs[side] for side in sides)))
        shutil.rmtree(sides["native"])
    frozen_weights(context)


def fill(folder, count, size):
    folder.mkdir(parents=True)
    for number in range(count):
        with open(folder / f"0_{number}.tensor.swp", "wb") as file:
            for _ in range(size // plan.MIB):
                file.write(os.urandom(plan.MIB))


def timed(context, mount, live, command, folder, costs, side):
    """Returns the seconds of one copy and a sync, with the source not in memory. Notes its cost."""
    source, target = folder / "from", folder / "to"

    def measured():
        took, costs[side] = cost(context, side, lambda: copy(command, source, target))
        mounting.run("diff", "-r", source, target)
        remove(mount, live, target)
        return took

    return measured


def copy(command, source, target):
    variables = {"from": str(source), "to": str(target)}
    mounting.run("bash", "-euc", "set -o pipefail; " + command, env={**os.environ, **variables})


def cost(context, side, action):
    """Returns the seconds of the action and a sync, with nothing in memory before, and its cost in words."""
    machine.settle(context.disk)
    written, used = mounting.written_bytes(context.disk), mounting.used_bytes(context.disk)
    took = seconds(context, action)
    written, used = mounting.written_bytes(context.disk) - written, mounting.used_bytes(context.disk) - used
    return took, f"{LABELS[side]}: {written / plan.MIB:.0f} MiB written, {used / plan.MIB:.0f} MiB used"


def seconds(context, action):
    """Returns the seconds of the action and a sync, with nothing in memory before."""
    memory.drop_caches()
    memory.touch_free()
    began = time.monotonic()
    action()
    machine.sync_filesystem(context.disk)
    return time.monotonic() - began


def remove(mount, live, folder):
    shutil.rmtree(folder)
    mounting.wait_until("the copy's blobs are deleted", lambda: mount.store.filled_blobs() <= live, 60, 0.05)


def frozen_weights(context):
    """Saves a state a second time after a few of its tensors have changed."""
    titles = {how: f"{how} of mostly frozen weights" for how in ("torch.save", "safetensors")}
    if reason := child.lacks("torch", "safetensors"):
        for title in titles.values():
            context.add(TIMES, measure.Missing(title, reason))
        return
    size = context.sizes.copied_files * context.sizes.copied_size
    with (
        context.mounted("saves of mostly frozen weights", "passthrough", "safe") as mount,
        child.running(context.work / "states.log", STATES, size) as saver,
    ):
        sides = {"ours": mount.path / "steps", "native": context.disk / "native"}
        for how, title in titles.items():
            for folder in sides.values():
                (folder / "checkpoint-1").mkdir(parents=True)
                saver.ask(do="make", how=how, path="", version=0)
                saver.ask(do="save", how=how, path=str(folder / "checkpoint-1" / "model"))
            live, costs = mount.store.filled_blobs(), {}
            figures = context.rounds(
                {side: saved(context, mount, live, saver, how, folder, costs, side) for side, folder in sides.items()}
            )
            context.add(TIMES, measure.Row(title, "native XFS", measure.SECONDS, figures["ours"], figures["native"]))
            context.add(COSTS, measure.Note(title, "; ".join(costs[side] for side in sides)))
            for folder in sides.values():
                shutil.rmtree(folder / "checkpoint-1")
        shutil.rmtree(sides["native"])


def saved(context, mount, live, saver, how, series, costs, side):
    target, version = series / "checkpoint-2", 0

    def measured():
        nonlocal version
        version += 1
        question = {"how": how, "path": str(target / "model")}
        target.mkdir()
        saver.ask(do="make", version=version, **question)
        took, costs[side] = cost(context, side, lambda: saver.ask(do="save", **question))
        if not saver.ask(do="compare", **question):
            raise mounting.Failure(f"{target}: what was saved by {how} is not what is loaded")
        remove(mount, live, target)
        return took

    return measured
