"""The Hugging Face Trainer's checkpoints of a model that is mostly frozen: what did not change costs nothing."""

import json

import pytest

from checking import equal, true
from harness import Ckptfs, run_trainer
from mounting import CKPTFS, MIB, device_stat, run
from trainer import digests

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.timeout(900), pytest.mark.together]

STEPS = 10
RESUMED = 5  # from here


def truth(scene):
    """The digests of each step's tensors, from a run beside the mount that keeps one checkpoint."""
    if "trainer" not in scene.outcomes:
        result = run_trainer(scene, "truth", scene.work / "truth", STEPS, "--keep", "1")
        scene.outcomes["trainer"] = [save["digests"] for save in result["saves"]]
    return scene.outcomes["trainer"]


def bytes_below(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def judge_space(checkpoints, result):
    """Judge: all take at most 1.15 times what one takes, and what changed: trained weights, optimizer, small files."""
    changed = [bytes_below(path) - result["frozen"] for path in checkpoints[1:]]
    used = [save["used"] - result["used"] for save in result["saves"]]
    wanted = 1.15 * (used[0] + sum(changed))
    print(f"      one: {used[0] / MIB:.1f} MiB; each other changes {changed[0] / MIB:.1f} MiB; "
          f"all {len(used)}: {used[-1] / MIB:.1f} MiB, at most {wanted / MIB:.1f} MiB", flush=True)
    true(result["frozen"] > 64 * MIB and used[0] > result["frozen"], f"too little is frozen to tell: {used[0]} bytes")
    true(used[-1] <= wanted, f"{len(used)} checkpoints take {used[-1]} bytes, more than {wanted:.0f}: {used}")


def judge_contents(checkpoints, wanted, what):
    for path, right in zip(checkpoints, wanted, strict=True):
        equal(digests(path), right, f"{path.name}, {what}")


def judge_thin(checkpoint, wanted):
    """Its weights are the same file, and what only a resume needs is gone."""
    before = (checkpoint / "model.safetensors").stat().st_ino
    done = json.loads(run(CKPTFS, "thin", "--json", checkpoint).stdout)["thinned"][0]
    equal([one["name"] for one in done["kept"]], ["model.safetensors"], "what is kept")
    equal((checkpoint / "model.safetensors").stat().st_ino, before, "the file of weights")
    equal(digests(checkpoint, ["model.safetensors"])["model.safetensors"], wanted["model.safetensors"], "the weights")
    left = [name for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth") if (checkpoint / name).exists()]
    equal(left, [], "what only a resume needs")
    true((checkpoint / "trainer_state.json").exists() and (checkpoint / "config.json").exists(), "the small files")


def test_ten_checkpoints(scene, mode):
    wanted = truth(scene)
    with Ckptfs(mode=mode).place(scene) as mount:
        output_dir, disk = mount.path / "runs" / "model", mount.store.inner
        result = run_trainer(scene, f"trainer-{mode}", output_dir, STEPS, "--measure", disk, device_stat(disk))
        checkpoints = [output_dir / f"checkpoint-{step}" for step in range(1, STEPS + 1)]
        judge_space(checkpoints, result)
        mount.remount()
        judge_contents(checkpoints, wanted, "after a new mount")
        # Goes on, and writes the checkpoints after it once more.
        resumed = run_trainer(scene, f"resumed-{mode}", output_dir, STEPS, "--resume", checkpoints[RESUMED - 1])
        equal([save["digests"] for save in resumed["saves"]], wanted[RESUMED:], "what a resumed training saves")
        judge_contents(checkpoints, wanted, "after they were written again")
        judge_thin(checkpoints[0], wanted[0])
        status = mount.status()
        scene.check_status(status)
        equal(status["counters"]["adoption_fallbacks"], 0, "files that were not adopted though there was a guess")
