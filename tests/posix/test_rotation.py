"""Rotation by xattrs: what stays, what goes and when; in both open modes."""

import errno
import os
import pathlib
import time
import types

import pytest

from checking import equal, in_child, opened, raises, read, true, write
from hugging import safetensors
from mounting import CKPTFS, MIB, Mount, run, wait_until
from rotating_series import SERIES, WEIGHTS, date, decisions, make_series, never, policy, stays, steps, write_step
from training import write_state


@pytest.mark.one_mode
def test_the_last_ones_stay(mount):
    make_series(mount, keep_last=2)
    (mount.path / SERIES / "runs").mkdir()
    with opened(mount.path / SERIES / "runs" / "events", os.O_CREAT | os.O_WRONLY):  # as TensorBoard's, all the time
        for number in range(1, 7):
            write_step(mount, number)
            time.sleep(0.02)
        stays(mount, {5, 6})
    write_step(mount, 7)
    stays(mount, {6, 7})
    equal(mount.status()["rotation"]["removed"], 5, "steps removed")


@pytest.mark.one_mode
def test_a_change_waits_for_the_next_step(mount):
    make_series(mount)
    for number in range(1, 5):
        write_step(mount, number)
    mount.control(SERIES, "keep_last", "1")
    never(mount, {1, 2, 3, 4})
    true(not policy(mount)["is_armed"], "armed without a step")
    mount.remount()
    never(mount, {1, 2, 3, 4})
    write_step(mount, 5)
    stays(mount, {5})
    true(policy(mount)["is_armed"], "not armed")
    mount.control(SERIES, "keep_last", "3")
    mount.wait_for_rounds(1)  # one that finds the series left alone; until then the rule before is in force
    for number in (6, 7, 8):
        write_step(mount, number)
    stays(mount, {6, 7, 8})


def test_what_is_protected_stays(mount):
    """Pinned, named by `latest`, open; and what is no step."""
    make_series(mount, keep_last=1)
    for name in ("tensorboard", "best_model", "checkpoint-final"):
        (mount.path / SERIES / name).mkdir()
        write(mount.path / SERIES / name / "file", b"x")
    (mount.path / SERIES / "checkpoint-999").mkdir()  # empty: has a step's name only
    first = write_step(mount, 1)
    mount.control(f"{SERIES}/checkpoint-1", "pin", "1")
    write_step(mount, 2)
    write(mount.path / SERIES / "latest", b"checkpoint-2\n")
    third = write_step(mount, 3)
    with opened(third / "model.safetensors", os.O_RDONLY) as file:
        for number in (4, 5):
            write_step(mount, number)
        stays(mount, {1, 2, 3, 5, 999})
        held = mount.status()["rotation"]["held"]
        equal({one.split(": ")[0].split("-")[1]: one.split(": ")[1] for one in held},
              {"1": "pinned", "2": "latest", "3": "in use"}, "what is held")
        equal(os.pread(file, 8, 0), read(third / "model.safetensors")[:8], "the open file")
    mount.control(f"{SERIES}/checkpoint-1", "pin", "0")
    write(mount.path / SERIES / "latest", b"checkpoint-5")
    stays(mount, {5, 999})
    true(not first.exists(), "the step that was pinned")
    for name in ("tensorboard", "best_model", "checkpoint-final", "checkpoint-999"):
        true((mount.path / SERIES / name).is_dir(), f"{name} is gone")
    others = {other["name"]: other["reason"] for other in policy(mount)["others"]}
    equal(others, {"tensorboard": "it has no step's name", "best_model": "it has no step's name",
                   "checkpoint-final": "it has no step's name", "checkpoint-999": "it holds no checkpoint file"},
          "what is no step")


@pytest.mark.one_mode
def test_a_step_that_is_pinned_within_one_stays(mount):
    """The checkpoint-N of a Trainer holds the global_stepN of its DeepSpeed."""
    make_series(mount, keep_last=1)
    within = write_step(mount, 1) / "global_step1"
    within.mkdir()
    write(within / "config.json", b"{}")
    write(within / "model.safetensors", safetensors(WEIGHTS))
    mount.control(f"{SERIES}/checkpoint-1/global_step1", "pin", "1")
    for number in (2, 3):
        write_step(mount, number)
    stays(mount, {1, 3})
    found = mount.status()["rotation"]
    equal(([one.split(": ")[1] for one in found["held"]], found["failures"]), (["pinned"], 0), "what is held")
    mount.control(f"{SERIES}/checkpoint-1/global_step1", "pin", "0")
    stays(mount, {3})


