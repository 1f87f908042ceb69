"""The real, unmodified Trainer and DeepSpeed, killed at random moments within their saves and started again at once:
with resume_from_checkpoint=True, and from what `latest` names. With the rule `set_aside` each start goes on from a
complete step, and the losses are those of an uninterrupted run. On plain XFS some starts fail; the long tests print how
many.

DeepSpeed saves by its own function. It loads by ckptfs.deepspeed, because its own load begins the optimizer anew.

Options: --seed, --rounds (how many kills).
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import time

import pytest

from checking import equal, true
from harness import HERE, RUN_TIMEOUT, Ckptfs, PlainXfs, Tmpfs, environment, python, rank_server
from mounting import CKPTFS, LEVEL, Failure, by_level, run, wait_until
from ports import free_port
from trainer import TENSORS, digests

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(7200)]

SERIES = "runs"


def trainer(point, resume, on_ckptfs, limit=3):
    """The words of a training that saves into the series, and goes on from what is there."""
    del on_ckptfs
    return ["trainer.py", "--output-dir", point / SERIES, "--steps", "1000", "--keep", limit, "--log", "--paced",
            "--out", "/dev/null", *(["--resume", "last"] if resume else [])]


def deepspeed(point, resume, on_ckptfs):
    del resume  # it looks for `latest` itself
    return ["paced.py", "--nvme", point, "--series", point / SERIES, *([] if on_ckptfs else ["--plain"])]


PREFIXES = {trainer: "checkpoint-", deepspeed: "global_step"}
# A process that writes in its first 2 s counts as a command (docs/rotation.md). A forked training would be one.
OLDER_THAN_A_COMMAND = 2.2


class Run:
    """A training that takes a step, and saves it, for each line that it is given."""

    def __init__(self, scene, words):
        self.log = scene.work / "killed.log"
        self.port = str(free_port())
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "MASTER_PORT": self.port}
        shared = environment()
        shared |= alone if words[0] == "paced.py" else {}
        asked, self.asking = os.pipe()
        self.answers, answering = os.pipe()
        with open(self.log, "wb") as log, open(asked) as stdin, open(answering) as stdout:
            words = [HERE / words[0], *words[1:]]
            began = time.monotonic()
            self.process = rank_server().start(words, shared, log, stdin, stdout)
        self.asking, self.answers = open(self.asking, "w"), open(self.answers)
        self.answer()
        time.sleep(max(0, began + OLDER_THAN_A_COMMAND - time.monotonic()))

    def answer(self):
        """What it prints next: after its start, and after each save. None: it has ended."""
        for line in self.answers:
            if line.startswith(('"ready"', '{"')):  # the Trainer prints {'loss': ...} itself
                return json.loads(line)
        return None

    def ask(self):
        """Lets it take the next step."""
        try:
            self.asking.write("\n")
            self.asking.flush()
        except BrokenPipeError:
            pass  # it has ended, as its answer says

    def step(self):
        self.ask()
        return self.answer()

    def kill(self):
        self.process.kill()
        self.process.wait()
        for pipe in (self.asking, self.answers):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        for buffer in pathlib.Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{self.port}_*"):
            buffer.unlink()


class Interrupted:
    """A training in a place, and what became of it."""

    def __init__(self, scene, kind, on_ckptfs=False):
        self.scene, self.kind, self.on_ckptfs = scene, kind, on_ckptfs
        self.series = scene.point / SERIES
        self.series.mkdir(exist_ok=True)
        self.prefix = PREFIXES[kind]
        self.taken = {}  # what each step was, as the training told
        self.seconds = 0  # how long the last save took
        self.failed = []  # the last words of starts that failed
        self.aside = 0  # steps that were set aside
        self.unnamed = 0  # complete steps that `latest` did not name, and that DeepSpeed cannot save again
        self.run = None

    def start(self, resume=True):
        self.run = Run(self.scene, self.kind(self.scene.point, resume, self.on_ckptfs))

    def step(self):
        """A step, and its save. What a start stumbles over is removed by hand, as far as there is something."""
        for _ in range(5):
            told = self.run.step()
            if told is not None:
                self.seconds = told["returned"]
                self.taken[told["step"]] = {key: told[key] for key in ("loss", "digests") if key in told}
                self.remove_old(told["step"])
                return told["step"]
            self.run.kill()
            words = self.run.log.read_text(errors="replace")[-3000:]
            broken = max(self.steps(), key=self.number_of, default=None)
            if broken is None:
                break
            if self.is_latest_empty():  # it is written last, so the newest step is complete
                self.unnamed += 1
                (self.series / "latest").write_text(broken.name)
                self.start()
                continue
            if self.is_unnamed(broken):
                self.unnamed += 1
            else:
                self.failed.append(words)
            shutil.rmtree(broken)
            self.start()
        raise Failure(f"the training does not go on: {words}")

    def is_latest_empty(self):
        return self.kind is deepspeed and (self.series / "latest").read_text() == ""

    def is_unnamed(self, step):
        if not self.on_ckptfs or self.kind is not deepspeed or (self.series / "latest").read_text() == step.name:
            return False
        row = json.loads(run(CKPTFS, "ls", "--json", step).stdout)["steps"][0]
        return row["state"] == "complete" or row["reason"].startswith("it was written")

    def steps(self):
        return list(self.series.glob(f"{self.prefix}*"))

    def number_of(self, step):
        return int(step.name.removeprefix(self.prefix))

    def remove_old(self, newest):
        """The disk is small, and DeepSpeed removes nothing."""
        aside = list(self.series.glob("incomplete-*"))
        self.aside += len(aside)
        for path in aside + [step for step in self.steps() if self.number_of(step) < newest - 2]:
            shutil.rmtree(path)

    def kill_in_save(self, number, dice):
        """At a random moment after the step's folder has appeared."""
        folder = self.series / f"{self.prefix}{number}"
        self.run.ask()
        end = time.monotonic() + RUN_TIMEOUT
        while not folder.exists() and self.run.process.poll() is None:
            true(time.monotonic() < end, f"{folder} appears")
        time.sleep(dice.uniform(0, self.seconds))
        self.run.kill()

    def run_with(self, kills, dice):
        """A step, then a kill in the save of the next one, and so on."""
        self.start(resume=False)
        for _ in range(kills):
            self.kill_in_save(self.step() + 1, dice)
            self.start()
        self.step()
        self.run.kill()


