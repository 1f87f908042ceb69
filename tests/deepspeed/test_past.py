"""DeepSpeed through ckptfs.deepspeed.CheckpointEngine: the same state, in the memory that training takes."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from harness import (HERE, RUN_TIMEOUT, Ckptfs, environment, equal, python, ranks_running, true,
                     wait_for_ranks)
from mounting import MIB, run, wait_until

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(1800)]

RING = 64 * MIB  # as past.py has it


@dataclasses.dataclass(frozen=True)
class Run:
    ranks: int
    mode: str  # of the mount; "plain": none
    stage: int
    optimizer: str = "here"  # or "offloaded", or "on NVMe"

    def __str__(self):
        return f"ZeRO-{self.stage}, optimizer {self.optimizer}, {self.ranks} ranks, {self.mode}"


NORMAL = [(2, "passthrough", 3, "on NVMe")]
LONG = [(1, "direct", 2), (2, "direct", 2), (2, "passthrough", 3), (1, "passthrough", 3), (1, "plain", 3), (2, "plain", 2),
        (1, "passthrough", 2, "offloaded"), (2, "direct", 3, "offloaded"), (1, "direct", 3, "on NVMe")]


def train(scene, run_, name, *arguments, width=1024, quiet=True):
    scene.number += 1
    out = scene.work / f"{scene.number}-{name}"
    common = ["--stage", str(run_.stage), "--width", str(width), "--out", str(out)]
    common += {"here": [], "offloaded": ["--offload"], "on NVMe": ["--nvme", str(scene.point)]}[run_.optimizer]
    log = out.with_suffix(".log")
    with open(log, "wb") as output:
        with ranks_running(run_.ranks, [*common, *arguments], output, script="past.py") as processes:
            wait_for_ranks(processes, log)
    text = log.read_text(errors="replace")
    true(not quiet or "was not saved" not in text and "will not be saved" not in text, f"{name}: {text[-2000:]}")
    return [json.loads(pathlib.Path(f"{out}.{rank}").read_text()) for rank in range(run_.ranks)]


@contextlib.contextmanager
def place(scene, run_):
    if run_.mode != "plain":
        with Ckptfs(mode=run_.mode).place(scene) as mount:
            yield mount
        return
    scene.point.mkdir(exist_ok=True)
    (scene.point / "steps").mkdir()
    try:
        yield None
    finally:
        shutil.rmtree(scene.point / "steps")


@pytest.mark.long
@pytest.mark.parametrize("run_", [*(Run(*row) for row in NORMAL),
                                  *(pytest.param(Run(*row), marks=pytest.mark.long) for row in LONG)], ids=str)
def test_saves_and_loads(scene, run_):
    """Each engine loads what either saved; the run goes on as one that was not interrupted."""
    with place(scene, run_) as mount:
        series, stock = scene.point / "steps", scene.work / "stock"
        whole = train(scene, run_, "whole", "--engine", "stock", "--save", str(stock), "--after", "2")
        ours = train(scene, run_, "ours", "--engine", "ckptfs", "--save", str(series), "--after", "2")
        for mine, theirs in zip(ours, whole, strict=True):
            equal(mine["losses"], theirs["losses"], "losses of the run that saves through us")
            equal(mine["saved"], theirs["saved"], "what is saved")
        equal((series / "latest").read_text(), "global_step3", "latest")
        files = sorted(os.listdir(series / "global_step3"))
        manifests = [f"ckptfs.rank{rank:02d}.json" for rank in range(run_.ranks)]
        ids = ["ckptfs.ds_ids.json"] if run_.stage == 3 else []
        equal(files, sorted({*os.listdir(stock / "global_step3"), *manifests, *ids}), "files of the step")
        equal([name for name in os.listdir(series) if name.startswith("partial-")], [], "what was not committed")
        if mount:
            row = json.loads(run(mount.binary, "ls", "--json", series / "global_step3").stdout)["steps"][0]
            equal((row["state"], row["kind"]), ("sealed", "deepspeed"), "ls")
        for engine, source in (("ckptfs", series), ("ckptfs", stock), ("stock", series)):
            again = train(scene, run_, f"{engine}-loads", "--engine", engine, "--load", str(source), "--steps", "2")
            for mine, theirs in zip(again, whole, strict=True):
                what = f"{engine} loads from {source.name}"
                equal(mine["loaded"], theirs["saved"], f"{what}: state")
                equal(mine["losses"], theirs["losses"][-2:], f"{what}: losses")
        shutil.rmtree(stock)


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize("stage", (2, 3))
def test_in_the_memory_of_training(scene, stage):
    """Peak of the load at most that of training, plus the ring; the stock engine beside it."""
    run_, width = Run(1, "direct", stage), 3072
    with place(scene, run_):
        series = scene.point / "steps"
        first = train(scene, run_, "big", "--engine", "ckptfs", "--save", str(series), "--wait", width=width)
        true(all(rank["waited"] for rank in first), "wait() says that the step is there")
        peaks = {}
        for engine in ("ckptfs", "stock"):
            loaded = train(scene, run_, engine, "--engine", engine, "--load", str(series), "--steps", "1", width=width)
            for mine, theirs in zip(loaded, first, strict=True):
                equal(mine["loaded"], theirs["saved"], f"{engine}: state")
            peaks[engine] = max(rank["load_peak"] for rank in loaded)
            peaks["training"] = min(rank["train_peak"] for rank in loaded)
        print("      peaks: " + ", ".join(f"{name} {peak / MIB:.0f} MiB" for name, peak in peaks.items()), flush=True)
        true(peaks["ckptfs"] <= peaks["training"] + RING,
             f"the load takes {peaks['ckptfs'] / MIB:.0f} MiB, training {peaks['training'] / MIB:.0f}")
        true(peaks["ckptfs"] <= peaks["stock"], f"more than the stock engine: {peaks}")


@pytest.mark.long
def test_saves_that_follow(scene):
    """Each waits for the one before; all appear, and the last is `latest`."""
    run_ = Run(2, "direct", 3)
    with place(scene, run_):
        series = scene.point / "steps"
        train(scene, run_, "many", "--engine", "ckptfs", "--save", str(series), "--steps", "1", "--repeat", "4")
        equal(sorted(name for name in os.listdir(series) if name.startswith("global")),
              [f"global_step{number}" for number in range(1, 5)], "steps")
        equal((series / "latest").read_text(), "global_step4", "latest")


def test_a_rank_is_killed(scene):
    """In the middle of a save: the step is there whole, or not at all, and `latest` names one that is."""
    run_ = Run(2, "direct", 3)
    with place(scene, run_):
        series = scene.point / "steps"
        first = train(scene, run_, "first", "--engine", "ckptfs", "--save", str(series), "--steps", "1")
        arguments = ["--stage", str(run_.stage), "--engine", "ckptfs", "--save", str(series), "--load", str(series),
                     "--steps", "1", "--after", "20", "--out", str(scene.work / "killed")]
        with open(scene.work / "killed.log", "wb") as output:
            with ranks_running(run_.ranks, arguments, output, script="past.py") as processes:
                wait_until("the second save has begun", lambda: list(series.glob("partial-*-global_step2")), 120)
                processes[-1].kill()
                processes[-1].wait()
        latest = (series / "latest").read_text()
        there = sorted(path.name for path in series.iterdir() if path.is_dir() and not path.name.startswith("partial-"))
        true(latest == there[-1], f"latest is {latest}, steps are {there}")
        again = train(scene, run_, "again", "--engine", "ckptfs", "--load", str(series), "--steps", "1")
        if latest == "global_step1":
            equal([rank["loaded"] for rank in again], [rank["saved"] for rank in first], "state")


@pytest.mark.long
def test_a_save_that_fails(scene):
    """Is said, and training goes on as if nothing had been."""
    run_ = Run(1, "direct", 2)
    with place(scene, run_) as mount:
        series = scene.point / "steps"
        taken = series / "global_step1" / "mp_rank_00_model_states.pt"
        taken.parent.mkdir()
        taken.write_bytes(b"somebody's")
        mount.seal("steps/global_step1")
        whole = train(scene, run_, "whole", "--engine", "stock", "--steps", "3")
        log = scene.work / f"{scene.number + 1}-fails.log"
        fails = train(scene, run_, "fails", "--engine", "ckptfs", "--save", str(series), "--steps", "1", "--after", "2",
                      quiet=False)
        equal([rank["losses"] for rank in fails], [rank["losses"] for rank in whole], "losses")
        true("the step global_step1 will not be saved" in log.read_text(errors="replace"), "the log says so")
        equal(taken.read_bytes(), b"somebody's", "what was there")
        true("latest" not in os.listdir(series), "latest names what was not saved")


def with_trainer(scene, name, output_dir, *options):
    """The result of trainer.py, and its log."""
    out, log = scene.work / f"{name}.json", scene.work / f"{name}.log"
    command = [python(), HERE / "trainer.py", "--output-dir", output_dir, "--width", "256", "--log", "--out", out, *options]
    with open(log, "wb") as output:
        ended = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                               env=environment(), timeout=RUN_TIMEOUT,
                               check=False)
    text = log.read_text(errors="replace")
    equal(ended.returncode, 0, f"trainer.py: {text[-3000:]}")
    return json.loads(out.read_text()), text


@pytest.mark.long
@pytest.mark.mode("direct")
def test_the_trainer(scene, mode):
    """Checkpoints of the callback hold what the Trainer's own do, and it goes on from them."""
    with Ckptfs(mode=mode).place(scene) as mount:
        runs = mount.path / "runs"
        whole, _ = with_trainer(scene, "whole", scene.work / "whole", "--steps", "4")
        ours, log = with_trainer(scene, "behind", runs, "--steps", "4", "--behind")
        true("will not be saved" not in log and "was not saved" not in log, log[-2000:])
        equal(ours["saves"], [], "saves of the Trainer itself")
        equal([row.get("loss") for row in ours["history"]], [row.get("loss") for row in whole["history"]], "losses")
        equal(sorted(os.listdir(runs)), [f"checkpoint-{step}" for step in range(1, 5)], "checkpoints")
        mine, theirs = runs / "checkpoint-2", scene.work / "whole" / "checkpoint-2"
        equal(sorted(set(os.listdir(mine)) - {"ckptfs.rank00.json"}), sorted(os.listdir(theirs)), "files")
        compare = ("import sys, torch, safetensors.torch as s; a, b = sys.argv[1:]\n"
                   "x, y = (s.load_file(p + '/model.safetensors') for p in (a, b))\n"
                   "assert x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x), 'model'\n"
                   "x, y = (torch.load(p + '/optimizer.pt')['state'] for p in (a, b))\n"
                   "assert all(torch.equal(x[i][k], y[i][k]) for i in y for k in y[i]) and x.keys() == y.keys(), 'optimizer'")
        run(python(), "-c", compare, mine, theirs)
        row = json.loads(run(mount.binary, "ls", "--json", mine).stdout)["steps"][0]
        equal((row["kind"], row["state"]), ("hf", "complete"), "ls")
        again, _ = with_trainer(scene, "again", scene.work / "again", "--steps", "4", "--resume", mine)
        equal([row.get("loss") for row in again["history"]], [row.get("loss") for row in whole["history"]],
              "losses of the run that went on from it")
