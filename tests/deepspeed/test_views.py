"""Every tensor of a DeepSpeed step's view is, byte for byte, what the engine itself told at the save."""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from harness import Ckptfs, environment, equal, python, ranks_running, true, wait_for_ranks
from thinned import LOAD, by_python, digest, thin

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.timeout(1800)]

TAG = "global_step2"
CAST = """
import hashlib, json, sys, torch
from safetensors.torch import load_file
found = {}
for name, tensor in load_file(sys.argv[1]).items():
    tensor = tensor.to(getattr(torch, sys.argv[2])) if tensor.is_floating_point() else tensor
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    found[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), hashlib.sha256(data).hexdigest()]
json.dump(found, sys.stdout)
"""


@dataclasses.dataclass(frozen=True)
class Run:
    ranks: int = 1
    stage: int = 3
    dtype: str = "bf16"
    swapped: bool = True
    pipeline: bool = False
    mode: str = "passthrough"

    def __str__(self):
        where = ("pipelined nvme" if self.pipeline else "nvme") if self.swapped else "cpu"
        return f"{self.ranks} ranks, stage {self.stage}, {self.dtype}, {where}, {self.mode}"


RUNS = (
    Run(ranks=2),
    Run(),
    Run(ranks=3, dtype="fp16", mode="direct"),
    Run(ranks=2, dtype="fp32"),
    Run(ranks=2, pipeline=True),
    Run(ranks=2, swapped=False),
    Run(ranks=3, dtype="fp32", swapped=False),
    Run(ranks=1, stage=1, swapped=False),
    Run(ranks=3, stage=2, swapped=False),
    Run(ranks=2, stage=2, dtype="fp16", swapped=False),
)


def train(scene, run):
    """Trains and saves; what the engine says of each tensor."""
    scene.number += 1
    out = scene.work / f"truth-{scene.number}.json"
    arguments = ["--stage", str(run.stage), "--dtype", run.dtype, "--nvme", str(scene.point) if run.swapped else "none",
                 "--save", str(scene.point / "steps"), "--tag", TAG, "--out", str(out)]
    arguments += ["--pipeline"] if run.pipeline else []
    log = out.with_suffix(".log")
    with open(log, "wb") as output, ranks_running(run.ranks, arguments, output, script="variety.py") as processes:
        wait_for_ranks(processes, log)
    return json.loads(out.read_text())


def judge_by_name(view, truth):
    """Each state of each parameter, its length, and that nothing but those is there."""
    folder = view / "by_name"
    equal(sorted(path.name for path in folder.iterdir() if not path.is_symlink()), sorted(truth), "parameters")
    for name, states in truth.items():
        shown = {path.name for path in (folder / name).iterdir()}
        wanted = set(states) if len(states) == 1 or "param" in shown else set(states) - {"param"}
        equal(sorted(shown), sorted(wanted), f"states of {name}")
        for state in shown:
            equal(digest(folder / name / state), states[state]["sha256"], f"{name}: {state}")
    equal(os.readlink(folder / "head.weight"), "embedding.weight", "the tied parameter")


def judge_models(view, truth, run):
    fp32 = by_python(LOAD, view / "model.fp32.safetensors")
    equal(sorted(fp32), sorted(truth), "tensors of the model")
    for name, states in truth.items():
        wanted = states.get("fp32")
        if wanted:
            equal(fp32[name], [wanted["dtype"], wanted["shape"], wanted["sha256"]], f"model.fp32: {name}")
    for kind, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        wanted = by_python(CAST, view / "model.fp32.safetensors", dtype)
        if kind == run.dtype:  # what such a model keeps in fp32, stays so
            wanted |= {name: fp32[name] for name, states in truth.items() if states.get("param", {}).get("dtype") == "float32"}
        equal(by_python(LOAD, view / f"model.{kind}.safetensors"), wanted, f"model.{kind}, against torch's cast")
    native = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[run.dtype]
    linked = by_python(LOAD, view / "model.safetensors")
    equal(linked["scalar"][0], native, "the type of model.safetensors")


