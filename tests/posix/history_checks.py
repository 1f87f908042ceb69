"""What must hold after each act of a random history (histories.py), and at its end."""

import contextlib
import os
import pathlib

from checking import read, same_bytes, true
from history_model import NO, THINNED, YES
from hugging import parse
from mounting import Failure
from viewing import as_bf16


class HistoryChecks:
    """Of a History, which has the series and the model."""

    def fail(self, step, what):
        raise Failure(f"{step.name}: {what}")

    def look(self):
        """Compares the series with the model, and lets the model know what the rules took."""
        there = {os.stat(one).st_ino: one.name for one in self.folders()}
        newest = {id(training): training.newest() for training in self.trainings}
        for step in self.steps:
            if not step.gone and step.inode not in there:
                self.judge_removal(step, newest)
        for step in self.steps:
            if not step.gone:
                self.judge_name(step, there[step.inode])
                self.judge_thinning(step)
                self.judge_mixture(step)
        for training in self.trainings:
            before, training.last = training.last, training.newest()
            if training.last and training.last is not before:  # another training may have spoilt the one before
                training.last.was_older = bool(before and before.saved > training.last.saved)
            if training.last and training.overtaken(training.last):
                training.last.was_older |= (self.path / training.last.name / THINNED).exists()
            elif training.last:
                self.judge_content(training.last)
        for step in self.steps:
            step.was_whole, step.was_full, step.was_pinned = step.whole, step.full, step.pinned
        self.was_latest = self.latest

    def folders(self):
        found = []
        for one in os.scandir(self.path):
            with contextlib.suppress(FileNotFoundError):
                if one.is_dir() and os.stat(one.path):
                    found.append(pathlib.Path(one.path))
        return found

    def is_protected(self, step):
        if step.pinned and step.was_pinned:
            return "it is pinned"
        return "latest names it" if self.latest == self.was_latest == step.name else ""

    def judge_removal(self, step, newest):
        step.gone = "by a rule"
        self.note(f"[{step.name} goes]")
        if self.is_protected(step):
            self.fail(step, f"it went, though {self.is_protected(step)}")
        for training in self.trainings:
            was_newest = newest[id(training)] is step and (training.last is step or step.saved == self.now)
            if was_newest and not training.overtaken(step):
                self.fail(step, f"it went, and is the newest whole save of {self.who(training)}, which lives")
        true(not step.alone, f"{step.name}: it went, and is a model that was meant so")
        if step.whole == NO and step.was_whole == NO:
            true(step.odd or "keep_partial" in self.rules, f"{step.name}: it is a torso, and went without keep_partial")
            return
        if YES not in (step.whole, step.was_whole):
            return
        keeps = {"keep_last", "keep_every", "keep_for", "keep_best", "max_bytes"} & set(self.rules)
        true(keeps, f"{step.name}: it went, and no rule removes")
        capped = "max_bytes" in self.rules
        self.judge_rank(step, 1 if capped else self.rules.get("keep_last", 1), "goes", lambda one: True)
        if step.full and step.was_full:
            self.judge_rank(step, 1, "goes", lambda one: one.full or one.was_full)
        if step.odd or capped:
            return
        every = self.rules.get("keep_every")
        is_kept = every and all(number % every == 0 for number in step.numbers)
        true(not is_kept, f"{step.name}: it went, and keep_every keeps it")
        best = int(self.rules.get("keep_best", "0").split(":")[-1])
        better = [one for one in self.others_whole(step) if one.loss is not None and one.loss <= step.loss]
        true(len(better) >= best, f"{step.name}: it went, and is among the best: {[one.name for one in better]}")

    def others_whole(self, step):
        return [one for one in self.steps if one is not step and one.is_whole() and one.gone != "by hand"]

    def judge_rank(self, step, count, what, counts):
        """A step is old only if so many whole ones are higher, and as many were saved, or touched, since it was."""
        others = [one for one in self.others_whole(step) if counts(one)]
        higher = [one.name for one in others if max(one.numbers) > min(step.numbers)]
        later = [one.name for one in others if one.touched >= step.saved]
        for order, found in (("higher", higher), ("later", later)):
            true(len(found) >= count, f"{step.name} {what}, and no {count} whole ones are {order}: {found}")

    def judge_name(self, step, name):
        if name == step.name:
            return
        self.note(f"[{step.name} is {name}]")
        true(name.startswith("incomplete-") and "set_aside" in self.rules, f"{step.name}: it is {name} now")
        true(step.whole != YES and not step.alone, f"{step.name}: it is whole, and is called {name}")
        step.name = name

    def judge_thinning(self, step):
        folder = self.path / step.name
        if not step.full or not (folder / THINNED).exists() or self.prefix != "checkpoint-" or step.odd:
            return
        self.note(f"[{step.name} is thinned]")
        if self.is_protected(step):
            self.fail(step, f"it was thinned, though {self.is_protected(step)}")
        self.judge_rank(step, self.rules.get("keep_full", 1) if not self.told[-1].startswith("thin") else 1,
                        "is thinned", lambda one: one.full or one.was_full)  # fmt: skip
        step.full = False
        wanted = tensors_of(step.files.items())
        with contextlib.suppress(FileNotFoundError):
            got = tensors_of([(path.name, read(path)) for path in folder.glob("model*.safetensors")])
            for name, tensor in wanted.items():
                true(got.get(name) in (tensor, as_bf16(tensor)), f"{step.name}: {name} of the thinned step: {got}")

    def judge_mixture(self, step):
        if step.mixed or step.of_turns:
            with contextlib.suppress(FileNotFoundError):
                state = self.mount.ask(self.series / step.name, "state")
                true(state not in ("complete", "weights"), f"{step.name}: it is of two saves, and called {state}")

    def judge_content(self, step):
        folder = self.path / step.name
        if step.was_older and (folder / THINNED).exists():
            return
        true(step.full, f"{step.name}: it was thinned, and is the newest whole save of a training that lives")
        for name, data in step.files.items():
            try:
                same_bytes(read(folder / name), data, f"{folder / name}")
            except FileNotFoundError:
                self.fail(step, f"it lacks {name}, and is the newest whole save of a training that lives")

    def too_many(self):
        """Steps that stay though no rule keeps them, beyond twice what the rules say; nothing if there are none."""
        if not {"keep_last", "keep_every", "keep_for", "keep_best"} & set(self.rules) or "keep_for" in self.rules:
            return []
        newest = [training.newest() for training in self.trainings]
        left = [step for step in self.steps if not step.gone and step.whole == YES and not step.odd]
        left = [step for step in left if not step.pinned and step.name != self.latest and step not in newest]
        every = self.rules.get("keep_every", 1 << 40)
        left = [step for step in left if all(number % every for number in step.numbers)]
        most = 2 * self.rules.get("keep_last", 1) + int(self.rules.get("keep_best", "0").split(":")[-1])
        most += 2  # the newest that a training saved, in both orders, if others were copied in since
        return [step.name for step in left] if len(left) > most else []


def tensors_of(files):
    found = {}
    for name, data in files:
        if name.startswith("model") and name.endswith(".safetensors"):
            found |= parse(data)
    return found
