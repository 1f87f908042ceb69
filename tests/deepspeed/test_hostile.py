"""A hostile user beside the real DeepSpeed, ten minutes long: it trains as it does alone, and nothing gets out.

Whoever may run processes can take processor time from others. So the attackers run behind everything else, and the test
also measures steps beside processes that only compute: what the daemon does for attackers is the difference.
"""

import concurrent.futures
import contextlib
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import pytest

import attacker
import hostile
from checking import equal, in_child, true
from harness import SWAP, TAG, Ckptfs, Outcome, checkpoint_files, same_checkpoint, same_outcome
from mounting import KIB, MIB

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.timeout(3600), pytest.mark.alone]

SECONDS = 600
ATTACKERS = 2
ROUNDS = 3  # alone, and beside processes that compute


def train(scene, label):
    """One training and its checkpoint, from nothing; the outcome, and how long its steps took."""
    shutil.rmtree(scene.point / SWAP, ignore_errors=True)
    shutil.rmtree(scene.point / "steps" / TAG, ignore_errors=True)
    series = scene.point / "steps"
    results = scene.train("hostile", 1, ["--nvme", str(scene.point), "--tag", TAG, "--save", str(series)])
    return Outcome(label, results, checkpoint_files(series, results)), sum(results[0]["train_seconds"])


def peak_memory(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("no VmHWM")


@contextlib.contextmanager
def computing(count):
    """Runs so many processes that only compute, behind everything else."""
    words = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(words, preexec_fn=hostile.run_behind_all) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def attack(socket_path, seed, folder):
    """Plays the attacker. Only root may put a process behind all others, so that comes before the process changes its
    user."""
    hostile.run_behind_all()
    return in_child(lambda: hostile.play(socket_path, SECONDS, seed), uid=attacker.ATTACKER, folder=folder)


def test_beside_a_training(scene, mode):
    with Ckptfs(mode=mode).place(scene) as mount, concurrent.futures.ThreadPoolExecutor() as pool:
        attacker.make_ground(mount.path)
        truth, _ = train(scene, "alone")  # once more than is measured: DeepSpeed may compile something first
        alone = statistics.median(train(scene, "alone")[1] for _ in range(ROUNDS))
        with computing(ATTACKERS):
            behind = statistics.median(train(scene, "beside processes that compute")[1] for _ in range(ROUNDS))
        socket_path = mount.ask(".", "socket")
        attackers = [
            pool.submit(in_child, lambda seed=seed: attack(socket_path, seed, mount.path)) for seed in range(ATTACKERS)
        ]
        end, beside = time.monotonic() + SECONDS, []
        while time.monotonic() < end:
            outcome, seconds = train(scene, f"round {len(beside) + 1} beside {ATTACKERS} attackers")
            same_outcome(outcome, truth)
            same_checkpoint(outcome, truth)
            beside.append(seconds)
        counts = [one.result() for one in attackers]
        took = statistics.median(beside)
        status = mount.status()
        memory, allowed = peak_memory(mount.pid), 256 * MIB + status["remembered_inodes"] * KIB
        print(f"{len(beside)} trainings beside {counts} attempts; steps took {took / alone:.2f} of what they take alone, "
              f"{took / behind:.2f} of beside processes that compute; the daemon had {memory / MIB:.0f} MiB", flush=True)
        equal(status["pid"], mount.pid, "the daemon that answers")
        equal(status["recovery"]["damaged"], [], "damaged names")
        true(memory <= allowed, f"the daemon's memory: {memory} bytes of {allowed}")
