"""Saved and resumed in a new process through ckptfs.deepspeed: every loss and every byte of state as uninterrupted."""

import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess

import pytest

from harness import Ckptfs, Failure, Tmpfs, environment, equal, python, ranks_running, true, wait_for_ranks

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(1800)]

BEFORE, AFTER = 4, 3
WIDTHS = {"odd": 901, "aligned": 1024}


@dataclasses.dataclass(frozen=True)
class Run:
    ranks: int = 1
    dtype: str = "bf16"
    shape: str = "odd"
    pipeline: bool = False
    mode: str = "passthrough"

    def __str__(self):
        return f"{self.ranks} ranks, {self.dtype}, {self.shape}{', pipelined' if self.pipeline else ''}, {self.mode}"


NORMAL = (Run(mode="direct"),)
LONG = (Run(), Run(ranks=2), Run(ranks=2, shape="aligned", mode="direct"), Run(dtype="fp16"), Run(ranks=2, pipeline=True),
        Run(dtype="fp32", shape="aligned"))


def train(scene, run_, name, *arguments):
    scene.number += 1
    out = scene.work / f"{scene.number}-{name}"
    common = ["--nvme", str(scene.point), "--dtype", run_.dtype, "--width", str(WIDTHS[run_.shape]), "--out", str(out)]
    common += ["--pipeline"] if run_.pipeline else []
    log = out.with_suffix(".log")
    with open(log, "wb") as output:
        with ranks_running(run_.ranks, [*common, *arguments], output, script="goes_on.py") as processes:
            wait_for_ranks(processes, log)
    true("parameters' names" not in log.read_text(errors="replace"), f"{name}: where the layout is the same, the exact way is taken")
    return [json.loads(pathlib.Path(f"{out}.{rank}").read_text()) for rank in range(run_.ranks)]


def uninterrupted(scene, run_):
    """On tmpfs, where no alignment can be wrong."""
    with Tmpfs().place(scene):
        return train(scene, run_, "whole", "--steps", str(BEFORE + AFTER))


def interrupted(scene, run_):
    with Ckptfs(mode=run_.mode).place(scene) as mount:
        series = mount.path / "steps"
        series.mkdir(exist_ok=True)
        first = train(scene, run_, "first", "--steps", str(BEFORE), "--save", str(series))
        equal((series / "latest").read_text(), f"global_step{BEFORE}", "latest")
        judge_view(mount.path / "views" / "steps" / f"global_step{BEFORE}", first[0]["state"])
        second = train(scene, run_, "second", "--steps", str(AFTER), "--resume", str(series))
        plain = train(scene, run_, "plain", "--steps", str(AFTER), "--resume", str(series), "--plain")
    return first, second, plain


def judge_view(view, told):
    """Each state of each parameter is what the engine told; with the map that save_checkpoint leaves, by its number, too."""
    parameters = {path.name for path in (view / "by_name").iterdir() if (path / "fp32").exists() and not path.is_symlink()}
    for name in parameters:
        for state in ("fp32", "exp_avg", "exp_avg_sq"):
            shown = hashlib.sha256((view / "by_name" / name / state).read_bytes()).hexdigest()
            equal(shown, told[name][state], f"the view's {state} of {name}")
    true(len(parameters) > 8 and parameters <= told.keys(), f"parameters of the view: {sorted(parameters)}")
    linked = {os.readlink(path).removeprefix("../by_name/") for path in (view / "tensors").iterdir()}
    true(parameters <= linked, f"without a number: {sorted(parameters - linked)}")


@pytest.mark.parametrize("run_", [*NORMAL, *(pytest.param(run_, marks=pytest.mark.long) for run_ in LONG)],
                         ids=str)
def test_resume(scene, run_):
    whole = uninterrupted(scene, run_)
    first, second, plain = interrupted(scene, run_)
    for rank in range(run_.ranks):
        equal(second[rank]["first"], BEFORE, "the step that was resumed")
        equal(first[rank]["losses"] + second[rank]["losses"], whole[rank]["losses"], f"rank {rank}: losses")
        for name, wanted in whole[rank]["state"].items():
            equal(second[rank]["state"][name], wanted, f"rank {rank}: {name} after the last step")
    lost = sum(plain[0]["state"][name] != whole[0]["state"][name] for name in whole[0]["state"])
    true(lost > 0, "DeepSpeed's own load loses nothing: this module is not needed any more")
    print(f"      by DeepSpeed's own load_checkpoint {lost} of {len(whole[0]['state'])} tensors and settings differ")


def check_of(path):
    program = "import ckptfs.deepspeed, sys; found = ckptfs.deepspeed.check(sys.argv[1]); print(found.safe, found.reason)"
    done = subprocess.run([python(), "-c", program, path], capture_output=True, text=True, check=False,
                          env=environment())
    if done.returncode != 0:
        raise Failure(done.stderr)
    return done.stdout.split(" ", 1)


def test_check_tells_where_deepspeed_reads_garbage(scene):
    """check() says of a folder what DeepSpeed would meet there."""
    with Ckptfs(odirect="safe").place(scene) as mount:
        equal(check_of(mount.path)[0], "True", "odirect=safe")
        beside = check_of(scene.work / "disk")
        equal(beside[0], "False", "plain XFS over loop")
        true("garbage" in beside[1], f"the reason is {beside[1]}")
    with Ckptfs(odirect="raw").place(scene) as mount:
        equal(check_of(mount.path)[0], "False", "odirect=raw over loop")
