"""Which step of a remote is the newest, where somebody writes notes into old ones: an evaluation's results, a cache."""

import json
import shutil
import time

import pytest

from checking import equal, noise, true, write
from mounting import MIB
from test_push import ckptfs, fill, node, wait_for

pytestmark = [pytest.mark.one_mode, pytest.mark.timeout(300)]


@pytest.fixture
def series(fresh_disk, work, folder, mode):
    """Three steps that are committed."""
    with node(fresh_disk, work, folder.parent.name, mode) as mount:
        made = mount.path / "steps"
        for number in (10, 20, 30):
            fill(made / f"checkpoint-{number}", seed=number, size=MIB)
            time.sleep(0.05)  # so that their times differ
        ckptfs("remote", "add", f"file://{folder}", made)
        for number in (10, 20, 30):
            wait_for(made / f"checkpoint-{number}", "committed")
        yield made


def latest(folder):
    return ckptfs("remote", "latest", f"file://{folder}").strip()


def steps_in(folder):
    return [one["step"] for one in json.loads(ckptfs("remote", "ls", "--json", f"file://{folder}"))["steps"]]


def evaluate(step, accuracy=0.5):
    (step / ".cache").mkdir(exist_ok=True)
    write(step / ".cache" / "upload.lock", b"")
    (step / "eval_results.json").write_text(json.dumps({"accuracy": accuracy}))


def test_notes_in_an_old_step(series, folder):
    old = series / "checkpoint-10"
    evaluate(old)
    wait_for(old, "committed checkpoint-10~2")
    equal(steps_in(folder), ["checkpoint-10", "checkpoint-10~2", "checkpoint-20", "checkpoint-30"], "their order")
    equal(latest(folder), "checkpoint-30", "latest")
    # Also where the newest step is not: what is here tells nothing of it.
    for number in (20, 30):
        shutil.rmtree(series / f"checkpoint-{number}")
    evaluate(old, 0.7)
    wait_for(old, "committed checkpoint-10~3")
    equal(latest(folder), "checkpoint-30", "latest, of which there is no copy here")
    ckptfs("remote", "policy", f"file://{folder}", "--set", "keep_last=1")
    ckptfs("remote", "gc", f"file://{folder}")
    equal(steps_in(folder), ["checkpoint-30"], "what the rules keep")


@pytest.mark.long
def test_notes_in_the_newest_step(series, folder):
    newest = series / "checkpoint-30"
    evaluate(newest)
    wait_for(newest, "committed checkpoint-30~2")
    equal(latest(folder), "checkpoint-30~2", "latest")


def test_a_step_that_was_saved_before_the_notes(series, folder):
    """An evaluation of one step ends while the next one is pushed."""
    ckptfs("policy", series, "--set", "push=manual")
    fill(series / "checkpoint-40", seed=40, size=MIB)
    evaluate(series / "checkpoint-30")
    for number in (30, 40):
        ckptfs("push", "--wait", series / f"checkpoint-{number}")
    equal(latest(folder), "checkpoint-40", "latest")


@pytest.mark.long
def test_a_run_that_went_back(series, folder):
    """It saves a step again, and one with a lower number than any: they are newer than what was there."""
    again = series / "checkpoint-20"
    shutil.rmtree(again)
    fill(again, seed=21, size=MIB)
    wait_for(again, "committed checkpoint-20~2")
    equal(latest(folder), "checkpoint-20~2", "saved again")
    evaluate(series / "checkpoint-30")
    wait_for(series / "checkpoint-30", "committed checkpoint-30~2")
    equal(latest(folder), "checkpoint-20~2", "notes in a step of the run before")
    fill(series / "checkpoint-5", seed=5, size=MIB)
    wait_for(series / "checkpoint-5", "committed")
    equal(latest(folder), "checkpoint-5", "a run of its own")
    write(series / "checkpoint-10" / "weights.bin", noise(MIB, 99))
    wait_for(series / "checkpoint-10", "committed checkpoint-10~2")
    equal(latest(folder), "checkpoint-10~2", "other weights in an old step: nobody can tell them from a save")
    listed = steps_in(folder)
    true(listed.index("checkpoint-30~2") < listed.index("checkpoint-20~2"), f"their order: {listed}")