@pytest.mark.one_mode
def test_the_best_and_every_tenth(mount):
    make_series(mount, keep_best="eval_loss:min:1", keep_every=10)
    for number, loss in ((1, 3.0), (10, 2.5), (11, 0.5), (12, 2.0), (20, 4.0), (21, 5.0)):
        write_step(mount, number, loss)
    stays(mount, {10, 11, 20, 21})
    mount.control(f"{SERIES}/checkpoint-10", "metric.eval_loss", "0.25")
    stays(mount, {10, 20, 21})
    equal(mount.ask(f"{SERIES}/checkpoint-10", "metric.eval_loss"), "0.25", "the metric")
    equal(decisions(policy(mount))[10], (True, ["keep_every", "keep_best"]), "why it stays")


@pytest.mark.one_mode
def test_rules_that_do_nothing_are_told(mount):
    def told():
        return [one for one in mount.status()["warnings"] if "its rules do nothing" in one]

    make_series(mount, keep_last=1)
    (mount.path / SERIES / "runs").mkdir()
    mount.wait_for_rounds(2)
    equal(told(), [], "of a run that has yet to save")
    (mount.path / SERIES / "000100").mkdir()
    write(mount.path / SERIES / "000100" / ".metadata", b"x")
    wait_until("it says so", lambda: any("000100" in one for one in told()))
    true(any("do nothing" in one and "--set steps=" in one for one in policy(mount)["warnings"]), f"{policy(mount)}")
    remote = mount.store.folder.parent / f"remote-{mount.mode}"
    remote.mkdir()
    run(CKPTFS, "remote", "add", f"file://{remote}", mount.path / SERIES)
    wait_until("so does the remote", lambda: any("nothing is pushed" in one and "000100" in one
                                                 for one in mount.status()["warnings"]))
    write_step(mount, 1)
    wait_until("it no longer does", lambda: not told())


@pytest.mark.one_mode
def test_the_best_model_of_a_trainer_stays_in_full(mount):
    """load_best_model_at_end loads it at the end of the run, with DeepSpeed all of it."""
    make_series(mount, keep_last=1, keep_full=1, thin_to="bf16")
    for number in (10, 20, 30):
        write_step(mount, number, extra=4096, best="runs/a/checkpoint-10")
    stays(mount, {10, 30})
    equal(decisions(policy(mount))[10][1], ["best model"], "why it stays")
    true((mount.path / SERIES / "checkpoint-10/optimizer.pt").exists(), "it is full")
    write_step(mount, 40, extra=4096, best="runs/a/checkpoint-40/")
    stays(mount, {40})


@pytest.mark.one_mode
def test_what_a_tracker_file_names_stays(mount):
    """Megatron's has a number, DeepSpeed's universal one a name. One that cannot be read removes nothing."""
    make_series(mount, keep_last=1)
    for number in (1, 2, 3):
        write_step(mount, number)
        if number == 1:
            write(mount.path / SERIES / "latest_checkpointed_iteration.txt", b"1\n")
            write(mount.path / SERIES / "latest_universal", b"checkpoint-2")
    stays(mount, {1, 2, 3})
    write(mount.path / SERIES / "latest_universal", b"")
    write_step(mount, 4)
    never(mount, {1, 2, 3, 4})
    os.unlink(mount.path / SERIES / "latest_universal")
    stays(mount, {1, 4})


@pytest.mark.one_mode
def test_many_steps_hold_up_no_other_series(mount):
    """Who has many steps waits for them himself: the rules of others act again and again in one round over all."""
    (mount.path / "runs/many").mkdir(parents=True)
    for number in range(500):
        write_step(mount, number, series="runs/many")
    mount.control("runs/many", "keep_last", "1000")
    make_series(mount, keep_last=1)
    write_step(mount, 0)
    mount.wait_for_rounds(1)
    before = mount.status()["rotation"]["rounds"]
    for number in range(1, 7):
        write_step(mount, number)
        wait_until(f"{number - 1} goes", lambda: steps(mount) == {number}, 60, 0.05)
    rounds = mount.status()["rotation"]["rounds"] - before
    true(rounds < 5, f"{rounds} rounds over all series for 6 removals in one")


