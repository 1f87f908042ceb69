"""Who waits for a push is told why nothing comes: what can never be pushed is refused, and what may come is named."""

import contextlib
import json
import os
import random
import shutil
import subprocess
import time
import types

import pytest

from checking import equal, in_child, noise, read, true, write
from hugging import safetensors
from mounting import CKPTFS, MIB, wait_until
from rotating_series import write_step
from savers import OLD, Pool, trainers
from test_push import ERROR, ckptfs, fill, node, state_of, status_of, tree, wait_for

pytestmark = [pytest.mark.one_mode, pytest.mark.timeout(300)]


@pytest.fixture
def mount(fresh_disk, work, folder, mode):
    with node(fresh_disk, work, folder.parent.name, mode) as mount:
        yield mount


@pytest.fixture
def steps(mount, folder):
    """A series with a remote."""
    made = mount.path / "steps"
    ckptfs("remote", "add", f"file://{folder}", made)
    return made


def is_refused(step, words):
    """`push --wait` ends, and all who look are told the same."""
    done = ckptfs("push", "--wait", step, check=False)
    equal(done.returncode, 1, f"{step.name} is refused: {done.stdout}{done.stderr}")
    true(step.name in done.stderr and words in done.stderr, f"says why: {done.stderr}")


def is_shown_as_refused(step, words):
    equal(state_of(step), "refused", "state")
    true(words in os.getxattr(step, ERROR).decode(), "the error")
    true("refused" in ckptfs("ls", step.parent), "ls")
    [one] = [one for one in status_of(step.parent)["steps"] if one["tag"] == step.name]
    equal(one["stage"], "refused", "remote status")
    true(words in ckptfs("remote", "status", step.parent), "remote status")


