"""Which steps of a remote stay, where mounts push to it: the pusher asks its rules, and slot 0's mount carries them out.

A daemon with the fault point "remote_day" has shorter days.
"""

import contextlib
import json
import os
import random
import threading

import pytest

from checking import equal, noise, true, write
from collecting import files_of, names, objects_of, pass_days, push_folders
from mounting import CKPTFS, CKPTFS_DEBUG, MIB, Mount, Store, mounted, run, unmount, wait_until
from seaweed import BUCKET, environment
from test_push import ERROR, QUIET, agree, ckptfs, fill, node, state_of, status_of, wait_for

pytestmark = [pytest.mark.one_mode, pytest.mark.timeout(300)]


# --- the pusher asks the rules


def test_a_step_that_the_rules_would_not_keep(fresh_disk, work, folder, mode):
    url = f"file://{folder}"
    with node(fresh_disk, work, "wanted", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps)
        for number in (10, 11):
            fill(steps / f"global_step{number}", seed=number, size=MIB)
            wait_for(steps / f"global_step{number}", "committed")
        ckptfs("remote", "policy", url, "--set", "keep_last=2", "--set", "keep_every=5")
        mount.stop()  # what it knew of the rules is gone
        mount.start()
        for number in (5, 7):
            fill(steps / f"global_step{number}", seed=number, size=MIB)
        wait_for(steps / "global_step5", "committed")  # by keep_every
        wait_for(steps / "global_step7", "not kept")
        said = os.getxattr(steps / "global_step7", ERROR).decode()
        true("keep_last=2" in said and "ckptfs push" in said, f"what it says: {said}")
        one = next(one for one in status_of(steps)["steps"] if one["tag"] == "global_step7")
        equal((one["stage"], one["sent"]), ("not kept", 0), "status")
        equal(status_of(steps)["oldest_unpushed_seconds"], None, "nothing waits to be pushed")
        true("not kept" in ckptfs("ls", steps), "ls")
        print(ckptfs("push", "--wait", steps / "global_step7"))
        equal(state_of(steps / "global_step7"), "committed global_step7", "by hand")
        mount.stop()
        mount.start()
        wait_for(steps / "global_step7", "committed global_step7")  # it stands there, until the collector comes


def test_a_step_that_was_removed_there(fresh_disk, work, folder, mode):
    url = f"file://{folder}"
    with node(fresh_disk, work, "removed", mode) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps)
        for number in (1, 2, 3):
            fill(steps / f"global_step{number}", seed=number, size=MIB)
            wait_for(steps / f"global_step{number}", "committed")
        ckptfs("remote", "rm", f"{url}/global_step1", f"{url}/global_step2")
        mount.stop()
        mount.start()
        for number in (1, 2):
            wait_for(steps / f"global_step{number}", "removed")
        wait_for(steps / "global_step3", "committed")
        said = os.getxattr(steps / "global_step1", ERROR).decode()
        true("by hand" in said and os.uname().nodename in said, f"what it says: {said}")
        equal(status_of(steps)["sent"], 0, "nothing is sent")
        write(steps / "global_step2" / "weights.bin", noise(MIB, 77))
        wait_for(steps / "global_step2", "committed global_step2~2")  # it has changed
        equal(state_of(steps / "global_step1"), "removed", "the other one")
        print(ckptfs("push", "--wait", steps / "global_step1"))
        equal(state_of(steps / "global_step1"), "committed global_step1~2", "by hand")
        ckptfs("remote", "verify", url)


