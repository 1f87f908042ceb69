"""Rotation under the real DeepSpeed and the real Hugging Face Trainer: twenty saves, of which the right ones stay."""

import hashlib
import json
import os
import pathlib
import threading
import time

import pytest

from checking import equal, true
from harness import RUN_TIMEOUT, Ckptfs, ranks_running, run_trainer, wait_for_ranks
from mounting import KIB, wait_until
from rotating import digests, metric_of

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.timeout(1800)]

SAVES = 20
QUIET = 1  # seconds


def numbers(series, prefix):
    return sorted(int(name.removeprefix(prefix)) for name in os.listdir(series) if name.startswith(prefix))


def settled(series, prefix, wanted):
    wait_until(f"{wanted} stay in {series}", lambda: numbers(series, prefix) == wanted, 60, 0.2)
    time.sleep(3 * QUIET)
    equal(numbers(series, prefix), wanted, "the steps that stay")


class SlowCopy(threading.Thread):
    """Copies a step out, as slowly as `cp -r` to a far place: it is in use all the time, file after file."""

    def __init__(self, series, name):
        super().__init__()
        self.series, self.name_of_step, self.content, self.problem = series, name, {}, None
        self.stopped = threading.Event()

    def run(self):
        try:
            step = self.series / self.name_of_step
            wait_until("the step to copy is there", lambda: (self.series / "latest").exists(), RUN_TIMEOUT, 0.05)
            files = sorted(path for path in step.rglob("*") if path.is_file())
            for path in files:
                total = hashlib.sha256()
                with open(path, "rb") as file:
                    while part := file.read(256 * KIB):
                        total.update(part)
                        if not self.stopped.is_set():
                            time.sleep(0.5)
                self.content[str(path.relative_to(step))] = total.hexdigest()
        except Exception as problem:  # noqa: BLE001 - told by who joins
            self.problem = problem


def run_ranks(scene, name, ranks, *arguments):
    scene.number += 1
    out = scene.work / f"{scene.number}-{name}"
    log = out.with_suffix(".log")
    words = ["--nvme", scene.point, *arguments, "--out", out]
    with open(log, "wb") as output:
        with ranks_running(ranks, [str(word) for word in words], output, script="rotating.py") as processes:
            wait_for_ranks(processes, log)
    return json.loads(pathlib.Path(f"{out}.0").read_text())


@pytest.mark.parametrize("ranks", (1, 2))
def test_deepspeed(scene, mode, ranks):
    with Ckptfs(mode=mode, options=(f"quiet={QUIET}s",)).place(scene) as mount:
        series = mount.path / "runs" / "model"
        (series / "runs").mkdir(parents=True)
        (series / "runs" / "events").write_bytes(b"x")
        for rule, value in (("keep_last", "2"), ("keep_every", "8"), ("keep_best", "score:max:2")):
            mount.control("runs/model", rule, value)
        time.sleep(2 * QUIET)  # left alone
        slow = SlowCopy(series, "global_step1")
        slow.start()
        try:
            result = run_ranks(scene, "saves", ranks, "--series", series, "--saves", SAVES)
            removed = mount.status()["rotation"]["removed"]
            true((series / "global_step1").is_dir(), "a step was removed while it was copied out")
        finally:
            slow.stopped.set()
            slow.join()
        if slow.problem:
            raise slow.problem
        equal(slow.content, result["saves"]["1"], "what was copied out slowly")
        best = sorted(range(1, SAVES + 1), key=lambda number: (metric_of(number), number))[-2:]
        wanted = sorted({SAVES - 1, SAVES, 8, 16, *best})
        settled(series, "global_step", wanted)
        true(removed > 0, "nothing was removed while it trained")
        for number in wanted:
            equal(digests(series / f"global_step{number}"), result["saves"][str(number)], f"global_step{number}")
        equal((series / "runs" / "events").read_bytes(), b"x", "what is no step")
        resumed = run_ranks(scene, "resumed", ranks, "--series", series, "--saves", 1, "--resume")
        equal(resumed["resumed_at"], SAVES, "the step that was resumed")
        scene.check_status(mount.status())


@pytest.mark.parametrize("ranks", (1, 2))
def test_deepspeed_keeps_weights(scene, ranks):
    """The newest two steps stay as they were saved, and of the others that stay only the weights do."""
    with Ckptfs(options=(f"quiet={QUIET}s",)).place(scene) as mount:
        series = mount.path / "runs" / "model"
        series.mkdir(parents=True)
        for rule, value in (("keep_full", "2"), ("keep_last", "6"), ("keep_every", "8")):
            mount.control("runs/model", rule, value)
        time.sleep(2 * QUIET)  # left alone
        result = run_ranks(scene, "thin", ranks, "--series", series, "--saves", SAVES)
        full = (SAVES - 1, SAVES)
        thin = sorted({*range(SAVES - 5, SAVES - 1), 8, 16})

        def state(number):
            return mount.ask(f"runs/model/global_step{number}", "state")

        wait_until("the older ones are thin", lambda: all(state(number) == "weights" for number in thin), 60, 0.2)
        settled(series, "global_step", [*thin, *full])
        for number in full:
            equal(digests(series / f"global_step{number}"), result["saves"][str(number)], f"global_step{number}")
        for number in thin:
            equal(sorted(os.listdir(series / f"global_step{number}")), ["ckptfs-thinned.json", "model.safetensors"],
                  f"files of global_step{number}")
        resumed = run_ranks(scene, "resumed", ranks, "--series", series, "--saves", 1, "--resume")
        equal(resumed["resumed_at"], SAVES, "the step that was resumed")
        scene.check_status(mount.status())


@pytest.mark.parametrize("limit", (None, 3))
def test_trainer(scene, mode, limit):
    """`limit`: the Trainer's own save_total_limit beside our rules; what either removes is gone."""
    with Ckptfs(mode=mode, options=(f"quiet={QUIET}s",)).place(scene) as mount:
        series = mount.path / "output"
        series.mkdir()
        for rule, value in (("keep_last", "2"), ("keep_every", "8"), ("keep_best", "loss:min:2")):
            mount.control("output", rule, value)
        time.sleep(2 * QUIET)
        keep = ["--keep", limit] if limit else []
        result = run_trainer(scene, f"trainer-{mode}", series, SAVES, "--log", "--width", 128, "--layers", 2, *keep)
        losses = {entry["step"]: entry["loss"] for entry in result["history"] if "loss" in entry}
        equal(len(losses), SAVES, "steps with a loss")
        best = sorted(losses, key=lambda number: (losses[number], -number))[:2]
        wanted = sorted({SAVES - 1, SAVES, 8, 16, *best})
        if limit:
            wanted = [number for number in wanted if number > SAVES - limit]
        settled(series, "checkpoint-", wanted)
        saved = {save["step"]: save["digests"] for save in result["saves"]}
        for number in wanted:
            for name, right in saved[number].items():
                equal(hashlib.sha256((series / f"checkpoint-{number}" / name).read_bytes()).hexdigest(), right,
                      f"{name} of checkpoint-{number}")
        scene.check_status(mount.status())
