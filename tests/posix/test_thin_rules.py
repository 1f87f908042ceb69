"""Thinning by the rules keep_full and thin_to, in both open modes."""

import contextlib
import errno
import json
import os
import random

import pytest

from checking import equal, opened, raises, read, true
from mounting import CKPTFS, MIB, run, wait_until
from savers import KINDS, Pool
from viewing import SERIES, full_step

pytestmark = pytest.mark.one_mode

MANIFEST = "ckptfs-thinned.json"


def series_with(mount, **rules):
    (mount.path / SERIES).mkdir(parents=True)
    for rule, value in rules.items():
        mount.control(SERIES, rule, str(value))


def states(mount):
    found = {}
    for name in os.listdir(mount.path / SERIES):
        with contextlib.suppress(FileNotFoundError):  # it was removed this moment
            found[int(name.split("-")[1])] = mount.ask(f"{SERIES}/{name}", "state")
    return found


def become(mount, wanted):
    wait_until(f"{wanted}", lambda: states(mount) == wanted, 30, 0.05)
    mount.wait_for_rounds(2)  # and no more become others
    equal(states(mount), wanted, "the states")


def test_rules_keep_the_last_ones_full(mount):
    series_with(mount, keep_full=2, thin_to="bf16", keep_last=4)
    for number in range(1, 7):
        full_step(mount, number, seed=number)
    become(mount, {3: "weights", 4: "weights", 5: "complete", 6: "complete"})
    equal(json.loads(read(mount.path / SERIES / "checkpoint-3" / MANIFEST))["type"], "bf16", "the type")
    status = mount.status()["rotation"]
    true(status["thinned"] >= 2 and status["failures"] == 0, f"{status}")  # more if a step was thin before it went
    true(status["freed_by_thinning"] > 2 * MIB, f"{status}")
    full_step(mount, 7)
    become(mount, {4: "weights", 5: "weights", 6: "complete", 7: "complete"})


@pytest.mark.parametrize("prefix", ("checkpoint-", "step_"))
def test_a_step_that_is_saved_anew_is_thinned_again(mount, prefix):
    """What the first thinning left in it is in no way, and is not left beside the second one's."""
    series_with(mount, keep_full=1, keep_last=9)

    def save(training, number):
        folder = mount.path / SERIES / f"{prefix}{number}"
        operations = [("write", folder / name, data) for name, data in KINDS[prefix](random.Random(number), number, 1.0)]
        training.do([("mkdir", folder), *operations])
        mount.wait_for_rounds(2)

    step = f"{SERIES}/{prefix}20"
    with Pool(2) as pool:
        first, second = pool.take(), pool.take()
        for number in (10, 20, 30):
            save(first, number)
        wait_until("20 is thin", lambda: mount.ask(step, "state") == "weights", 30)
        before = sorted(os.listdir(mount.path / step))
        first.kill()
        for number in (20, 30, 40, 50):
            save(second, number)
        wait_until("20 is thin again", lambda: mount.ask(step, "state") == "weights", 30)
        equal(sorted(os.listdir(mount.path / step)), before, "its files")


def test_rules_leave_what_is_protected(mount):
    series_with(mount, keep_full=1)
    mount.control(SERIES, "thin_to", "same")
    step, _ = full_step(mount, 1)
    mount.control(step, "pin", "1")
    with opened(step / "notes.txt", os.O_RDONLY):
        full_step(mount, 2)
        full_step(mount, 3)
        become(mount, {1: "complete", 2: "weights", 3: "complete"})
    found = json.loads(run(CKPTFS, "policy", "--json", mount.path / SERIES).stdout)
    why = {one["tag"]: (one["thins"], one["full_because"]) for one in found["steps"]}
    equal(why, {"checkpoint-1": (False, "pinned"), "checkpoint-2": (False, ""), "checkpoint-3": (False, "keep_full")},
          "why they stay full")
    text = run(CKPTFS, "policy", mount.path / SERIES).stdout
    true("STAYS FULL BY" in text and "pinned" in text, text)
    mount.control(step, "pin", "0")
    become(mount, {1: "weights", 2: "weights", 3: "complete"})


def test_what_cannot_be_thinned_stays_full(mount):
    """The reason is told, and it is not tried again and again."""
    series_with(mount, keep_full=1)
    step, _ = full_step(mount, 1)
    (step / MANIFEST).mkdir()
    full_step(mount, 2)
    policy = (CKPTFS, "policy", "--json", mount.path / SERIES)

    def reason():
        return json.loads(run(*policy).stdout)["steps"][0]["full_because"]

    wait_until("the reason is told", lambda: "would be replaced" in reason(), 20, 0.1)
    become(mount, {1: "complete", 2: "complete"})
    equal(mount.read_log().count("is not thinned"), 1, "lines of the log")
    (step / MANIFEST).rmdir()  # which changes the step
    become(mount, {1: "weights", 2: "complete"})


@pytest.mark.one_mode
def test_rules_take_numbers_and_ages(mount):
    series_with(mount, keep_full="7d", thin_to="fp16")
    for rule, value in (("keep_full", "0"), ("keep_full", "x"), ("thin_to", "int8")):
        with raises(errno.EINVAL, what=f"{rule}={value}"):
            mount.control(SERIES, rule, value)
    for number in (1, 2):
        full_step(mount, number)
    become(mount, {1: "complete", 2: "complete"})
