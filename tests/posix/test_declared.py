"""Steps that nothing tells by itself: their names, and when one is complete, are rules of the series."""

import errno
import json
import mmap
import os
import time

import pytest

from checking import equal, in_child, opened, raises, true, write
from hugging import safetensors
from mounting import CKPTFS, run, wait_until
from rotating_series import SERIES, WEIGHTS, make_series, policy
from savers import OLD
from viewing import sampled_step, torch_file

STARTED = time.monotonic()
pytestmark = pytest.mark.one_mode

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture(autouse=True)
def _is_a_run():
    """This process is no command, wherever the runner starts it anew."""
    time.sleep(max(0.0, STARTED + OLD - time.monotonic()))


def write_iteration(mount, number, done="done"):
    step = mount.path / SERIES / f"iter_{number:07}"
    step.mkdir()
    write(step / "model.rank0", os.urandom(4096))
    if done:
        write(step / done, b"x")
    return step


def states(mount):
    return {step["number"]: step["state"] for step in policy(mount)["steps"]}


def become(mount, wanted):
    wait_until(f"the steps are {wanted}", lambda: states(mount) == wanted, 30, 0.1)
    mount.wait_for_rounds(3)
    equal(states(mount), wanted, "steps")


def test_by_a_file_that_is_written_last(mount):
    make_series(mount, keep_last=2, steps="iter_*", complete_when="done", keep_partial="1s")
    (mount.path / SERIES / "logs").mkdir()
    for number in (100, 200, 300):
        write_iteration(mount, number)
    become(mount, {200: "complete", 300: "complete"})
    write_iteration(mount, 400, done=None)  # a torso
    become(mount, {200: "complete", 300: "complete", 400: "incomplete"})
    equal([other["name"] for other in policy(mount)["others"]], ["logs"], "what is no step")
    rows = json.loads(run(CKPTFS, "ls", "--json", mount.path / SERIES).stdout)["steps"]
    equal(sorted(row["tag"] for row in rows), [f"iter_{number:07}" for number in (200, 300, 400)], "`ckptfs ls`")
    mount.remount()
    become(mount, {200: "complete", 300: "complete", 400: "incomplete"})
    write_iteration(mount, 500)
    become(mount, {300: "complete", 500: "complete"})


def test_a_dry_run_of_other_steps_says_that_it_cannot_tell(mount):
    make_series(mount)
    write_iteration(mount, 100)
    asked = ("--set", "steps=iter_*", "--set", "complete_when=done", "--set", "keep_last=1")
    dry = run(CKPTFS, "policy", "--dry-run", *asked, mount.path / SERIES)
    true("set these two first" in dry.stdout + dry.stderr, f"a dry run: {dry.stdout}{dry.stderr}")
    run(CKPTFS, "policy", *asked, mount.path / SERIES)
    again = run(CKPTFS, "policy", "--dry-run", "--set", "keep_last=2", mount.path / SERIES)
    true("set these two" not in again.stdout + again.stderr, f"a dry run of the steps as they are: {again.stdout}")


def test_what_a_killed_run_left_is_set_aside(mount):
    make_series(mount, steps="iter_*", complete_when="done", set_aside=1)
    in_child(lambda: (time.sleep(2.2), write_iteration(mount, 100), write_iteration(mount, 200, done=None)))
    wait_until("it has another name", lambda: (mount.path / SERIES / "incomplete-iter_0000200").exists(), 30, 0.1)
    true((mount.path / SERIES / "iter_0000100").exists(), "the whole one has not")


def test_by_a_tracker_file(mount):
    make_series(mount, keep_last=1, steps="iter_*", complete_when=TRACKER)
    for number in (100, 200):
        write_iteration(mount, number)
        write(mount.path / SERIES / TRACKER, f"{number}\n".encode())
        wait_until(f"{number} is known", lambda at=number: states(mount).get(at) == "complete", 30, 0.1)
        mount.wait_for_rounds(2)
    become(mount, {200: "complete"})
    write_iteration(mount, 300)  # which it never names
    become(mount, {200: "complete", 300: "unknown"})
    write_iteration(mount, 400)
    write(mount.path / SERIES / TRACKER, b"400")
    become(mount, {300: "unknown", 400: "complete"})
    mount.control(f"{SERIES}/iter_0000300", "whole", "1")
    become(mount, {400: "complete"})


