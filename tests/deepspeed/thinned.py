"""Thins a step of a real training, and compares what is left with what its view showed before."""

import hashlib
import json
import os
import pathlib
import subprocess

from checking import equal, true
from harness import environment, python
from mounting import CKPTFS, Failure, run

# What each tensor of a safetensors file is.
LOAD = """
import hashlib, json, sys, torch
from safetensors import safe_open
found = {}
with safe_open(sys.argv[1], "pt") as file:
    for name in file.keys():
        tensor = file.get_tensor(name)
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        found[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), hashlib.sha256(data).hexdigest()]
json.dump(found, sys.stdout)
"""


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def by_python(program, *arguments):
    done = subprocess.run([python(), "-c", program, *map(str, arguments)], env=environment(), capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"python: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def models_of(view):
    return {path.name: digest(path) for path in view.iterdir() if path.name.startswith("model.")}


def thin(step, kind):
    """Of the step only the weights stay: they are what its view showed before, and what it shows now."""
    view = pathlib.Path(str(step).replace("/steps/", "/views/steps/").replace("/runs/", "/views/runs/"))
    before = models_of(view)
    stays = kind == "same" and (step / "model.safetensors").exists()  # transformers wrote it, with a header of its own
    report = json.loads(run(CKPTFS, "thin", "--json", "--to", kind, step).stdout)["thinned"][0]
    model = f"model.{report['type']}.safetensors"
    tensors = by_python(LOAD, view / model)
    equal([one["name"] for one in report["kept"]], ["model.safetensors"], "the files that are kept")
    if not stays:
        equal(digest(step / "model.safetensors"), before[model], f"the weights, against {model} before")
    equal(digest(view / model), before[model], f"{model} of the view, against before")
    equal(by_python(LOAD, step / "model.safetensors"), tensors, "the tensors")
    left = [path.name for path in step.rglob("*") if path.suffix in (".pt", ".pth", ".swp", ".distcp") or path.name == ".metadata"]
    equal(left, [], "what was for a resume")
    equal(os.getxattr(step, "user.ckptfs.state"), b"weights", "state")
    size = (step / "model.safetensors").stat().st_size
    true(report["exclusive_after"] <= 1.02 * size + 65536, f"bytes on the disk: {report['exclusive_after']} of {size}")
    return report
