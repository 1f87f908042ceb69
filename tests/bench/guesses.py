"""The cost of wrong predictions: steps in which every file differs from the file of that name in the previous step."""

import contextlib
import dataclasses
import itertools
import os
import shutil
import string
import time

import machine
import measure
import memory
import mounting
import plan

COSTS = "Copies: what a wrong guess costs"
STEPS = 10  # per run


@dataclasses.dataclass(frozen=True)
class Shape:
    """The steps that are written in one round."""

    title: str
    count: int  # number of files
    size: int  # of each file
    steps: int = 1
    cold: bool = False  # nothing is in memory
    trusted: bool = False  # earlier predictions were right, so the first file is predicted
    numbered: bool = False  # the names differ in numbers only; otherwise in letters


def shapes(sizes):
    count, size = sizes.copied_files, sizes.copied_size
    large, small = f"files of {size // plan.MIB} MiB", "files of 1 MiB"
    return (
        Shape(f"{count} {large}", count, size),
        Shape(f"48 {small}", 48, plan.MIB),
        Shape(f"{STEPS} steps of {count} {large}", count, size, STEPS),
        Shape(f"{STEPS} steps of {count} {large}, their names but for numbers the same", count, size, STEPS, numbered=True),
        Shape(f"{STEPS} steps of 48 {small}", 48, plan.MIB, STEPS),
    )


def section(context):
    size = context.sizes.copied_files * context.sizes.copied_size
    for mode in ("passthrough", "direct"):
        for cold in (False, True):
            title = f"one file of {size // plan.MIB} MiB that is guessed{', nothing in memory' if cold else ''}"
            add_row(context, mode, Shape(title, 1, size, cold=cold, trusted=True))
        for shape in shapes(context.sizes):
            add_row(context, mode, shape)


def add_row(context, mode, shape):
    """Uses stores of its own, because earlier predictions would influence the result."""
    with contextlib.ExitStack() as stack:

        def mounted(name, mode, *options):
            title = f"{options[0] if options else 'wrong guesses'}, {mode}"
            return stack.enter_context(context.mounted(title, mode, "safe", name, ("quiet=1h", *options)))

        sides = {"ours": mounted("store", mode), "theirs": mounted("store-off", mode, "adopt=off")}
        if shape.trusted and mode == "passthrough":
            sides["daemon"] = mounted("store-direct", "direct", "adopt=off")
        figures = context.rounds({side: written(context, mount, shape) for side, mount in sides.items()})
        wrong = sides["ours"].status()["counters"]["wrong_guesses"]
    files = (context.pairs + 1) * shape.count * shape.steps
    if wrong > files or (shape.trusted and wrong < files) or wrong == 0:
        raise mounting.Failure(f"{shape.title}: of {files} files {wrong} were guessed wrong")
    title = f"{mode}, {shape.title} (guessed wrong: {wrong} of {files})"
    row = (title, "adopt=off", measure.SECONDS, figures["ours"], figures["theirs"])
    context.add(COSTS, measure.Row(*row, plan.WRONG_GUESS_BAR))
    if "daemon" in figures:
        row = (f"{mode}, {shape.title}: had the daemon only to write it", "adopt=off", measure.SECONDS)
        context.add(COSTS, measure.Row(*row, figures["daemon"], figures["theirs"]))


NEW_NAMES = itertools.count()


def written(context, mount, shape):
    """Returns the seconds of writing the steps, each with a sync. Each round has new names."""
    data = [os.urandom(shape.size) for _ in range(2)]

    def measured():
        names = new_names(shape)
        write_step(mount, 0, names, data[0])
        if shape.trusted:
            win_trust(mount)
        machine.settle(context.disk)
        if shape.cold:
            memory.drop_caches()
        took = 0
        for step in range(1, shape.steps + 1):
            if shape.steps == 1:
                memory.touch_free()
            else:  # touching all memory takes seconds
                memory.touch_free(3 * shape.count * shape.size)
            began = time.monotonic()
            write_step(mount, step, names, data[step % 2])
            machine.sync_filesystem(context.disk)
            took += time.monotonic() - began
        for step in range(shape.steps + 1):
            shutil.rmtree(mount.path / "steps" / f"checkpoint-{step}")
        return took

    return measured


def new_names(shape):
    """The daemon judges names together that differ in numbers only (fs/adopt/prediction_backoff.h)."""
    if shape.numbered:
        pattern = letters()
        return [f"{pattern}_{number}.pt" for number in range(shape.count)]
    return [f"{letters()}.pt" for _ in range(shape.count)]


def letters():
    """Returns letters that no name has had before."""
    number, text = next(NEW_NAMES), ""
    for _ in range(4):
        number, letter = divmod(number, len(string.ascii_lowercase))
        text += string.ascii_lowercase[letter]
    return text


def win_trust(mount):
    """Writes files with new names twice: after a wrong prediction, the next few files of unknown names are not
    predicted."""
    names, data = [f"{letters()}.pt" for _ in range(4)], os.urandom(plan.MIB)
    for step in range(2):
        write_step(mount, step, names, data)


def write_step(mount, step, names, data):
    """Writes as torch.save does: in large pieces."""
    folder = mount.path / "steps" / f"checkpoint-{step}"
    folder.mkdir(exist_ok=True)
    for name in names:
        with open(folder / name, "wb", buffering=0) as file:
            for at in range(0, len(data), 4 * plan.MIB):
                file.write(memoryview(data)[at : at + 4 * plan.MIB])
