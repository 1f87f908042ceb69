"""What scripts ask: the newest complete step, the state of one, a wait until one is complete; and marks of steps."""

import errno
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import pytest

from calling import ckptfs, status_is
from checking import equal, raises, true, write
from mounting import CKPTFS, REPOSITORY, run, wait_until
from rotating_series import SERIES, make_series, write_step
from savers import OLD
from training import write_state

sys.path.insert(0, str(REPOSITORY / "gpu" / "python"))
import ckptfs as api

pytestmark = pytest.mark.one_mode
STARTED = time.monotonic()


def latest(mount, *words):
    return status_is(ckptfs("latest", *words, mount.path / SERIES), 0).stdout.strip()


def write_torso(mount, number):
    """A step whose index of weights names a file that is not there."""
    step = write_step(mount, number)
    write(step / "model.safetensors.index.json", b'{"metadata": {}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}')
    (step / "model.safetensors").unlink()
    settle(mount, step, "incomplete")
    return step


def settle(mount, step, state="complete"):
    wait_until(f"{step.name} is {state}", lambda: mount.ask(step.relative_to(mount.path), "state") == state)


def test_latest_of_a_series_without_steps(mount):
    make_series(mount)
    write(mount.path / SERIES / "notes.txt", b"")
    for words in ((), (mount.path,)):
        status_is(ckptfs("latest", *words), 1, "there is no step yet")
    write_torso(mount, 10)
    status_is(ckptfs("latest", mount.path / SERIES), 1, "no step is complete; the newest, checkpoint-10, is incomplete: ")
    equal(api.latest(mount.path / SERIES), None, "in Python")


def test_latest_without_rules_is_the_highest_number(mount):
    make_series(mount)
    for number in (10, 30, 20):
        settle(mount, write_step(mount, number))
    equal(latest(mount), "checkpoint-30", "tag")
    equal(latest(mount, "--path"), str(mount.path / SERIES / "checkpoint-30"), "path")
    found = json.loads(latest(mount, "--json"))
    equal((found["tag"], found["state"], found["path"]), ("checkpoint-30", "complete", latest(mount, "--path")), "JSON")
    equal(run(CKPTFS, "latest").stdout.strip(), "checkpoint-30", "of the only series of the only mount")
    write_step(mount, 5, series="runs/b")
    status_is(ckptfs("latest"), 1, "several series have steps; name one", f"{mount.path}/runs/b")


def test_latest_is_what_a_training_saved_last(mount):
    """A copy of an old step under a higher number is none; a run that began again at a lower number is."""
    time.sleep(max(0.0, STARTED + OLD - time.monotonic()))  # this process is no command
    make_series(mount, keep_last=5)
    for number in (100, 200):
        settle(mount, write_step(mount, number))
    mount.wait_for_rounds(2)
    run("cp", "-r", mount.path / SERIES / "checkpoint-100", mount.path / SERIES / "checkpoint-900")
    settle(mount, mount.path / SERIES / "checkpoint-900")
    mount.wait_for_rounds(2)
    equal(latest(mount), "checkpoint-200", "beside a copy")
    settle(mount, write_step(mount, 150))
    mount.wait_for_rounds(2)
    equal(latest(mount), "checkpoint-150", "after a restart at a lower number")
    equal(api.latest(mount.path / SERIES).tag, "checkpoint-150", "in Python")


def test_latest_is_a_step_of_save_alone_only_where_there_is_no_other(mount):
    make_series(mount)
    write_state(mount.path)
    series = mount.path / SERIES
    mount.save("step_90", SERIES)
    done = status_is(ckptfs("latest", series), 0, "step_90 holds swap state only", "DeepSpeed cannot resume")
    equal((done.stdout, api.latest(series).kind), ("step_90\n", "swap state only"), "of no other")
    write_torso(mount, 5)
    equal(latest(mount), "step_90", "beside an incomplete one")
    whole = write_step(mount, 10)
    settle(mount, whole)
    for path in (whole, *whole.iterdir(), series):
        os.chown(path, 4711, 4711)  # root saved, and another user trains
    settle(mount, whole)
    equal((latest(mount), ckptfs("latest", series).stderr, api.latest(series).tag), ("checkpoint-10", "", "checkpoint-10"), "the training's")


