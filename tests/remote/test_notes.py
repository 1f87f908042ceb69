"""Which step of a remote is the newest, where somebody writes notes into old ones: an evaluation's results, a cache. They
are not pushed, unless somebody asks for it. Only a save makes a step the newest."""

import json
import shutil
import time
import types

import pytest

from checking import equal, noise, write
from collecting import decisions
from mounting import MIB, wait_until
from rotating_series import write_step
from test_push import ckptfs, fill, node, status_of, tree, wait_for

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


def is_looked_at(step, act):
    """The mount sees what was done to the step, looks what is there, and finds that it is."""
    before = status_of(step.parent)["lists"]
    act()
    wait_until(f"{step.name} was looked at", lambda: status_of(step.parent)["lists"] > before, 60, 0.1)
    wait_for(step, f"committed {step.name}")


def test_notes_in_an_old_step(series, folder):
    old, there = series / "checkpoint-10", ["checkpoint-10", "checkpoint-20", "checkpoint-30"]
    is_looked_at(old, lambda: evaluate(old))
    equal((steps_in(folder), latest(folder)), (there, "checkpoint-30"), "what is there, and latest")
    equal(len(list((folder / ".ckptfs" / "parts" / "checkpoint-10").iterdir())), 1, "parts: nothing was pushed")
    # Also where the newest step is not: what is here tells nothing of it.
    for number in (20, 30):
        shutil.rmtree(series / f"checkpoint-{number}")
    is_looked_at(old, lambda: evaluate(old, 0.75))
    equal((steps_in(folder), latest(folder)), (there, "checkpoint-30"), "also without a copy here")
    ckptfs("remote", "policy", f"file://{folder}", "--set", "keep_last=1")
    ckptfs("remote", "gc", f"file://{folder}")
    equal(steps_in(folder), ["checkpoint-30"], "what the rules keep")


def test_notes_that_somebody_asks_for(series, folder, scratch):
    """They make another commit of the same save, which takes no newer one's place."""
    old = series / "checkpoint-10"
    is_looked_at(old, lambda: evaluate(old))
    ckptfs("push", "--again", "--wait", old)
    wait_for(old, "committed checkpoint-10~2")
    equal(steps_in(folder), ["checkpoint-10", "checkpoint-10~2", "checkpoint-20", "checkpoint-30"], "their order")
    equal(latest(folder), "checkpoint-30", "latest")
    orders = {one.name.partition(".")[0] for one in decisions(folder, "checkpoint-10")}
    equal(len(orders), 1, "places of the two commits")
    ckptfs("remote", "export", f"file://{folder}/checkpoint-10~2", scratch / "out")
    equal(tree(scratch / "out"), tree(old), "what came back")


@pytest.mark.long
def test_notes_in_the_newest_step(series, folder):
    newest = series / "checkpoint-30"
    is_looked_at(newest, lambda: evaluate(newest))
    equal(latest(folder), "checkpoint-30", "latest")


def test_a_step_that_was_saved_before_the_notes(series, folder):
    """An evaluation of one step ends while the next one is pushed."""
    ckptfs("policy", series, "--set", "push=manual")
    fill(series / "checkpoint-40", seed=40, size=MIB)
    evaluate(series / "checkpoint-30")
    for number in (30, 40, 30):
        ckptfs("push", "--wait", series / f"checkpoint-{number}")
    equal(latest(folder), "checkpoint-40", "latest")
    equal(steps_in(folder), [f"checkpoint-{number}" for number in (10, 20, 30, 40)], "what is there")


@pytest.mark.long
def test_a_run_that_went_back(series, folder):
    """It saves a step again, and one with a lower number than any: they are newer than what was there."""
    again = series / "checkpoint-20"
    shutil.rmtree(again)
    fill(again, seed=21, size=MIB)
    wait_for(again, "committed checkpoint-20~2")
    equal(latest(folder), "checkpoint-20~2", "saved again")
    is_looked_at(series / "checkpoint-30", lambda: evaluate(series / "checkpoint-30"))
    equal(latest(folder), "checkpoint-20~2", "notes in a step of the run before")
    fill(series / "checkpoint-5", seed=5, size=MIB)
    wait_for(series / "checkpoint-5", "committed")
    equal(latest(folder), "checkpoint-5", "a run of its own")
    write(series / "checkpoint-10" / "weights.bin", noise(MIB, 99))
    wait_for(series / "checkpoint-10", "committed checkpoint-10~2")
    equal(latest(folder), "checkpoint-5", "other weights in an old step are no save of all of it")
    equal(steps_in(folder), ["checkpoint-10", "checkpoint-10~2", "checkpoint-20", "checkpoint-30", "checkpoint-20~2",
                             "checkpoint-5"], "their order")


def test_a_step_whose_files_are_all_written_again(series, folder):
    """In place, as most trainers do: it is another save, and the newest, also if it holds the same bytes."""
    mount = types.SimpleNamespace(path=series.parent)
    for number in (50, 60):
        wait_for(write_step(mount, number, series="steps", extra=1000), f"committed checkpoint-{number}")
    step = series / "checkpoint-50"
    files = {path: path.read_bytes() for path in step.iterdir()}
    is_looked_at(step, lambda: write(step / "model.safetensors", files[step / "model.safetensors"]))
    equal(latest(folder), "checkpoint-60", "one file is no save")
    for path, content in files.items():
        write(path, content)
    wait_for(step, "committed checkpoint-50~2")
    equal(latest(folder), "checkpoint-50~2", "all of them are")
