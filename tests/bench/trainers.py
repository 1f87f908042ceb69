"""Checkpoints of the Hugging Face Trainer with a mostly frozen model: on the mount, on XFS, and from there archived
by restic and borg."""

import contextlib
import os
import shutil
import statistics
import time

import child
import machine
import measure
import mounting
import plan

TIMES = "Checkpoints of a Trainer"
SPACE = "Checkpoints of a Trainer: the space they take"
SAVE = "a checkpoint"
PROGRAM = mounting.REPOSITORY / "tests" / "deepspeed" / "trainer.py"
LABELS = {"ours": "ckptfs", "native": "native XFS", "restic": "restic", "borg": "borg"}


def section(context):
    if reason := child.lacks("torch", "transformers"):
        context.add(TIMES, measure.Missing(SAVE, reason))
        return
    with context.mounted("checkpoints of a Trainer", "passthrough", "safe") as mount, contextlib.ExitStack() as stack:
        folders = {"ours": mount.path / "runs" / "model", "native": context.disk / "native" / "model"}
        stack.callback(shutil.rmtree, context.disk / "native", ignore_errors=True)
        runs = {side: stack.enter_context(run(context, side, folder)) for side, folder in folders.items()}
        grown = {side: [] for side in LABELS}
        contestants = {side: saving(context, runs[side], grown[side]) for side in folders}
        contestants["native"]()  # the archivers are one checkpoint behind
        grown["native"].clear()
        for name, archiver in (("restic", Restic), ("borg", Borg)):
            if shutil.which(name):
                contestants[name] = archiving(context, archiver(context), folders["native"], grown[name])
            else:
                context.add(TIMES, measure.Missing(f"{SAVE}, {name}", f"there is no {name}: run scripts/setup --bench"))
        figures = context.rounds(contestants)
        for side in list(contestants)[1:]:
            context.add(TIMES, measure.Row(SAVE, LABELS[side], measure.SECONDS, figures["ours"], figures[side]))
        for side in contestants:
            median = statistics.median(grown[side][1:])
            context.add(SPACE, measure.Note(LABELS[side], f"{median / plan.MIB:.1f} MiB"))
        same_states(folders, context.pairs)


@contextlib.contextmanager
def run(context, side, folder):
    words = ("--output-dir", folder, "--steps", context.pairs + 2, "--out", context.work / f"trainer-{side}.json")
    measured = ("--measure", context.disk, mounting.device_stat(context.disk))
    with child.running(context.work / f"trainer-{side}.log", PROGRAM, *words, *measured, "--paced") as trainer:
        yield trainer


def saving(context, trainer, grown):
    def measured():
        before = mounting.used_bytes(context.disk)
        saved = trainer.ask()
        grown.append(saved["used"] - before)
        return saved["synced"]

    return measured


class Restic:
    def __init__(self, context):
        work = context.work / "restic"
        self.repository = context.disk / "native" / "restic"
        self.environment = dict(os.environ, RESTIC_PASSWORD="none", RESTIC_CACHE_DIR=str(work))
        self.command("init")

    def command(self, *words):
        mounting.run("restic", "--quiet", "--repo", self.repository, *words, env=self.environment)

    def store(self, folder):
        self.command("backup", folder)


class Borg:
    def __init__(self, context):
        self.repository = context.disk / "native" / "borg"
        self.environment = dict(os.environ, BORG_BASE_DIR=str(context.work / "borg"))
        self.command("init", "--encryption=none", self.repository)

    def command(self, *words):
        mounting.run("borg", *words, env=self.environment)

    def store(self, folder):
        self.command("create", f"{self.repository}::{folder.name}", folder)


def archiving(context, archiver, series, grown):
    step = 0

    def measured():
        nonlocal step
        step += 1
        machine.sync_filesystem(context.disk)
        used, began = mounting.used_bytes(context.disk), time.monotonic()
        archiver.store(series / f"checkpoint-{step}")
        machine.sync_filesystem(context.disk)
        took = time.monotonic() - began
        grown.append(mounting.used_bytes(context.disk) - used)
        return took

    return measured


def same_states(folders, count):
    for step in range(1, count + 2):
        for name in ("model.safetensors", "optimizer.pt"):
            ours, native = (folders[side] / f"checkpoint-{step}" / name for side in ("ours", "native"))
            mounting.run("cmp", ours, native)
