"""A hostile user beside the real DeepSpeed, ten minutes long: it trains as it does alone, and nothing gets out."""

import concurrent.futures
import pathlib
import shutil
import statistics
import time

import pytest

import hostile
from checking import equal, in_child, true
from harness import SWAP, TAG, Ckptfs, Outcome, checkpoint_files, same_checkpoint, same_outcome
from mounting import KIB, MIB

pytestmark = [pytest.mark.builds("venv"), pytest.mark.level("long"), pytest.mark.timeout(3600), pytest.mark.alone]

SECONDS = 600
ATTACKERS = 2
ROUNDS_ALONE = 3


def train(scene, label):
    """One training and its checkpoint, from nothing; the outcome, and how long its steps took."""
    shutil.rmtree(scene.point / SWAP, ignore_errors=True)
    shutil.rmtree(scene.point / "steps" / TAG, ignore_errors=True)
    series = scene.point / "steps"
    results = scene.train("hostile", 1, ["--nvme", str(scene.point), "--tag", TAG, "--save", str(series)])
    return Outcome(label, results, checkpoint_files(series, results)), results[0]["train_seconds"]


def peak_memory(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("no VmHWM")


def test_beside_a_training(scene, mode):
    with Ckptfs(mode=mode).place(scene) as mount, concurrent.futures.ThreadPoolExecutor() as pool:
        hostile.make_ground(mount.path)
        alone = [train(scene, "alone") for _ in range(ROUNDS_ALONE)]
        truth = alone[0][0]
        socket_path = mount.ask(".", "socket")
        attackers = [
            pool.submit(in_child, lambda seed=seed: hostile.play(socket_path, SECONDS, seed), uid=hostile.ATTACKER,
                        folder=mount.path)
            for seed in range(ATTACKERS)
        ]
        end, beside = time.monotonic() + SECONDS, []
        while time.monotonic() < end:
            outcome, seconds = train(scene, f"round {len(beside) + 1} beside {ATTACKERS} attackers")
            same_outcome(outcome, truth)
            same_checkpoint(outcome, truth)
            beside.append(seconds)
        counts = [attacker.result() for attacker in attackers]
        ratio = statistics.median(beside) / statistics.median(seconds for _, seconds in alone)
        status = mount.status()
        memory, allowed = peak_memory(mount.pid), 256 * MIB + status["remembered_inodes"] * KIB
        print(f"      {len(beside)} trainings beside {counts} attempts; steps took {ratio:.2f} of what they take alone; "
              f"the daemon had {memory / MIB:.0f} MiB", flush=True)
        equal(status["pid"], mount.pid, "the daemon that answers")
        equal(status["recovery"]["damaged"], [], "damaged names")
        true(memory <= allowed, f"the daemon's memory: {memory} bytes of {allowed}")
