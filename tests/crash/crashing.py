"""Rounds of crashes: workers start, a crash interrupts them at a chosen moment, and the result is checked."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

from crash_model import Files, Log, Steps
from mounting import Failure
from training import check_step, step_of, write_state

WORKERS = pathlib.Path(__file__).resolve().parent / "crash_workers.py"


class Workers:
    """A scribe and a trainer on one mount (or, plain, in one folder)."""

    def __init__(self, root, logs, seed, plain=False):
        self.root = pathlib.Path(root)
        self.folder = self.root / "work"
        self.folder.mkdir(exist_ok=True)
        self.logs = {kind: Log(pathlib.Path(logs) / f"{kind}-{seed}.log") for kind in ("scribe", "trainer")}
        self.errors = {kind: open(log.path.with_suffix(".err"), "wb") for kind, log in self.logs.items()}
        self.processes = {}
        for kind, place in (("scribe", self.folder), ("trainer", self.root)):
            words = [sys.executable, WORKERS, kind, place, self.logs[kind].path, str(seed)] + (
                ["plain"] if plain else []
            )
            self.processes[kind] = subprocess.Popen(
                [str(word) for word in words], stderr=self.errors[kind], start_new_session=True
            )

    def wait_for(self, what, condition, seconds=60):
        """Waits until condition(scribe's operations, trainer's operations) holds. Fails if a worker ends before
        that."""
        end = time.monotonic() + seconds
        while True:
            if condition(*(log.update().operations for log in self.logs.values())):
                return
            for kind, process in self.processes.items():
                if process.poll() is not None:
                    raise Failure(f"the {kind} ended before the crash: {self.last_words(kind)}")
            if time.monotonic() > end:
                raise Failure(f"not so after {seconds} s: {what}")
            time.sleep(0.002)

    def last_words(self, kind):
        log = self.logs[kind].update()
        return f"{log.error} {log.path.with_suffix('.err').read_text()[-2000:]}"

    def wait_for_moment(self, dice):
        """Waits for two saves. Then, at random, waits until a save, a removal, a swap-file write or any operation is
        running."""
        self.wait_for(
            "two saves", lambda _, trainer: sum(1 for one in trainer if one["op"] == "save" and one["done"]) >= 2
        )
        wanted = dice.choice(("save", "save", "save", "remove", "swap", "any"))
        since = time.monotonic() + dice.random() * 0.5
        if wanted != "any":
            with contextlib.suppress(Failure):
                self.wait_for(
                    wanted,
                    lambda _, trainer: trainer
                    and trainer[-1]["op"] == wanted
                    and trainer[-1]["done"] is None
                    and trainer[-1]["t"] > since,
                    5,
                )
        time.sleep(dice.random() * dice.choice((0.0, 0.001, 0.005, 0.03)))

    def end(self):
        """Waits for the workers, which end at their first error. Kills a worker that does not end."""
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()
        for file in self.errors.values():
            file.close()

    def kill(self):
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
        self.end()

    def judge(self, power_cut_at=None, plain=False):
        """Compares what is there with what the logs require, after a kill -9 or a power cut."""
        power = power_cut_at is not None
        scribe, trainer = (log.update().operations for log in self.logs.values())
        for log in self.logs.values() if power else ():
            log.not_returned_after(power_cut_at)
        Files(scribe, power).check(self.folder)
        steps = Steps(trainer, power)
        steps.check(self.root)
        if not plain:
            steps.check_seals(self.root)

    def in_flight_at(self, moment):
        return {kind: log.update().in_flight(moment) for kind, log in self.logs.items()}


class Counts:
    """Counts how many rounds interrupted which operations."""

    def __init__(self):
        self.rounds = self.writing = self.saving = self.any = 0

    def add(self, flight):
        saving = flight["trainer"] == "save"
        writing = any(operation not in (None, "save") for operation in flight.values())
        self.rounds += 1
        self.saving += saving
        self.writing += writing
        self.any += saving or writing

    def __str__(self):
        return (
            f"{self.rounds} rounds, {self.any} with something in flight: a save in {self.saving}, "
            f"a write or another change in {self.writing}"
        )

    def check(self):
        if self.any < max(1, int(0.8 * self.rounds)):
            raise Failure(f"too few rounds hit something: {self}")


WITNESS = "witness"


def make_witness(mount):
    """Makes a sealed step that all later rounds must not change. Returns its content."""
    wanted = step_of(write_state(mount.path, 7, ranks=1))
    mount.save(WITNESS)
    mount.seal(f"steps/{WITNESS}")
    return wanted


def check_witness(mount, wanted):
    check_step(mount.path / "steps" / WITNESS, wanted, WITNESS)
    if os.getxattr(mount.path / "steps" / WITNESS, "user.ckptfs.seal") != b"1":
        raise Failure("the witness is no longer sealed")


def clear(root):
    """Removes what the workers of a round made."""
    for folder in [root / "work", root / "zero_stage_3", *(root / "steps").iterdir()]:
        if folder.exists() and folder.name != WITNESS:
            shutil.rmtree(folder)