class Limited(Interrupted):
    """A Trainer with save_total_limit beside the rules. At each save it is counted what could be resumed from."""

    def __init__(self, scene, limit, full):
        super().__init__(scene, trainer, on_ckptfs=True)
        self.limit, self.full = limit, full

    def start(self, resume=True):
        self.run = Run(self.scene, trainer(self.scene.point, resume, self.on_ckptfs, self.limit))
        self.count()

    def remove_old(self, newest):
        self.count()

    def kill_in_save(self, number, dice):
        """A Trainer that is killed while it removes an old checkpoint takes the rest for its newest one, since it goes by
        the time of the folder, and removes whole ones instead: on any file system (docs/rotation.md). What the rule
        cannot tell from a checkpoint is removed here, as the guide says."""
        super().kill_in_save(number, dice)
        for step in self.steps():
            if self.number_of(step) in self.taken and not (step / "config.json").exists():  # which goes first
                shutil.rmtree(step, ignore_errors=True)

    def is_whole(self, step):
        """It holds what the training saved, to the last bit. If the training was killed before it told that, then all
        files are there, and the step has kept its name."""
        files = [step / name for name in (*TENSORS, "scheduler.pt", "rng_state.pth", "trainer_state.json")]
        told = self.taken.get(self.number_of(step))
        try:
            return all(file.exists() for file in files) and (told is None or digests(step) == told["digests"])
        except FileNotFoundError:
            return False  # it has just been thinned

    def count(self):
        whole = sorted(self.number_of(step) for step in self.steps() if self.is_whole(step))
        wanted = min(len(self.taken), self.limit, self.full)
        true(len(whole) >= wanted, f"{whole} can be resumed from, but {wanted} are to be: {os.listdir(self.series)}")