def test_a_part_that_was_ended(fresh_disk, work, folder, mode):
    """The other slot did not come for a week. When it comes, both push again."""
    url = f"file://{folder}"
    with node(fresh_disk, work, "a", mode) as first, node(fresh_disk, work, "b", mode) as second:
        one, other = (mount.path / "steps" / "checkpoint-7" for mount in (first, second))
        ckptfs("remote", "add", url, one.parent, "--slot", "0/2")
        fill(one, files=("weights.bin", "rank0.bin"), size=MIB)
        agree("a1", one)
        wait_for(one, "waiting for slot 1")
        pass_days(folder, 8)
        ended = json.loads(ckptfs("remote", "gc", "--json", url))["ended"]
        equal([push.partition("/")[0] for push in ended], ["checkpoint-7"], "what is ended")

        def words():
            return status_of(one.parent)["steps"][0]["waits_for"]

        wait_until("it says that it was ended", lambda: "removed there" in words() and "ckptfs push" in words(), 60, 0.1)
        parts = sorted((folder / ".ckptfs" / "parts" / "checkpoint-7").iterdir())
        lists = status_of(one.parent)["lists"]
        wait_until("some rounds pass", lambda: status_of(one.parent)["lists"] > lists + 3, 60, 0.1)
        equal(sorted((folder / ".ckptfs" / "parts" / "checkpoint-7").iterdir()), parts, "it is not pushed again by itself")
        ckptfs("remote", "add", url, other.parent, "--slot", "1/2")
        other.mkdir()
        write(other / "rank1.bin", noise(MIB, 9))
        agree("a1", other)
        for step in (one, other):
            wait_for(step, "committed checkpoint-7", 120)
        ckptfs("remote", "verify", url)


# --- the mount of slot 0 collects


@contextlib.contextmanager
def collecting(disk, work, name, mode, day):
    """A daemon whose days at the remote are so many seconds long."""
    with mounted(Store(disk / name), work / f"mnt-{name}", mode=mode, options=QUIET, binary=CKPTFS_DEBUG,
                 faults=f"remote_day={day}") as mount:
        yield mount


def collector_of(steps):
    return status_of(steps)["collector"]


@pytest.mark.builds("faults")
def test_the_mount_collects(fresh_disk, work, folder, mode):
    url = f"file://{folder}"
    with collecting(fresh_disk, work, "daily", mode, day=2) as mount:
        steps = mount.path / "steps"
        ckptfs("remote", "add", url, steps)
        for number in (1, 2, 3):
            fill(steps / f"global_step{number}", seed=10 * number, size=MIB)
            wait_for(steps / f"global_step{number}", "committed")
        ckptfs("remote", "policy", url, "--set", "keep_last=1")
        listed = lambda: names(json.loads(ckptfs("remote", "ls", "--json", url)))
        wait_until("the rules are carried out", lambda: listed() == ["global_step3"], 60, 0.2)
        wait_until("garbage is deleted",
                   lambda: not push_folders(folder, "global_step1") + push_folders(folder, "global_step2"), 60, 0.2)
        equal(len(files_of(folder, "global_step3")), 3, "what is needed stays")
        wait_until("it says so", lambda: collector_of(steps)["removed"] == 2 and collector_of(steps)["deleted_bytes"] > 0, 30, 0.2)
        true("the collector ran" in ckptfs("remote", "status", steps), "for people, too")
        rules = folder / ".ckptfs" / "rules" / "2"
        rules.write_text("damaged")
        wait_until("what stands in the way is told", lambda: ".ckptfs/rules/2" in collector_of(steps)["trouble"], 60, 0.2)
        true("the collector fails" in ckptfs("remote", "status", steps), "for people, too")
        true(".ckptfs/rules/2" in mount.read_log(), "in the log")
        true(any("not carried out" in warning for warning in mount.status()["warnings"]), "in the warnings")
        done = run(CKPTFS, "doctor", mount.path, check=False)
        true("are not carried out" in done.stdout, f"doctor: {done.stdout}")
        rules.unlink()
        wait_until("it goes on", lambda: collector_of(steps)["trouble"] == "", 60, 0.2)
        ckptfs("remote", "verify", url)


@pytest.mark.builds("faults")
def test_only_slot_0_collects(fresh_disk, work, folder, mode):
    with collecting(fresh_disk, work, "slot1", mode, day=1) as mount:
        ckptfs("remote", "add", f"file://{folder}", mount.path / "steps", "--slot", "1/2")
        equal(collector_of(mount.path / "steps"), None, "slot 1")
        ckptfs("remote", "add", f"file://{folder}", mount.path / "steps", "--slot", "0/2")
        wait_until("slot 0 collects", lambda: collector_of(mount.path / "steps")["runs"] > 0, 30, 0.2)


# --- days go by


