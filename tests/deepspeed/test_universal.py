"""ckptfs.universal writes what DeepSpeed's own conversion would, of NVMe checkpoints too; DeepSpeed loads it."""

import json
import subprocess

import pytest

from harness import Ckptfs, Failure, environment, equal, python, ranks_running, true, wait_for_ranks

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.timeout(1800)]

TAG = "global_step2"
COMPARE = """
import json, pathlib, sys, torch
ours, theirs = map(pathlib.Path, sys.argv[1:])
def load(path):
    value = torch.load(path, weights_only=False)
    return value["param"] if isinstance(value, dict) and "param" in value else value
wrong, count = [], 0
for path in sorted(theirs.rglob("zero/*/*.pt")):
    name = path.relative_to(theirs)
    if path.name == "step.pt" or not (ours / name.parent / "exp_avg.pt").exists():
        continue
    count += 1
    mine, wanted = load(ours / name).reshape(-1), load(path).reshape(-1)
    if mine.dtype != wanted.dtype or not torch.equal(mine.view(torch.uint8), wanted.view(torch.uint8)):
        wrong.append(str(name))
print(json.dumps([count, wrong]))
"""


def runs(program, *arguments, module=False):
    command = [python(), *(["-m"] if module else []), program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env=environment())
    return done


def must(done, what):
    if done.returncode != 0:
        raise Failure(f"{what}: status {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def train(scene, ranks, stage, nvme, *arguments):
    scene.number += 1
    out = scene.work / f"truth-{scene.number}.json"
    common = ["--stage", str(stage), "--nvme", str(scene.point) if nvme else "none", "--out", str(out), "--tag", TAG]
    log = out.with_suffix(".log")
    with open(log, "wb") as output:
        with ranks_running(ranks, [*common, *map(str, arguments)], output, script="variety.py") as processes:
            wait_for_ranks(processes, log)
    return json.loads(out.read_text())


def same_states(got, wanted, what):
    """Of all that is trained: the master weights and the moments."""
    for name, states in wanted.items():
        for state in ("fp32", "exp_avg", "exp_avg_sq"):
            if state in states:
                equal(got[name][state]["sha256"], states[state]["sha256"], f"{what}: {name}: {state}")


HOSTILE = """
import os, pickle, sys, torch
from ckptfs import states

class Hostile:
    def __reduce__(self):
        return os.mkdir, (sys.argv[2],)

torch.save({"optimizer_state_dict": {"loss_scaler": Hostile()}}, sys.argv[1])
try:
    states.load(sys.argv[1])
except pickle.UnpicklingError as problem:
    print(problem)
"""


def test_nothing_is_run(scene):
    """Of what lies in a file of states."""
    file, made = scene.work / "optim_states.pt", scene.work / "made by the file"
    done = subprocess.run([python(), "-c", HOSTILE, file, made], capture_output=True, text=True, check=False,
                          env=environment())
    true(str(file) in must(done, "a hostile file"), f"the words: {done.stdout}")
    true(not made.exists(), "what lay in the file was run")


@pytest.mark.parametrize("ranks, stage, nvme", ((2, 3, True), (2, 3, False), (1, 2, False)))
def test_converted(scene, ranks, stage, nvme):
    """Saved by so many ranks; our conversion, and DeepSpeed's own where it can; loaded by another number of ranks."""
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        series.mkdir(exist_ok=True)
        truth = train(scene, ranks, stage, nvme, "--save", series)
        ours, theirs = series / f"{TAG}_universal", mount.path / "theirs" / f"{TAG}_universal"
        beside, elsewhere = series / f".{ours.name}.unfinished", scene.work / f"elsewhere-{scene.number}"
        elsewhere.mkdir()
        beside.symlink_to(elsewhere)
        done = runs("ckptfs.universal", series / TAG, ours, module=True)
        equal((done.returncode, list(elsewhere.iterdir()), ours.exists()), (1, [], False), "beside somebody's link")
        true("is there" in done.stderr, f"the words: {done.stderr[-300:]}")
        beside.unlink()
        beside.mkdir()
        (beside / "left").touch()  # of a run that was killed
        must(runs("ckptfs.universal", series / TAG, ours, module=True), "ckptfs.universal")
        equal((series / "latest_universal").read_text(), ours.name, "latest_universal")
        true(not (ours / "left").exists() and not beside.exists(), "what a killed run left is not there")
        theirs.parent.mkdir()
        words = ["--input_folder", series / TAG, "--output_folder", theirs, "--num_extract_workers", 1,
                 "--num_merge_workers", 1] + (["--inject_missing_state"] if stage < 3 else [])
        done = runs("deepspeed.checkpoint.ds_to_universal", *words, module=True)
        if nvme:
            words = (done.stderr.strip().splitlines() or ["?"])[-1]
            print(f"      ds_to_universal.py beside it: status {done.returncode}: {words[:120]}")
        else:
            must(done, "ds_to_universal.py")
            count, wrong = json.loads(must(subprocess.run([python(), "-c", COMPARE, ours, theirs], capture_output=True,
                                                          text=True, check=False), "comparison"))
            equal(wrong, [], f"what differs from DeepSpeed's own conversion, of {count} files")
            true(count > 20, f"only {count} files were compared")
        other = 3 if ranks == 2 else 2
        loaded = train(scene, other, stage, False, "--universal", series, "--steps", 0)
        same_states(loaded, truth, f"loaded by {other} ranks")


def test_refusals(scene):
    """What cannot be converted is told, and nothing is left behind."""
    with Ckptfs().place(scene) as mount:
        (mount.path / "steps" / "empty").mkdir()
        for step, words in ((mount.path / "steps" / "empty", "no view"), (mount.path / "steps", "no view")):
            done = runs("ckptfs.universal", step, mount.path / "out", module=True)
            equal(done.returncode, 1, f"the status for {step}")
            true(words in done.stderr, f"the words for {step}: {done.stderr[-300:]}")
        bare = subprocess.run([python(), "-S", "-m", "ckptfs.universal", mount.path / "steps", mount.path / "out"],
                              capture_output=True, text=True, check=False,
                              env=environment())
        equal(bare.returncode, 1, "the status without torch")
        true("that has torch" in bare.stderr and "Traceback" not in bare.stderr, f"the words without torch: {bare.stderr}")
        equal(sorted(path.name for path in mount.path.iterdir()), ["steps"], "what is left")