def test_what_was_named_once_stays_complete(mount):
    make_series(mount, keep_last=3, steps="iter_*", complete_when=TRACKER)
    for number in (100, 200):
        write_iteration(mount, number)
        write(mount.path / SERIES / TRACKER, str(number).encode())
        wait_until(f"{number} is known", lambda at=number: states(mount).get(at) == "complete", 30, 0.1)
        mount.wait_for_rounds(2)
    become(mount, {100: "complete", 200: "complete"})
    mount.remount()
    become(mount, {100: "complete", 200: "complete"})


def test_once_they_are_quiet(mount):
    make_series(mount, keep_last=1, steps="out-*", complete_when="quiet")
    for number in (1, 2):
        step = mount.path / SERIES / f"out-{number}"
        step.mkdir()
        write(step / "weights", os.urandom(100))
    become(mount, {2: "complete"})
    shards = {"weight_map": {"v": "model-00001-of-00002.safetensors", "w": "model-00002-of-00002.safetensors"}}
    step = mount.path / SERIES / "unfinished"  # without its index it could be taken for a whole one
    step.mkdir()
    write(step / "trainer_state.json", b'{"global_step": 3}')
    write(step / "model-00001-of-00002.safetensors", safetensors(WEIGHTS))
    write(step / "model.safetensors.index.json", json.dumps(shards).encode())
    step.rename(mount.path / SERIES / "out-3")
    become(mount, {2: "complete", 3: "incomplete"})


def test_a_user_says_that_a_step_is_whole(mount):
    make_series(mount, keep_last=1)
    for number in (1, 2):
        step = mount.path / SERIES / f"checkpoint-{number}"
        step.mkdir()
        write(step / "config.json", b"{}")
        write(step / "model.safetensors", safetensors(WEIGHTS))
    become(mount, {1: "unknown", 2: "unknown"})
    for number in (1, 2):
        mount.control(f"{SERIES}/checkpoint-{number}", "whole", "1")
    become(mount, {2: "complete"})
    os.removexattr(mount.path / SERIES / "checkpoint-2", "user.ckptfs.whole")
    become(mount, {2: "unknown"})
    mount.control(f"{SERIES}/checkpoint-2", "whole", "1")
    torso = mount.path / SERIES / "checkpoint-1"
    torso.mkdir()
    write(torso / "config.json", b"{}")
    write(torso / "model.safetensors", safetensors(WEIGHTS))
    become(mount, {1: "unknown", 2: "complete"})
    mount.control(SERIES, "keep_unknown", "1s")
    mount.wait_for_rounds(1)
    (mount.path / SERIES / "checkpoint-3").mkdir()
    write(mount.path / SERIES / "checkpoint-3" / "config.json", b"{}")
    write(mount.path / SERIES / "checkpoint-3" / "model.safetensors", safetensors(WEIGHTS))
    mount.control(f"{SERIES}/checkpoint-3", "whole", "1")  # it arms the rule
    become(mount, {3: "complete"})
    os.removexattr(mount.path / SERIES / "checkpoint-3", "user.ckptfs.whole")
    raises(errno.EINVAL, lambda: mount.control(SERIES, "whole", "1"), "of what is no step")
    raises(errno.EINVAL, lambda: mount.control(f"{SERIES}/checkpoint-3", "whole", "yes"), "another value")


def test_rules_that_run_wait_for_what_is_declared(mount):
    """Steps that appear by a word are not removed by a rule that was set before it."""
    make_series(mount, keep_last=1)
    for number in (100, 200):
        write_iteration(mount, number, done="done")
    step = mount.path / SERIES / "checkpoint-1"
    step.mkdir()
    write(step / "model.safetensors", safetensors(WEIGHTS))
    write(step / "trainer_state.json", b'{"global_step": 1}')
    wait_until("the rule is armed", lambda: policy(mount)["is_armed"], 30, 0.1)
    mount.control(SERIES, "steps", "iter_*")
    mount.control(SERIES, "complete_when", "done")
    wait_until("they are steps", lambda: set(states(mount)) == {1, 100, 200}, 30, 0.1)
    mount.wait_for_rounds(3)
    equal(set(states(mount)), {1, 100, 200}, "steps")
    write_iteration(mount, 300, done="done")
    wait_until("the newest arms the rules", lambda: 300 in states(mount) and 100 not in states(mount), 30, 0.1)