@pytest.mark.one_mode
def test_what_lies_behind_a_symlink_is_not_missing(mount):
    make_series(mount, keep_last=1, keep_partial="1s", set_aside=1)
    write_step(mount, 1)
    step = write_step(mount, 2, extra=4096)
    os.unlink(step / "model.safetensors")
    os.symlink("../checkpoint-1/model.safetensors", step / "model.safetensors")
    os.unlink(step / "config.json")
    time.sleep(1.2)
    write_step(mount, 3)
    stays(mount, {2, 3})
    true("symlink" in policy(mount)["steps"][0]["reason"], f"the reason: {policy(mount)}")


@pytest.mark.one_mode
def test_dates_alone_make_no_step_old(mount):
    """The clock was a day ahead for a while; a step comes back from a copy with its times."""
    make_series(mount, keep_last=2)
    write_step(mount, 1)
    stays(mount, {1})
    for number in (2, 3):
        date(write_step(mount, number), 86400)
    wait_until("it says so", lambda: any("future" in text for text in mount.status()["warnings"]))
    stays(mount, {2, 3})
    write_step(mount, 4)
    stays(mount, {3, 4})
    mount.remount()
    for number in (5, 6):
        write_step(mount, number)
    stays(mount, {5, 6})
    backup = write_step(mount, 2, series="backup")
    date(backup, -90 * 86400)
    run("cp", "-a", backup, mount.path / SERIES)
    never(mount, {2, 5, 6})
    write_step(mount, 7)
    stays(mount, {2, 6, 7})
    write_step(mount, 8)
    stays(mount, {7, 8})


@pytest.mark.one_mode
def test_what_has_just_come_is_young(mount):
    make_series(mount, keep_for="7d")
    write_step(mount, 1)
    wait_until("it is armed", lambda: policy(mount)["is_armed"])
    date(write_step(mount, 2), -30 * 86400)  # as if the clock had jumped
    write_step(mount, 3)
    never(mount, {1, 2, 3})


STRANGER, VICTIM, ANOTHER = 5001, 5002, 5003


def folder_of(mount, uid, mode):
    (mount.path / SERIES).mkdir(parents=True)
    os.chown(mount.path / SERIES, uid, uid)
    (mount.path / SERIES).chmod(mode)


def as_user(mount, uid, function):
    """function(mount) by a user who may be unable to search the folder that the mount lies in."""
    in_child(lambda: function(types.SimpleNamespace(path=pathlib.Path())), uid=uid, folder=mount.path)


def set_rule_as(mount, uid, rule, value):
    as_user(mount, uid, lambda here: Mount.control(here, SERIES, rule, value))


def write_steps_as(mount, uid, mode, *numbers):
    def write_them(here):
        for number in numbers:
            write_step(here, number).chmod(mode)
            time.sleep(0.02)

    as_user(mount, uid, write_them)


@pytest.mark.one_mode
def test_a_stranger_makes_nobodys_steps_go(mount):
    """Who may make a name in the series of another one: each owner's steps are judged by themselves."""
    folder_of(mount, VICTIM, 0o1777)
    set_rule_as(mount, VICTIM, "keep_last", "2")
    write_steps_as(mount, VICTIM, 0o700, 1, 2, 3)
    stays(mount, {2, 3})
    write_steps_as(mount, STRANGER, 0o755, 997, 998, 999)
    never(mount, {2, 3, 997, 998, 999})  # whose folders the victim could not empty
    held = "checkpoint-997: its setter may not remove it"
    wait_until("it says so", lambda: any(held in text for text in mount.status()["rotation"]["held"]))
    as_user(mount, STRANGER, lambda here: write(here.path / SERIES / "latest", b""))
    as_user(mount, ANOTHER, lambda here: write(here.path / SERIES / "latest_universal", b""))
    write_steps_as(mount, VICTIM, 0o700, 4)
    stays(mount, {3, 4, 997, 998, 999})
    mount.control(SERIES, "keep_last", "1")  # root's, which reaches the stranger's: one of them `latest` may name
    write_steps_as(mount, VICTIM, 0o700, 5)
    stays(mount, {5, 997, 998, 999})
    for uid, tracker in ((STRANGER, "latest"), (ANOTHER, "latest_universal")):
        said = f"steps of uid {uid} stay: nobody can tell what `{tracker}` names"
        true(any(said in text for text in mount.status()["warnings"]), f"{said}: {mount.status()['warnings']}")
    os.unlink(mount.path / SERIES / "latest")
    stays(mount, {5, 999})