def judge_manifest(view, truth):
    manifest = json.loads((view / "manifest.json").read_text())
    equal(manifest["problems"], [], "problems")
    equal({tensor["name"] for tensor in manifest["tensors"]}, set(truth), "tensors of the manifest")
    step = pathlib.Path(str(view).replace("/views/", "/"))
    for tensor in manifest["tensors"]:
        data = b""
        for index, offset, size in tensor["pieces"]:
            with open(step / manifest["files"][index]["path"], "rb") as file:
                file.seek(offset)
                data += file.read(size)
        equal(hashlib.sha256(data).hexdigest(), truth[tensor["name"]][tensor["state"]]["sha256"],
              f"the manifest's pieces of {tensor['name']}")


def judge_ids(view):
    """ds_ids are those of the swap files: of the first and the last parameter of each group."""
    links = {path.name: os.readlink(path) for path in (view / "tensors").iterdir()}
    true(links, "no parameter has a ds_id")
    for target in links.values():
        true((view / "tensors" / target).is_dir(), f"{target} leads nowhere")


def judge_alone(mount, truth):
    """A save alone of the same state: it has the names of the step that DeepSpeed made, and all that is swapped."""
    mount.save("alone")
    view = mount.path / "views" / "steps" / "alone"
    equal(json.loads((view / "manifest.json").read_text())["names_from"], f"/steps/{TAG}", "where names come from")
    shown = {(path.name, state.name): digest(state) for path in (view / "by_name").iterdir() if not path.is_symlink()
             for state in path.iterdir()}
    true(("embedding.weight", "exp_avg_sq") in shown, f"the largest parameter is not there: {sorted(shown)}")
    for (name, state), found in shown.items():
        equal(found, truth[name][state]["sha256"], f"of a save alone, {name}: {state}")


def judge_thin(series, tag):
    """Of copies of the step, since the newest one cannot be thinned."""
    kinds = ("fp32", "same", "fp16")
    for number, _ in enumerate((*kinds, "newest")):
        shutil.copytree(series / tag, series / f"checkpoint-{90 + number}")
    for number, kind in enumerate(kinds):
        thin(series / f"checkpoint-{90 + number}", kind)


def beside(scene):
    """What DeepSpeed's own tool makes of the same."""
    out = scene.work / f"zero_to_fp32-{scene.number}"
    done = subprocess.run([python(), scene.point / "steps" / "zero_to_fp32.py", scene.point / "steps", out, "-t", TAG],
                          env=environment(), capture_output=True, text=True, check=False)
    words = (done.stderr.strip().splitlines() or ["?"])[-1] if done.returncode else "ended with success"
    print(f"      zero_to_fp32.py beside it: {words[:150]}")


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_views(scene, run):
    with Ckptfs(mode=run.mode).place(scene) as mount:
        (scene.point / "steps").mkdir(exist_ok=True)
        truth = train(scene, run)
        view = mount.path / "views" / "steps" / TAG
        judge_by_name(view, truth)
        judge_models(view, truth, run)
        judge_manifest(view, truth)
        if run.stage == 3:
            judge_ids(view)
        if run.swapped:
            judge_alone(mount, truth)
        beside(scene)
        judge_thin(mount.path / "steps", TAG)


def test_distributed(scene):
    """What PyTorch's own distributed checkpoint wrote, of three ranks."""
    out = scene.work / "truth-distributed.json"
    log = out.with_suffix(".log")
    with Ckptfs().place(scene) as mount:
        series = scene.point / "runs"
        series.mkdir()
        arguments = [str(series / "checkpoint-1"), str(out)]
        with open(log, "wb") as output, ranks_running(3, arguments, output, script="distributed.py") as processes:
            wait_for_ranks(processes, log)
        truth = json.loads(out.read_text())
        view = mount.path / "views" / "runs" / "checkpoint-1"
        equal(json.loads((view / "manifest.json").read_text())["problems"], [], "problems")
        shown = {path.name: {state.name: digest(state) for state in path.iterdir()}
                 for path in (view / "by_name").iterdir()}
        wanted = {name: {state: told["sha256"] for state, told in states.items()} for name, states in truth.items()}
        equal(shown, wanted, "tensors")
        model = by_python(LOAD, view / "model.fp32.safetensors")
        equal(set(model), {name for name, states in truth.items() if "param" in states}, "tensors of the model")
        told = truth["embedding.weight"]["param"]
        equal(model["embedding.weight"], [told["dtype"], told["shape"], told["sha256"]], "the embedding in the model")
        judge_thin(series, "checkpoint-1")