def test_values_that_would_do_nothing_are_refused(mount):
    make_series(mount)
    for name, value in (("steps", "a/b"), ("complete_when", "/done"), ("complete_when", "../done"),
                        ("complete_when", "a//b")):
        raises(errno.EINVAL, lambda name=name, value=value: mount.control(SERIES, name, value), f"{name}={value}")
    step = write_iteration(mount, 100)
    write_iteration(mount, 200)
    mount.control(SERIES, "steps", "iter_*")
    equal(set(states(mount)), {100, 200}, "steps")
    equal(set(states(mount).values()), {"unknown"}, "states: nothing tells when they are complete")
    with opened(step / "model.rank0", os.O_RDONLY):
        pass
    os.removexattr(mount.path / SERIES, "user.ckptfs.steps")
    equal(states(mount), {}, "steps, once the rule is taken away")


def test_a_remote_takes_what_is_complete(mount):
    make_series(mount, steps="iter_*", complete_when="done")
    folder = mount.store.folder.parent / f"remote-{mount.mode}"
    folder.mkdir()
    run(CKPTFS, "remote", "add", f"file://{folder}", mount.path / SERIES)
    whole = write_iteration(mount, 100)
    write_iteration(mount, 200, done=None)
    run(CKPTFS, "push", "--wait", whole)

    def rows():
        [remote] = json.loads(run(CKPTFS, "remote", "status", "--json", mount.path / SERIES).stdout)["remotes"]
        return {row["tag"]: row["stage"] for row in remote["steps"]}

    wait_until("the torso is not pushed", lambda: rows() == {"iter_0000100": "committed", "iter_0000200": "unpushed"}, 30, 0.1)
    mount.control(f"{SERIES}/iter_0000200", "whole", "1")
    wait_until("both are there", lambda: set(rows().values()) == {"committed"}, 30, 0.1)


def test_what_was_there_before_is_no_torso(mount):
    """The word is of today: what is older has no such file. Notes of commands change nothing."""
    make_series(mount, keep_partial="1s")
    for number in (1, 2):
        step = mount.path / SERIES / f"checkpoint-{number}"
        step.mkdir()
        write(step / "model.safetensors", safetensors(WEIGHTS))
        write(step / "trainer_state.json", b'{"global_step": 1}')
    write_iteration(mount, 50, done=None)
    become(mount, {1: "complete", 2: "complete"})
    mount.control(SERIES, "steps", "iter_*")
    mount.control(SERIES, "complete_when", "done")
    become(mount, {1: "complete", 2: "complete", 50: "unknown"})
    write_iteration(mount, 100)
    run("cp", "-r", mount.path / SERIES / "iter_0000050", mount.path / SERIES / "iter_0000060")
    write(mount.path / SERIES / "iter_0000050" / "notes.txt", b"by a notebook")
    run("touch", mount.path / SERIES / "checkpoint-1" / "notes.txt")
    become(mount, {1: "complete", 2: "complete", 50: "unknown", 60: "unknown", 100: "complete"})
    time.sleep(1.2)
    become(mount, {1: "complete", 2: "complete", 50: "unknown", 60: "unknown", 100: "complete"})


def test_a_stranger_names_nobodys_steps(mount):
    """He may make the tracker file in a series that all may write to."""
    make_series(mount, keep_last=1, steps="iter_*", complete_when=TRACKER)
    os.chmod(mount.path, 0o755)
    for folder in (mount.path / "runs", mount.path / SERIES):
        folder.chmod(0o1777)
    write_iteration(mount, 100)
    tracker = mount.path / SERIES / TRACKER
    write(tracker, b"100")
    become(mount, {100: "complete"})
    tracker.unlink()
    write_iteration(mount, 200)
    in_child(lambda: write(tracker, b"200"), uid=5001)
    become(mount, {100: "complete", 200: "unknown"})
    tracker.unlink()
    write(tracker, b"200")
    wait_until("its owner names it", lambda: states(mount).get(200) == "complete", 30, 0.1)


@pytest.mark.mode("passthrough")  # in the other one a mapping does not outlive the daemon
def test_what_is_mapped_for_writing_is_not_quiet(mount):
    """By a program that outlived a daemon. The word comes when the step was looked at already."""
    make_series(mount, keep_last=1, steps="out-*")
    step = mount.path / SERIES / "out-1"
    step.mkdir()
    write(step / "weights", bytes(4096))
    with opened(step / "weights", os.O_RDWR) as file:
        mapped = mmap.mmap(file, 4096)
    mount.kill()
    mount.start()
    become(mount, {1: "unknown"})
    mount.control(SERIES, "complete_when", "quiet")
    mount.wait_for_rounds(3)
    equal(states(mount), {1: "unknown"}, "states")
    mapped.close()
    write(step / "weights", bytes(4097))
    become(mount, {1: "complete"})


