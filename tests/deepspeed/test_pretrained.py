"""transformers loads a model from a step's view, and from the step when it is thin. Its parameters and its logits are,
bit for bit, those of the model that transformers' own save_pretrained has saved."""

import json
import shutil

import pytest

from checking import equal, true
from harness import Ckptfs, ranks_running, run_trainer, wait_for_ranks
from thinned import thin

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(900)]


def answer(scene, *words):
    """What pretrained.py prints."""
    log = scene.work / "pretrained.log"
    with open(log, "wb") as output, ranks_running(1, list(map(str, words)), output, script="pretrained.py") as ranks:
        wait_for_ranks(ranks, log)
    return json.loads(next(line for line in reversed(log.read_text(errors="replace").splitlines()) if line.startswith("{")))


@pytest.mark.long
def test_deepspeed(scene):
    """A step of ZeRO-3, with the optimizer on NVMe."""
    own = scene.work / "own"
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        truth = answer(scene, "train", series, mount.path, own)
        loaded = answer(scene, "load", mount.path / "views" / "steps" / "global_step1", "auto")
        equal(loaded["parameters"], truth, "from_pretrained, against the engine's own parameters")
        true(loaded["tied"], "the head is not tied to the embedding")
        true(loaded["slice"], "a slice of the mapped file differs")
        equal(loaded, answer(scene, "load", own, "auto"), "the view, against save_pretrained")
        for number in (2, 3):  # the newest one, and that which `latest` names, cannot be thinned
            shutil.copytree(series / "global_step1", series / f"global_step{number}")
        equal(thin(series / "global_step2", "same")["type"], "bf16", "the type of the weights")
        equal(answer(scene, "load", series / "global_step2", "auto"), loaded, "the thin step, against its view before")


def judge_thin(scene, mount, step, kind, dtype):
    """Thins a Trainer's step. What is loaded of it is given back."""
    own = scene.work / f"own-{step.name}-{dtype}"
    wanted = answer(scene, "cast", step, dtype, own)
    shutil.rmtree(own)
    view = mount.path / "views" / step.relative_to(mount.path)
    equal(answer(scene, "load", view, dtype), wanted, f"the view in {dtype}, against save_pretrained")
    thin(step, kind)
    equal(answer(scene, "load", step, dtype), wanted, f"the thin step in {dtype}, against save_pretrained")
    return wanted


@pytest.mark.long
def test_trainer(scene):
    """Of one step the weights stay as they are, of another they become smaller."""
    with Ckptfs(mode="direct").place(scene) as mount:
        series = mount.path / "runs" / "model"
        run_trainer(scene, "trainer", series, 3, "--width", 128, "--layers", 2)
        first = judge_thin(scene, mount, series / "checkpoint-1", "same", "float32")
        second = judge_thin(scene, mount, series / "checkpoint-2", "bf16", "bfloat16")
        true(first["logits"] != second["logits"], "the logits of all steps are the same")
        equal(answer(scene, "load", series / "checkpoint-2", "auto")["logits"][0], "torch.float32",
              "the type that config.json still names")


@pytest.mark.long
def test_trainer_with_deepspeed(scene):
    """Both devices on NVMe. The step holds the weights twice: in DeepSpeed's files, and as the Trainer gathered them."""
    with Ckptfs().place(scene) as mount:
        series, log = mount.path / "runs" / "model", scene.work / "nvme.log"
        words = ["--nvme", scene.point, "--output-dir", series, "--steps", "3", "--save-steps", "1", "--out", scene.work / "nvme"]
        with open(log, "wb") as output, ranks_running(1, list(map(str, words)), output, script="trainer_nvme.py") as ranks:
            wait_for_ranks(ranks, log)
        judge_thin(scene, mount, series / "checkpoint-1", "same", "float32")
        judge_thin(scene, mount, series / "checkpoint-2", "bf16", "bfloat16")