class Cluster:
    """Three mounts that hold each step together, with short days at the remote."""

    SLOTS, KEEP_LAST, KEEP_EVERY = 3, 12, 25

    def __init__(self, disk, work, mode, url, options, day):
        self.url, self.options, self.number = url, options, 0
        self.mounts = []
        for slot in range(self.SLOTS):
            self.mounts.append(Mount(Store(disk / f"slot{slot}"), work / f"mnt-slot{slot}", mode=mode, options=QUIET,
                                     binary=CKPTFS_DEBUG, faults=f"remote_day={day}"))

    def __enter__(self):
        for slot, mount in enumerate(self.mounts):
            mount.start()
            ckptfs("remote", "add", self.url, self.steps(slot), "--slot", f"{slot}/{self.SLOTS}", *self.options)
        self.call("policy", "--set", f"keep_last={self.KEEP_LAST}", "--set", f"keep_every={self.KEEP_EVERY}")
        return self

    def __exit__(self, *_):
        for mount in self.mounts:
            if mount.alive():
                mount.kill()
            unmount(mount.path)

    def call(self, command, *words):
        return ckptfs("remote", command, self.url, *self.options, *words)

    def steps(self, slot):
        return self.mounts[slot].path / "steps"

    def listed(self, *words):
        return names(json.loads(self.call("ls", "--json", *words)))

    def kill_one(self, dice):
        mount = dice.choice(self.mounts)
        mount.kill()
        run("umount", "-l", mount.path, check=False)
        mount.start()

    def save(self, count, dice):
        """So many steps, by all mounts, one of which is killed meanwhile."""
        made = []
        for _ in range(count):
            self.number += 1
            made.append(f"global_step{self.number}")
            for slot in range(self.SLOTS):
                step = self.steps(slot) / made[-1]
                step.mkdir()
                write(step / f"rank{slot}.bin", noise(64 << 10, 10 * self.number + slot))
                agree(f"a{self.number}", step)
        threading.Event().wait(dice.uniform(0, 3))
        self.kill_one(dice)
        for tag in made:
            for slot in range(self.SLOTS):
                wait_for(self.steps(slot) / tag, "committed", 240)

    def model(self):
        """What stays of all that was ever committed, oldest first: what is new by its save, or by its number."""
        tags = self.listed("--all")
        equal(len(tags), self.number, "all steps were committed")
        numbers = [int(tag.removeprefix("global_step")) for tag in tags]
        newest = {*numbers[-self.KEEP_LAST :], *sorted(numbers)[-self.KEEP_LAST :]}
        return [tag for tag, number in zip(tags, numbers) if number in newest or number % self.KEEP_EVERY == 0]

    def pass_day(self, runs=2):
        """The run that is under way may have begun before the last commit."""
        before = collector_of(self.steps(0))
        wait_until("the collector runs", lambda: collector_of(self.steps(0))["runs"] >= before["runs"] + runs, 240, 0.5)
        equal(collector_of(self.steps(0))["failures"], before["failures"], "runs that failed")


def live(cluster, days, each, seed):
    dice = random.Random(seed)
    for day in range(days):
        cluster.save(each, dice)
        cluster.pass_day()
        equal(cluster.listed(), cluster.model(), f"what stays after day {day + 1} (--seed {seed})")
    for _ in range(4):  # two runs do, but for those that come a little less than a day after another one
        cluster.pass_day(1)
        keys = objects_of(cluster.url, cluster.options, "")
        tags = {key.split("/")[0].rpartition(".")[0] for key in keys if not key.startswith(".ckptfs/")}
        if tags == set(cluster.model()):
            break
    equal(tags, set(cluster.model()), "whose files are left")
    cluster.call("verify")


@pytest.mark.builds("faults")
@pytest.mark.timeout(900)
def test_what_stays_is_what_a_model_says(fresh_disk, work, folder, mode, seed, monkeypatch):
    monkeypatch.setattr(Cluster, "KEEP_LAST", 4)
    monkeypatch.setattr(Cluster, "KEEP_EVERY", 3)
    with Cluster(fresh_disk, work, mode, f"file://{folder}", (), day=10) as cluster:
        live(cluster, days=2, each=4, seed=seed)


@pytest.mark.long
@pytest.mark.builds("faults")
@pytest.mark.builds("venv")
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kind", ("folder", "s3"))
def test_two_hundred_steps(fresh_disk, work, folder, mode, seed, kind, server, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    url, options = (f"file://{folder}", ()) if kind == "folder" else (f"s3://{BUCKET}/two-hundred-{mode}", ("--endpoint", server.endpoint))
    with Cluster(fresh_disk, work, mode, url, options, day=20) as cluster:
        live(cluster, days=20, each=10, seed=seed)