def test_another_run_that_died_in_its_save_leaves_no_whole_step(mount):
    """The file that is written last is there from the save before."""
    make_series(mount, keep_last=1, steps="iter_*", complete_when="done")
    step = write_iteration(mount, 100)
    become(mount, {100: "complete"})
    in_child(lambda: (time.sleep(2.2), write(step / "model.rank0", os.urandom(4096))))
    become(mount, {100: "unknown"})
    write_iteration(mount, 200, done=None)
    become(mount, {100: "unknown", 200: "incomplete"})
    write(step / "done", b"again")
    become(mount, {100: "complete", 200: "incomplete"})


def test_a_marker_that_others_make_tells_nothing(mount):
    """A user marks an old step by hand, when he sets the rule; and a run does not make such a file any more."""
    make_series(mount, steps="iter_*", keep_partial="1s", set_aside=1)
    in_child(lambda: (time.sleep(2.2), [write_iteration(mount, number, done=None) for number in (100, 200)]))
    become(mount, {100: "unknown", 200: "unknown"})
    mount.control(SERIES, "complete_when", "done")
    write(mount.path / SERIES / "iter_0000100" / "done", b"")
    in_child(lambda: (time.sleep(2.2), write_iteration(mount, 300, done=None)))
    become(mount, {100: "complete", 200: "unknown", 300: "unknown"})
    time.sleep(1.2)
    become(mount, {100: "complete", 200: "unknown", 300: "unknown"})


def test_a_tracker_file_of_the_save_before_tells_nothing(mount):
    make_series(mount, keep_last=1, steps="iter_*", complete_when=TRACKER)
    step = write_iteration(mount, 100)
    write(mount.path / SERIES / TRACKER, b"100")
    become(mount, {100: "complete"})
    in_child(lambda: (time.sleep(2.2), write(step / "model.rank0", os.urandom(4096))))
    become(mount, {100: "unknown"})
    mount.remount()
    become(mount, {100: "unknown"})
    write(mount.path / SERIES / TRACKER, b"100")
    become(mount, {100: "complete"})


def test_what_others_add_leaves_it_whole(mount):
    """A notebook converts the newest step; then another run writes a part of it anew."""
    make_series(mount, keep_last=1, steps="iter_*", complete_when=TRACKER)
    step = mount.path / SERIES / "iter_0000100"
    sampled_step(step, "dcp", (".metadata", "__0_0.distcp", "__1_0.distcp"))
    write(mount.path / SERIES / TRACKER, b"100")
    become(mount, {100: "complete"})
    in_child(lambda: (time.sleep(OLD), write(step / "pytorch_model.bin", os.urandom(4096))))
    become(mount, {100: "complete"})
    in_child(lambda: (time.sleep(OLD), write(step / "__0_0.distcp", (step / "__0_0.distcp").read_bytes())))
    become(mount, {100: "unknown"})


def test_a_step_keeps_its_number(mount):
    make_series(mount, keep_every=1000, keep_last=1, steps="iter_*", complete_when="done")
    write_iteration(mount, 1000)
    become(mount, {1000: "complete"})
    mount.control(f"{SERIES}/iter_0001000", "seal", "1")
    mount.control(f"{SERIES}/iter_0001000", "pin", "1")
    mount.control(f"{SERIES}/iter_0001000", "pin", "0")
    for number in (2500, 3500):
        write_iteration(mount, number)
    become(mount, {1000: "sealed", 3500: "complete"})


def test_lightning_writes_its_own_file_last(mount):
    """It calls its steps *.ckpt. Its meta.pt comes after DCP's .metadata, which says that all others are there."""
    make_series(mount, keep_last=1)
    for number, name in ((1, "meta.pt"), (2, None)):
        step = mount.path / SERIES / f"epoch=0-step={number}.ckpt"
        sampled_step(step, "dcp", (".metadata", "__0_0.distcp", "__1_0.distcp"))
        if name:
            write(step / name, torch_file(b"x"))
    become(mount, {1: "complete", 2: "unknown"})