@pytest.mark.one_mode
def test_a_rule_reaches_what_its_setter_could_remove(mount):
    folder_of(mount, VICTIM, 0o777)
    write_steps_as(mount, VICTIM, 0o700, 1, 2, 3)
    set_rule_as(mount, STRANGER, "keep_last", "1")
    set_rule_as(mount, STRANGER, "seal_after", "1s")
    write_steps_as(mount, STRANGER, 0o755, 98, 99)
    stays(mount, {1, 2, 3, 99})
    wait_until("it is sealed", lambda: mount.ask(f"{SERIES}/checkpoint-99", "state") == "sealed")
    equal(mount.ask(f"{SERIES}/checkpoint-1", "state"), "complete", "a step that a stranger's rule does not seal")
    as_user(mount, VICTIM, lambda here: os.removexattr(here.path / SERIES, "user.ckptfs.seal_after"))
    set_rule_as(mount, VICTIM, "keep_last", "2")
    write_steps_as(mount, VICTIM, 0o700, 4)
    stays(mount, {3, 4, 99})
    set_rule_as(mount, VICTIM, "keep_for", "7d")
    write_steps_as(mount, VICTIM, 0o700, 5)
    wait_until("it is armed", lambda: policy(mount)["is_armed"])
    as_user(mount, STRANGER, lambda here: os.removexattr(here.path / SERIES, "user.ckptfs.keep_for"))
    write_steps_as(mount, STRANGER, 0o755, 100)
    write_steps_as(mount, VICTIM, 0o700, 6)
    wait_until("it is armed", lambda: policy(mount)["is_armed"])
    never(mount, {3, 4, 5, 6, 99, 100})


@pytest.mark.one_mode
def test_incomplete_ones(mount):
    """Stay, but for keep_partial; what nobody can judge stays for good."""
    make_series(mount, keep_last=1)
    begun = mount.path / SERIES / "checkpoint-1"
    begun.mkdir()
    for name in ("config.json", "training_args.bin", "optimizer.pt"):
        write(begun / name, b"{}")
    write(begun / "model.safetensors", safetensors(WEIGHTS))
    unknown = mount.path / SERIES / "checkpoint-2"
    unknown.mkdir()
    write(unknown / "config.json", b"{}")
    write(unknown / "model.safetensors", safetensors(WEIGHTS))
    write_step(mount, 3)
    write_step(mount, 4)
    stays(mount, {1, 2, 4})
    equal(mount.ask(f"{SERIES}/checkpoint-1", "state"), "incomplete", "state")
    equal(mount.ask(f"{SERIES}/checkpoint-2", "state"), "unknown", "state")
    equal(mount.ask(f"{SERIES}/checkpoint-4", "state"), "complete", "state")
    mount.control(SERIES, "keep_partial", "1s")
    write_step(mount, 5)
    stays(mount, {2, 5})


@pytest.mark.one_mode
def test_caps(mount):
    make_series(mount, max_bytes="3500K")
    for number in range(1, 7):
        write_step(mount, number, extra=MIB)
        os.sync()
    stays(mount, {4, 5, 6})
    equal(policy(mount)["warnings"], [], "warnings")
    mount.control(SERIES, "max_bytes", "100K")
    write_step(mount, 7, extra=MIB)
    stays(mount, {7})
    true(any("max_bytes" in warning for warning in mount.status()["warnings"]), "no warning of a cap that is not met")


def test_sealed_after_a_while(mount):
    make_series(mount, seal_after="1s")
    write_step(mount, 1)
    step = write_step(mount, 2)
    wait_until("both are sealed", lambda: {mount.ask(f"{SERIES}/checkpoint-{n}", "state") for n in (1, 2)} == {"sealed"})
    with raises(errno.EPERM, what="writing into a sealed step"):
        os.open(step / "config.json", os.O_WRONLY)
    mount.control(SERIES, "keep_last", "1")
    write_step(mount, 3)
    stays(mount, {3})


