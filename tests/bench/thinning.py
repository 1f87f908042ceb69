"""Thinning a step to bf16, against fio: it reads the weights, writes half as many bytes, and reads these back."""

import itertools
import json
import os
import shutil
import time

import machine
import measure
import memory
import mounting
import past
import plan
import viewing
import views

SECTION = "Thinning a step"


def section(context):
    with context.mounted("thinning", "passthrough", "safe", options=("quiet=0s",)) as mount:
        size, numbers, spaces = context.sizes.viewed, itertools.count(), []

        def thin():
            step = make_step(mount, next(numbers), size)
            machine.sync_filesystem(context.disk)
            memory.drop_caches()
            began = time.monotonic()
            mounting.run(mounting.CKPTFS, "thin", "--to", "bf16", step)
            took = time.monotonic() - began
            kept = (step / "model.safetensors").stat().st_size
            spaces.append((int(os.getxattr(step, "user.ckptfs.bytes.exclusive")), kept))
            shutil.rmtree(step)
            machine.sync_filesystem(context.disk)
            return took

        def fio():
            bytes_of = {"read": size, "write": size // 2}
            seconds = sum(bytes_of[what] / past.fio(context.disk, what, bytes_of[what]) for what in ("read", "write"))
            seconds += bytes_of["write"] / past.fio(context.disk, "read", bytes_of["write"])
            (context.disk / "fio").unlink()
            return seconds

        figures = context.rounds({"thin": thin, "fio": fio})
        title = f"{size // plan.MIB} MiB of fp32 to bf16"
        row = (title, "fio, the same bytes", measure.SECONDS, figures["thin"], figures["fio"])
        context.add(SECTION, measure.Row(*row, plan.THIN_BAR))
        row = (f"{title}: space of the thin step", "its model.safetensors", measure.MEBIBYTES)
        context.add(SECTION, measure.Row(*row, *zip(*spaces, strict=True), plan.THIN_SPACE_BAR))


def make_step(mount, number, size):
    """A step of fp32 weights that a resume could take, with a newer one behind it."""
    for tag, weights in ((2 * number + 1, size), (2 * number + 2, plan.MIB)):
        step = mount.path / "runs" / f"checkpoint-{tag}"
        views.write_checkpoint(step, weights)
        (step / "trainer_state.json").write_text(json.dumps({"global_step": tag, "log_history": []}))
        (step / "optimizer.pt").write_bytes(viewing.torch_file(b"moments"))
    return mount.path / "runs" / f"checkpoint-{2 * number + 1}"
