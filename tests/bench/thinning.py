"""Thinning a step to bf16, against fio: it reads the weights, writes half as many bytes, and reads these back. And what
a run takes on the disk whose older steps are thinned, against theory."""

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
import thinned_run
import viewing
import views

SECTION = "Thinning a step"
RUN = "Thinning the steps of a run: the space they take"
OURS, THEORY, IN_FULL = "ckptfs", "theory", "the same steps in full"
WEIGHTS = 2 * plan.MIB  # of each step of the run
SAMPLE = 10  # saves
UNTIL_FREED = 2.5  # seconds: a file is deleted once it is durable that nothing has it, as it is within a second or two


def section(context):
    one_step(context)
    whole_run(context)


def one_step(context):
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


def whole_run(context):
    """df is taken when rotation has done its work."""
    ours, theory, count = [], [], context.sizes.saves_of_a_run
    with context.mounted("the steps of a run thinned", "passthrough", "safe", options=("quiet=0s",)) as mount:
        series = mount.path / "runs"
        series.mkdir()
        for rule, value in thinned_run.RULES.items():
            mount.control("runs", rule, str(value))
        machine.settle(context.disk)
        before = mounting.used_bytes(context.disk)
        for number in range(1, count + 1):
            thinned_run.save(series, number, thinned_run.files_of(number, WEIGHTS))
            if number % SAMPLE:
                continue
            settled = lambda last=number: thinned_run.is_settled(series, last)
            mounting.wait_until(f"rotation after {number} saves", settled, 60, 0.05)
            time.sleep(UNTIL_FREED)
            machine.settle(context.disk)
            ours.append(mounting.used_bytes(context.disk) - before)
            theory.append(thinned_run.theory(number, WEIGHTS))
            context.add(RUN, figures(number, ours[-1], theory[-1]))
    title = f"a run of {count} saves: space of its steps"
    context.add(SECTION, measure.Row(title, THEORY, measure.MEBIBYTES, ours, theory, plan.THIN_RUN_BAR))


def figures(number, ours, theory):
    in_full = thinned_run.full_size(WEIGHTS) * (len(thinned_run.full(number)) + len(thinned_run.thin(number)))
    texts = {OURS: ours, THEORY: theory, IN_FULL: in_full}
    return measure.Figures(f"{number} saves", {column: f"{bytes_ / plan.MIB:.1f} MiB" for column, bytes_ in texts.items()})
