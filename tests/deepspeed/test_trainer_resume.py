"""The real Trainer with DeepSpeed, both devices on NVMe, killed and resumed by resume_from_checkpoint=True: with
ckptfs.patch or the Trainer's callback every later loss and the final state are those of the uninterrupted run. The same
for accelerate's save_state and load_state. Lightning has no test of its own, since its DeepSpeed strategy refuses to run
without a GPU; it calls the same functions of the engine (test_engine_patch)."""

import contextlib
import dataclasses
import json
import pathlib

import pytest

from harness import Ckptfs, Tmpfs, equal, ranks_running, true, wait_for_ranks

pytestmark = [pytest.mark.long, pytest.mark.builds("venv"), pytest.mark.timeout(1800)]

STEPS, SAVED, KILLED = 7, 4, 5


@dataclasses.dataclass(frozen=True)
class Run:
    ranks: int = 1
    way: str = "-m"  # to the patch: `python -m ckptfs.patch`, an import after DeepSpeed's, or the callback
    mode: str = "passthrough"
    words: tuple = ()
    script: str = "trainer_nvme.py"
    tag: str = f"global_step{SAVED}"  # which `latest` names

    def __str__(self):
        by = "" if self.script == Run.script else f", {self.script}"
        return f"{self.ranks} ranks, {self.way}, {self.mode}{''.join(', ' + word for word in self.words)}{by}"


NORMAL = (Run(mode="direct"),)
LONG = (Run(way="import"), Run(ranks=2, way="callback"), Run(ranks=2, mode="direct"), Run(words=("--scheduler",)),
        Run(words=("--pipeline",)), Run(ranks=2, script="accelerate_nvme.py", tag="pytorch_model"))
WAYS = {"-m": [], "import": ["--import-patch"], "callback": ["--callback"], "none": []}


@contextlib.contextmanager
def training(scene, run_, name, *words):
    """Its processes; yields them with the path of the results and the log."""
    scene.number += 1
    out = scene.work / f"{scene.number}-{name}"
    given = ["--nvme", str(scene.point), "--output-dir", str(scene.point / "runs" / "model"), "--steps", str(STEPS),
             "--save-steps", str(SAVED), "--out", str(out), *run_.words, *words]
    log = out.with_suffix(".log")
    with open(log, "wb") as output:
        with ranks_running(run_.ranks, given, output, patched=run_.way == "-m", script=run_.script) as processes:
            yield processes, out, log


def train(scene, run_, name, *words):
    """To its end; the results of the ranks."""
    with training(scene, run_, name, *words, *WAYS[run_.way]) as (processes, out, log):
        wait_for_ranks(processes, log)
    return [json.loads(pathlib.Path(f"{out}.{rank}").read_text()) for rank in range(run_.ranks)]


def train_until_killed(scene, run_):
    with training(scene, run_, "killed", "--kill-after", str(KILLED), *WAYS[run_.way]) as (processes, _out, log):
        for process in processes:
            process.wait()
        true(any(process.returncode == -9 for process in processes), log.read_text(errors="replace")[-3000:])


def uninterrupted(scene, run_):
    """On tmpfs, where no alignment can be wrong, and nothing is patched."""
    with Tmpfs().place(scene):
        return train(scene, dataclasses.replace(run_, way="none"), "whole")


def lossy(mount):
    return [warning for warning in mount.status()["warnings"] if "begins the optimizer anew" in warning]


def judge(resumed, whole):
    for rank, (ours, wanted) in enumerate(zip(resumed, whole, strict=True)):
        equal(ours["first"], SAVED, "the step that was resumed")
        equal(ours["losses"], wanted["losses"][SAVED:], f"rank {rank}: losses")
        equal(ours["state"].keys(), wanted["state"].keys(), f"rank {rank}: parameters and settings")
        for name, right in wanted["state"].items():
            equal(ours["state"][name], right, f"rank {rank}: {name} after the last step")


@pytest.mark.parametrize("run_", [*NORMAL, *(pytest.param(run_, marks=pytest.mark.long) for run_ in LONG)],
                         ids=str)
def test_resume(scene, run_):
    whole = uninterrupted(scene, run_)
    with Ckptfs(mode=run_.mode).place(scene) as mount:
        checkpoint = mount.path / "runs" / "model" / f"checkpoint-{SAVED}"
        train_until_killed(scene, run_)
        equal((checkpoint / "latest").read_text(), run_.tag, "latest")
        judge(train(scene, run_, "resumed", "--resume"), whole)
        equal(lossy(mount), [], "warnings of a resume that lost nothing")


@pytest.mark.long
def test_other_ranks_go_on(scene):
    """Two ranks are killed; one goes on from what they had saved, then three."""
    run_ = Run(ranks=2)
    alone, other = dataclasses.replace(run_, ranks=1), dataclasses.replace(run_, ranks=3)
    with Ckptfs().place(scene) as mount:
        train_until_killed(scene, run_)
        words = ("--resume", "--tell-begin", "--steps")
        saved = train(scene, run_, "exact", *words, str(SAVED + 1))[0]["state"]  # it saves at its end
        for on, last in ((alone, STEPS), (other, STEPS + 2)):
            results = train(scene, on, "goes on", *words, str(last))
            for result in results:
                for name in saved.keys() - {"steps"}:
                    equal(result["began"][name], saved[name], f"{on.ranks} ranks begin with: {name}")
                equal(set(result["began"]["steps"]), set(saved["steps"]), "steps of Adam")
            saved = results[0]["state"]
        equal(lossy(mount), [], "warnings of a resume that lost nothing")


@pytest.mark.long
def test_without_the_patch_it_is_told_of(scene):
    """Else this module is not needed any more."""
    run_ = Run(way="none")
    whole = uninterrupted(scene, run_)
    with Ckptfs().place(scene) as mount:
        train_until_killed(scene, run_)
        resumed = train(scene, run_, "resumed", "--resume")
        true(resumed[0]["state"] != whole[0]["state"], "DeepSpeed's own load loses nothing")
        warnings = lossy(mount)
        equal([warning.split(":")[0] for warning in warnings], [f"/runs/model/checkpoint-{SAVED}"], "the warning of it")
        equal(mount.log.read_text().count("begins the optimizer anew"), 1, "lines in the log")
