"""What it costs to guess wrong what a new file will hold: steps of which every file is another than the one before."""

import itertools
import os
import shutil
import time

import machine
import measure
import memory
import mounting
import plan

COSTS = "Copies: what a wrong guess costs"
STEPS = 10  # of a run


def section(context):
    for mode in ("passthrough", "direct"):
        with (
            context.mounted(f"wrong guesses, {mode}", mode, "safe", options=("quiet=1h",)) as guessing,
            context.mounted(f"adopt=off, {mode}", mode, "safe", "store-off", ("adopt=off", "quiet=1h")) as plain,
        ):
            sides = {"ours": guessing, "theirs": plain}
            large = (context.sizes.copied_files, context.sizes.copied_size)
            small = (48, plan.MIB)
            runs = ((large, 1, False), (large, 1, True), (large, STEPS, False), (small, 1, False), (small, STEPS, False))
            for (count, size), steps, cold in runs:
                figures = context.rounds(
                    {side: rewritten(context, mount, count, size, steps, cold) for side, mount in sides.items()}
                )
                names = "names of their own" if steps == 1 else f"{steps} steps"
                title = f"{mode}, {count} files of {size // plan.MIB} MiB, {names}{', nothing in memory' if cold else ''}"
                row = (title, "adopt=off", measure.SECONDS, figures["ours"], figures["theirs"])
                context.add(COSTS, measure.Row(*row, plan.WRONG_GUESS_BAR))
            if guessing.status()["counters"]["wrong_guesses"] == 0:
                raise mounting.Failure("no guess was made: nothing was measured")


def rewritten(context, mount, count, size, steps, cold):
    """Seconds of writing the steps, each with the sync behind it. Names are new in each round, but like those before
    (fs/trust.h)."""
    data = [os.urandom(size) for _ in range(2)]
    rounds = itertools.count()

    def measured():
        round_ = next(rounds)
        names = [f"{round_}_{size}_{steps}_{cold}_{number}.pt" for number in range(count)]
        write_step(mount, 0, names, data[0])
        machine.settle(context.disk)
        if cold:
            memory.drop_caches()
        took = 0
        for step in range(1, steps + 1):
            memory.touch_free(3 * count * size)
            began = time.monotonic()
            write_step(mount, step, names, data[step % 2])
            machine.sync_filesystem(context.disk)
            took += time.monotonic() - began
        for step in range(steps + 1):
            shutil.rmtree(mount.path / "steps" / f"checkpoint-{step}")
        return took

    return measured


def write_step(mount, step, names, data):
    """As torch.save: in large pieces."""
    folder = mount.path / "steps" / f"checkpoint-{step}"
    folder.mkdir()
    for name in names:
        with open(folder / name, "wb", buffering=0) as file:
            for at in range(0, len(data), 4 * plan.MIB):
                file.write(memoryview(data)[at : at + 4 * plan.MIB])