@contextlib.contextmanager
def waiting(step):
    """`push --wait`, in the background."""
    process = subprocess.Popen([CKPTFS, "push", "--wait", step], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_torso_does_not_become_the_newest(steps, mount):
    """accelerate is killed in its save. What its files do not tell, the whole step beside it does; a user may."""
    for number, files in ((1, ("model.safetensors", "optimizer.bin", "random_states_0.pkl")), (2, ("pytorch_model.bin",))):
        fill(steps / f"checkpoint-{number}", size=MIB, files=files)
        if number == 1:
            os.setxattr(steps / "checkpoint-1", "user.ckptfs.whole", b"1")
            wait_for(steps / "checkpoint-1", "committed checkpoint-1")
    fill(steps / "checkpoint-3", size=MIB, files=("other.bin",))
    reasons = lambda: ckptfs("remote", "status", steps).count("not known to be whole")
    wait_until("both wait, and it says why", lambda: reasons() == 2, 60, 0.1)
    ckptfs("push", steps / "checkpoint-3")
    wait_for(steps / "checkpoint-3", "committed checkpoint-3")
    equal(state_of(steps / "checkpoint-2"), "unpushed", "state of the other")
    os.setxattr(steps / "checkpoint-2", "user.ckptfs.whole", b"1")
    wait_for(steps / "checkpoint-2", "committed checkpoint-2")
    mount.remount()
    wait_for(steps / "checkpoint-3", "committed checkpoint-3")
    write(steps / "checkpoint-3/other.bin", b"changed")
    wait_for(steps / "checkpoint-3", "unpushed")


def test_torsos_hold_no_place_of_what_is_to_be_pushed(steps):
    """hold_unpushed keeps the newest two that are on their way, and torsos beside them are not."""
    mount = types.SimpleNamespace(path=steps.parent)
    ckptfs("policy", steps, "--set", "push=manual", "--set", "keep_last=1")
    for number in (4, 5):
        fill(steps / f"checkpoint-{number}", size=MIB, files=("other.bin",))
    for number in (1, 2, 3):
        write_step(mount, number, series="steps")
    held = [one["number"] for one in json.loads(ckptfs("policy", "--json", steps))["steps"] if "not pushed yet" in one["by"]]
    equal(held, [2, 3], "what is held")


def test_a_second_save_that_died_half_way_is_not_committed(steps, folder):
    """In a series without rules. Another run saves the step once more, and dies."""
    mount = types.SimpleNamespace(path=steps.parent)
    step = write_step(mount, 1, series="steps")
    wait_for(step, "committed checkpoint-1")
    weights = safetensors({"w": ("F32", [4], noise(16, 2))})
    in_child(lambda: (time.sleep(OLD), write(step / "model.safetensors", weights)))
    write_step(mount, 2, series="steps")
    wait_for(steps / "checkpoint-2", "committed checkpoint-2")

    def committed():
        return [one["step"] for one in json.loads(ckptfs("remote", "ls", "--json", f"file://{folder}"))["steps"]]

    equal(committed(), ["checkpoint-1", "checkpoint-2"], "what is there")
    equal(os.getxattr(step, "user.ckptfs.state"), b"unknown", "its state")
    wait_until("it says so", lambda: "may be of two saves" in ckptfs("remote", "status", steps), 60, 0.1)
    equal(state_of(step), "unpushed", "what is here is not there")
    for path in step.iterdir():
        write(path, read(path))
    wait_until("the whole second save is there", lambda: "checkpoint-1~2" in committed(), 60, 0.1)


def test_what_a_notebook_notes_in_an_old_step_holds_up_no_newer_one(steps):
    """The notebook is younger than the training."""
    ckptfs("policy", steps, "--set", "keep_last=9")
    with Pool(1) as pool:
        training = pool.take()
        for number in (1, 2):
            training.do([("mkdir", steps / f"checkpoint-{number}")])
            training.do([("write", steps / f"checkpoint-{number}" / name, data)
                         for name, data in trainers(random.Random(number), number, 1.0)])  # fmt: skip
            wait_for(steps / f"checkpoint-{number}", f"committed checkpoint-{number}")
            time.sleep(OLD)
            in_child(lambda: (time.sleep(OLD), write(steps / "checkpoint-1" / "notes.txt", b"good")))


def test_what_is_no_step(steps):
    for name, words in (("results", "no step's name"), ("partial-5f3a-global_step2", "not committed"),
                        ("incomplete-global_step3", "set aside")):
        fill(steps / name, size=MIB)
        is_refused(steps / name, words)
    (steps / "global_step4").mkdir()
    is_refused(steps / "global_step4", "holds nothing yet")


def test_files_that_no_remote_holds(steps):
    """It is mended, and goes on by itself."""
    fifo, name, deep = (steps / f"global_step{number}" for number in (1, 2, 3))
    for step in (fifo, name, deep):
        fill(step, size=MIB)
    os.mkfifo(fifo / "queue")
    odd = os.path.join(os.fsencode(name), b"a\xff")
    write(odd, b"x")
    (deep / "/".join("d" * 255)).mkdir(parents=True)
    (deep / "/".join("d" * 255) / "d" / "d").mkdir(parents=True)
    for step, words in ((fifo, "queue: it is no file"), (name, "not UTF-8"), (deep, "too deep")):
        is_refused(step, words)
        is_shown_as_refused(step, words)
    (fifo / "queue").unlink()
    os.unlink(odd)
    shutil.rmtree(deep / "d")
    for step in (fifo, name, deep):
        wait_for(step, f"committed {step.name}")


def test_what_is_damaged(steps, fresh_disk):
    step = steps / "global_step1"
    fill(step, size=MIB + 777, files=("weights.bin",))
    wait_for(step, "committed")
    ckptfs("policy", steps, "--set", "push=manual")
    [blob] = [blob for blob in fresh_disk.rglob("blobs/*") if blob.stat().st_size == MIB + 777]
    before = blob.stat()
    with open(blob, "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes(4096), 65536)
    os.utime(blob, ns=(before.st_atime_ns, before.st_mtime_ns))
    equal(ckptfs("verify", step, check=False).returncode, 3, "verify finds it")
    is_refused(step, "weights.bin: it no longer holds what was written")
    is_shown_as_refused(step, "save the step again")
    write(step / "weights.bin", noise(MIB, 2))
    print(ckptfs("push", "--wait", step))


def test_what_is_incomplete_and_left_alone(steps):
    """A Trainer's step of which the last file is missing."""
    step = steps / "checkpoint-1"
    files = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin")
    in_child(lambda: fill(step, size=MIB, files=files))  # who still runs may go on with it
    is_refused(step, "trainer_state.json is not there")
    is_shown_as_refused(step, "nobody writes to it")
    (step / "trainer_state.json").write_text(json.dumps({"global_step": 1}))
    wait_until("it is judged anew", lambda: "trainer_state.json is not there" not in error_of(step), 60, 0.2)


def error_of(step):
    try:
        return os.getxattr(step, ERROR).decode()
    except OSError:
        return ""


def test_what_is_written_is_waited_for(steps):
    step = steps / "global_step1"
    fill(step, size=MIB)
    with open(step / "weights.bin", "r+b"), waiting(step) as pushing:
        true("weights.bin: it is being written; waiting" in pushing.stderr.readline(), "says what it waits for")
    with open(step / "weights.bin", "r+b") as writer, waiting(step) as pushing:
        pushing.stderr.readline()
        writer.close()
        out, err = pushing.communicate(timeout=60)
        equal(pushing.returncode, 0, f"it is committed: {out}{err}")


def test_what_goes_away_while_it_is_waited_for(steps):
    for number, act in enumerate((shutil.rmtree, lambda step: step.rename(steps / "elsewhere"),
                                  lambda _: ckptfs("remote", "remove", steps))):
        step = steps / f"global_step{number}"
        fill(step, size=MIB)
        with open(step / "weights.bin", "r+b"), waiting(step) as pushing:
            pushing.stderr.readline()
            act(step)
            _, err = pushing.communicate(timeout=60)
            true(pushing.returncode == 1 and step.name in err, f"ends: {err}")


def test_what_was_removed_there_meanwhile(steps, folder):
    """The mount still takes it for committed."""
    for number in (1, 2):
        fill(steps / f"global_step{number}", seed=number, size=MIB)
    for number in (1, 2):
        wait_for(steps / f"global_step{number}", "committed")
    ckptfs("remote", "rm", f"file://{folder}/global_step1")
    equal(ckptfs("push", "--wait", steps / "global_step1").strip(), "/steps/global_step1: committed global_step1~2",
          "it is pushed again")
    listed = [one["step"] for one in json.loads(ckptfs("remote", "ls", "--json", f"file://{folder}"))["steps"]]
    true("global_step1~2" in listed, f"it is there: {listed}")


def test_a_mode_that_changes_while_it_is_pushed(steps, folder, scratch):
    """No file has changed, but what is sent is no longer what is here: it is pushed as it is now."""
    step = steps / "global_step1"
    ckptfs("remote", "add", f"file://{folder}", steps, "--limit-upload", "1M")
    fill(step, size=4 * MIB, files=("weights.bin",))
    (step / "void").mkdir()
    wait_for(step, "pushing")
    (step / "void").chmod(0o700)
    wait_for(step, "committed global_step1")
    ckptfs("remote", "export", f"file://{folder}/global_step1", scratch / "out")
    equal(tree(scratch / "out"), tree(step), "what came back")
    equal((scratch / "out" / "void").stat().st_mode & 0o777, 0o700, "the mode")