def test_a_copy_of_a_step_of_save_alone_is_no_more_than_that(mount):
    """Whoever made it: a sealed copy counts as complete, and holds nothing to resume from either."""
    make_series(mount)
    write_state(mount.path)
    series = mount.path / SERIES
    whole = write_step(mount, 10)
    settle(mount, whole)
    mount.save("step_90", SERIES)
    shutil.copytree(series / "step_90", series / "step_91")
    run(CKPTFS, "seal", series / "step_91")
    equal((latest(mount), ckptfs("latest", series).stderr), ("checkpoint-10", ""), "beside a sealed copy")


def test_latest_is_no_strangers_step(mount):
    """Who may make folders in a series must not make others load what they wrote there."""
    make_series(mount)
    (mount.path / SERIES).chmod(0o1777)
    own = write_step(mount, 10)
    strange = write_step(mount, 99)
    for path in (*strange.iterdir(), strange):
        os.chown(path, 4711, 4711)
    for step in (own, strange):
        settle(mount, step)
    equal(latest(mount), "checkpoint-10", "root's")
    as_stranger = run("setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", CKPTFS, "latest", mount.path / SERIES)
    equal(as_stranger.stdout.strip(), "checkpoint-99", "the stranger's own")
    as_third = run("setpriv", "--reuid=4712", "--regid=4712", "--clear-groups", CKPTFS, "latest", mount.path / SERIES)
    equal(as_third.stdout.strip(), "checkpoint-10", "a third one's: that of the series' owner")
    awaited = ("wait", mount.path / SERIES, "--for", "checkpoint-99", "--timeout", "1s")
    status_is(ckptfs(*awaited), 1, "timed out")
    equal(run("setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", CKPTFS, *awaited).stdout, "checkpoint-99\n", "its owner's")
    strange.chmod(0o700)
    rows = run("setpriv", "--reuid=4712", "--regid=4712", "--clear-groups", CKPTFS, "ls", "--json", mount.path / SERIES)
    equal([step["tag"] for step in json.loads(rows.stdout)["steps"]], ["checkpoint-10"], "what a third one may list")


def test_state(mount):
    make_series(mount)
    step = write_step(mount, 10)
    settle(mount, step)
    equal(status_is(ckptfs("state", step), 0).stdout, "complete\n", "complete")
    mount.seal(f"{SERIES}/checkpoint-10")
    equal(status_is(ckptfs("state", step), 0).stdout, "sealed\n", "sealed")
    torso = write_torso(mount, 20)
    done = ckptfs("state", torso)
    equal((done.returncode, done.stdout.split(":")[0]), (1, "incomplete"), "incomplete")
    told = json.loads(ckptfs("state", "--json", torso).stdout)
    equal((told["state"], told["path"]), ("incomplete", str(torso)), "JSON")
    for path in (mount.path / SERIES, step / "config.json", mount.path / SERIES / "checkpoint-77"):
        status_is(ckptfs("state", path), 1)
    found = api.state(torso)
    equal((found.state, found.complete, found.path, found.reason), ("incomplete", False, torso, told["reason"]), "Python")
    equal([(one.number, one.complete) for one in api.steps(mount.path / SERIES)], [(10, True), (20, False)], "steps")
    with raises(errno.ENOENT):
        api.state(mount.path / SERIES / "checkpoint-77")
    for path in (mount.path / SERIES, mount.path):
        with pytest.raises(ValueError, match="it is no step"):
            api.state(path)
    with pytest.raises(ValueError):
        api.latest("/proc/self")


def test_a_damaged_step_has_an_exit_code_of_its_own(mount, store):
    make_series(mount)
    write_step(mount, 10)
    step = write_step(mount, 20, extra=1 << 20)
    settle(mount, step)
    mount.seal(f"{SERIES}/checkpoint-20")
    wait_until("digests are taken", lambda: "not yet hashed" not in run(CKPTFS, "verify", step).stdout, 30, 0.2)
    blob = next(path for path in store.blobs.iterdir() if path.is_file() and path.stat().st_size == 1 << 20)
    run("chattr", "-i", blob, check=False)
    with open(blob, "r+b") as file:
        file.write(b"something else")
    true("DAMAGED" in status_is_3(ckptfs("verify", step)), "verify")
    true("damaged" in status_is_3(ckptfs("state", step)), "state")
    equal(latest(mount), "checkpoint-10", "latest names no damaged step")
    api_state = api.state(step)
    equal((api_state.state, api_state.complete), ("damaged", False), "Python")


def status_is_3(done):
    equal(done.returncode, 3, f"{done.args}: {done.stdout}{done.stderr}")
    return done.stdout