def whole_run(scene, kind, kills):
    """What each step is if nobody interrupts the run. On tmpfs, where no alignment can be wrong."""
    with Tmpfs().place(scene):
        whole = Interrupted(scene, kind)
        whole.start(resume=False)
        for _ in range(2 * kills + 1):  # a step that was killed may be complete
            whole.step()
        whole.run.kill()
        equal(whole.failed, [], "starts that failed")
        return whole.taken


def judge(ours, truth):
    true(not ours.failed, f"{len(ours.failed)} starts failed, the last one: {''.join(ours.failed[-1:])}")
    for step, told in ours.taken.items():
        equal(told, truth[step], f"step {step}")


def test_an_empty_latest_is_told_of(venv, scratch):
    """A save that was killed between the opening and the writing of `latest` leaves it so."""
    (scratch / "latest").touch()
    program = f"import ckptfs.deepspeed; ckptfs.deepspeed.latest_of({str(scratch)!r})"
    shared = environment()
    done = subprocess.run([python(), "-c", program], env=shared, capture_output=True, text=True, check=False)
    true(f"{scratch}/latest is empty" in done.stderr and "write the tag of a complete step" in done.stderr, done.stderr)


@pytest.mark.one_mode
@pytest.mark.parametrize("kind", (trainer, pytest.param(deepspeed, marks=pytest.mark.long)))
def test_killed_in_its_saves(scene, mode, kind, seed, rounds):
    kills = rounds or by_level(1, 50)
    truth = whole_run(scene, kind, kills)
    with Ckptfs(mode=mode, options=("quiet=30s",)).place(scene) as mount:
        ours = Interrupted(scene, kind, on_ckptfs=True)
        mount.control(SERIES, "set_aside", "1")
        ours.run_with(kills, random.Random(seed))
        equal(mount.status()["rotation"]["set_aside"], ours.aside, "steps set aside")
    judge(ours, truth)
    print(f"      {kind.__name__}, {kills} kills: {ours.aside} steps were set aside, no start took one, and "
          f"{ours.unnamed} met a complete step that `latest` did not name")
    if LEVEL == "long":
        tell_of_plain_xfs(scene, kind, kills, seed, truth)


def tell_of_plain_xfs(scene, kind, kills, seed, truth):
    with PlainXfs().place(scene):
        plain = Interrupted(scene, kind)
        plain.run_with(kills, random.Random(seed))
    wrong = sum(told != truth[step] for step, told in plain.taken.items())
    print(f"      on plain XFS {len(plain.failed)} starts failed, and {wrong} of {len(plain.taken)} steps are not as without "
          "a kill")


@pytest.mark.parametrize("limit, full", ((2, 2), pytest.param(3, 1, marks=pytest.mark.long)))
def test_save_total_limit(scene, limit, full, seed, rounds):
    """Beside keep_full: as many as the smaller one of both says can be resumed from, at each save and each start. The
    Trainer leaves as many folders as save_total_limit says, and those that keep_full does not keep are thin."""
    with Ckptfs(options=("quiet=1s",)).place(scene) as mount:
        ours, dice = Limited(scene, limit, full), random.Random(seed)
        for rule, value in (("set_aside", 1), ("keep_full", full), ("thin_to", "bf16")):
            mount.control(SERIES, rule, str(value))
        ours.start(resume=False)
        for _ in range(limit + 1):
            ours.step()
        for _ in range(rounds or by_level(1, 20)):
            ours.kill_in_save(max(ours.taken) + 1, dice)
            ours.start()
            ours.step()
        wanted = ["complete"] * full + ["weights"] * (limit - full)

        def states():
            return sorted(mount.ask(f"{SERIES}/{step.name}", "state") for step in ours.steps())

        wait_until(f"of the Trainer's {limit} folders {full} are whole", lambda: states() == wanted, 30, 0.1)
        ours.count()
        newest = max(ours.taken)
        ours.run.kill()
        ours.start()
        equal(ours.step(), newest + 1, "the step after a resume")
        equal(len(ours.steps()), limit, "folders that the Trainer counts")
        ours.run.kill()
    equal(ours.failed, [], "starts that failed")