def test_not_while_it_is_being_filled(mount):
    """A policy that comes with a copy: nothing is removed before the series was left alone and then a step completes."""
    mount.stop()
    mount.options = ("quiet=1s",)
    mount.start()
    make_series(mount, keep_last=1)
    end = time.monotonic() + 2
    number = 0
    while time.monotonic() < end:  # for longer than the quiet time, and never quiet
        number += 1
        write_step(mount, number)
        time.sleep(0.3)
    filled = set(range(1, number + 1))
    mount.wait_for_rounds(12)  # quiet, all complete, nothing in use
    equal(steps(mount), filled, "the steps that were filled in")
    write_step(mount, number + 1)
    stays(mount, {number + 1}, seconds=30)


@pytest.mark.one_mode
def test_rules_are_read_refused_and_taken_away(mount):
    make_series(mount, keep_last=3)
    equal(mount.ask(SERIES, "keep_last"), "3", "the rule")
    equal(os.listxattr(mount.path / SERIES), [], "listxattr")
    for rule, value in (("keep_last", "0"), ("keep_last", "x"), ("keep_best", "loss"), ("max_bytes", "lots")):
        with raises(errno.EINVAL, what=f"{rule}={value}"):
            mount.control(SERIES, rule, value)
        true(rule in mount.ask(SERIES, "last_error"), "last_error does not name the rule")
    with raises(errno.EOPNOTSUPP, what="a rule that is none"):
        mount.control(SERIES, "keep_first", "3")
    write_step(mount, 1)
    for path in (".", f"{SERIES}/checkpoint-1"):
        with raises(errno.EINVAL, what=f"a policy on {path}"):
            mount.control(path, "keep_last", "3")
    with raises(errno.EINVAL, what="a metric of what is no step"):
        mount.control(SERIES, "metric.loss", "1")
    with raises(errno.EINVAL, what="a metric that is no number"):
        mount.control(f"{SERIES}/checkpoint-1", "metric.loss", "nan")
    mount.remount()
    equal(mount.ask(SERIES, "keep_last"), "3", "the rule after a remount")
    os.removexattr(mount.path / SERIES, "user.ckptfs.keep_last")
    with raises(errno.ENODATA, what="a rule that was taken away"):
        mount.ask(SERIES, "keep_last")


@pytest.mark.one_mode
def test_the_command(mount):
    make_series(mount)
    for number in (1, 2, 3):
        write_step(mount, number)
    found = policy(mount, "--set", "keep_last=1", "--dry-run")
    equal(decisions(found), {1: (False, ["no rule keeps it"]), 2: (False, ["no rule keeps it"]),
                             3: (True, ["newest", "keep_last"])}, "a dry run")
    with raises(errno.ENODATA, what="a rule of a dry run"):
        mount.ask(SERIES, "keep_last")
    policy(mount, "--set", "keep_last=2", "--set", "keep_for=7d")
    equal(mount.ask(SERIES, "keep_for"), "7d", "what the command set")
    policy(mount, "--unset", "keep_for")
    equal(policy(mount)["set"], {"keep_last": "2"}, "the rules")
    text = run(CKPTFS, "policy", mount.path / SERIES).stdout
    true("goes" in text and "not armed" in text and "at once" not in text, text)
    policy(mount, "--set", "set_aside=1")
    true("set_aside acts at once" in run(CKPTFS, "policy", mount.path / SERIES).stdout, "of the rule that needs no arming")
    policy(mount, "--unset", "set_aside")
    for words in (("--set", "keep_last"), ("--set", "=3")):
        equal(run(CKPTFS, "policy", *words, mount.path / SERIES, check=False).returncode, 2, f"{words}")
    equal(run(CKPTFS, "policy", "--set", "keep_last=0", mount.path / SERIES, check=False).returncode, 1, "a bad value")


def test_saves_are_rotated(mount):
    """Steps of `save` alone, whose names carry no number."""
    write_state(mount.path)
    mount.control("steps", "keep_every", "2")
    for name in ("a", "b", "c", "d", "e"):
        mount.save(name)
        time.sleep(0.02)
    wait_until("every second and the newest", lambda: sorted(os.listdir(mount.path / "steps")) == ["b", "d", "e"])
    equal({step["tag"]: step["number"] for step in policy(mount, series="steps")["steps"]}, {"b": 2, "d": 4, "e": 5},
          "numbers")
    equal(mount.ask("steps/e", "state"), "complete", "a save")
    os.unlink(next((mount.path / "steps/e").rglob("*.swp")))
    equal(mount.ask("steps/e", "state"), "unknown", "a save that lacks a file")