class Waiter:
    """ckptfs wait, beside the test."""

    def __init__(self, *words):
        self.process = subprocess.Popen([CKPTFS, "wait", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()

    def waits(self):
        with pytest.raises(subprocess.TimeoutExpired):
            self.process.wait(1.2)

    def said(self):
        out, _ = self.process.communicate(timeout=60)
        equal(self.process.returncode, 0, "exit code")
        return out.strip()


def test_wait(mount):
    """For a series that is not there yet, over a new start of the daemon, and for the next step."""
    series = mount.path / SERIES
    with Waiter(series, "--for", "checkpoint-20") as waiter:
        waiter.waits()
        make_series(mount)  # a folder: no series before it has a step
        equal(api.latest(series), None, "of a folder")
        status_is(ckptfs("latest", series), 1, "there is no step yet")
        waiter.waits()
        write_step(mount, 10)
        waiter.waits()
        mount.kill()
        waiter.waits()
        mount.remount()
        write_step(mount, 20)
        equal(waiter.said(), "checkpoint-20", "tag")
    settle(mount, series / "checkpoint-10")
    equal(status_is(ckptfs("wait", series, "--for", "checkpoint-10"), 0).stdout, "checkpoint-10\n", "what is there already")
    with Waiter(series, "--for", "next") as waiter:
        waiter.waits()
        write_step(mount, 15)
        equal(waiter.said(), "checkpoint-15", "the next one")
    with Waiter(series, "--for", "next", "--json") as waiter:
        waiter.waits()
        shutil.rmtree(series / "checkpoint-20")
        write_step(mount, 20)
        equal(json.loads(waiter.said())["tag"], "checkpoint-20", "one that is saved again")


def test_wait_gives_up(mount):
    make_series(mount)
    write_torso(mount, 10)
    for awaited, why in (("checkpoint-10", "timed out: checkpoint-10 is incomplete: "), ("checkpoint-11", "there is no checkpoint-11"),
                         ("next", "no step has completed since")):
        status_is(ckptfs("wait", mount.path / SERIES, "--for", awaited, "--timeout", "1s"), 1, why)
    status_is(ckptfs("wait", mount.path / SERIES, "--for", "next", "--timeout", "soon"), 2, "soon")
    status_is(ckptfs("wait", mount.path / SERIES), 2)


def test_marks(mount):
    make_series(mount)
    step, other = write_step(mount, 10), write_step(mount, 20)
    for one in (step, other):
        settle(mount, one)
    status_is(ckptfs("pin", step, other), 0)
    equal([one.pinned for one in api.steps(mount.path / SERIES)], [True, True], "pinned")
    status_is(ckptfs("rm", step), 1, "pinned", "ckptfs unpin")
    equal(json.loads(status_is(ckptfs("unpin", "--json", step), 0).stdout), {"unpinned": [str(step)]}, "JSON")
    status_is(ckptfs("rm", step), 0)
    status_is(ckptfs("seal", other), 0)
    with raises(errno.EPERM):
        write(other / "config.json", b"")


def test_marks_are_refused_in_words(mount):
    make_series(mount)
    step = write_step(mount, 10)
    settle(mount, step)
    status_is(ckptfs("pin", mount.path / SERIES), 1, "it is no step")
    status_is(ckptfs("pin", mount.path / SERIES / "checkpoint-77"), 1, "No such file")
    status_is(ckptfs("seal", "/proc/self"), 1, "is not on a ckptfs mount")
    with open(step / "config.json", "r+b"):
        status_is(ckptfs("seal", step), 1, "config.json")
    for command in ("pin", "seal"):
        refused = run("setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", CKPTFS, command, step, check=False)
        status_is(refused, 1, "ermi")


def test_asking_harms_no_save(mount):
    """Many who ask at once, beside a training that saves."""
    make_series(mount, keep_last=3)
    ended = threading.Event()
    failures = []

    def ask():
        while not ended.is_set():
            try:
                api.latest(mount.path / SERIES)
                api.steps(mount.path / SERIES)
            except Exception as error:  # noqa: BLE001 - the test shows it
                failures.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10, 200, 10):
            write_step(mount, number)
        settle(mount, mount.path / SERIES / "checkpoint-190")
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    equal(failures, [], "failures")
    equal(pathlib.Path(api.latest(mount.path / SERIES).path).name, "checkpoint-190", "latest")
