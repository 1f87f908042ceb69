"""A random history of one series with rules, and a model of it.

Trainings are processes that take orders. Beside them others evaluate, convert, copy, move, touch, pin, seal, thin and
remove; the daemon is killed.
"""

import contextlib
import os
import pathlib
import random
import shutil
import time

from checking import in_child, true, write
from history_checks import HistoryChecks
from history_model import MAYBE, NO, THINNED, YES, Step, Training, number_of
from hugging import safetensors
from mounting import CKPTFS, run
from save_worker import perform
from savers import KINDS, exported, is_note, is_of_state, synchronize
from viewing import torch_file

RULES = (  # recipes of docs/rotation.md; those with a metric or with weights are for a Trainer's steps
    (4, False, {"keep_last": 1}), (3, False, {"keep_last": 2}), (1, False, {"keep_last": 3}),
    (2, False, {"keep_last": 1, "keep_every": 40}), (3, True, {"keep_last": 1, "keep_best": "eval_loss:min:1"}),
    (2, True, {"keep_last": 1, "keep_best": "eval_loss:min:2"}), (1, False, {"keep_for": "1s"}),
    (3, True, {"keep_full": 1, "thin_to": "bf16", "keep_last": 3}), (2, True, {"keep_full": 2, "keep_last": 4}),
    (2, True, {"keep_full": 1, "keep_last": 2, "keep_best": "eval_loss:min:1"}), (1, True, {"keep_full": 1}),
    (1, False, {"max_bytes": "100K"}), (1, False, {}),
)  # fmt: skip


class History(HistoryChecks):
    def __init__(self, mount, pool, seed, folder):
        self.mount, self.pool, self.seed = mount, pool, seed
        self.dice = random.Random(seed)
        self.series = pathlib.Path(folder)
        self.path = mount.path / folder
        self.told, self.now = [], 0
        self.steps, self.trainings, self.latest, self.was_latest = [], [], "", ""
        self.prefix = self.dice.choices(list(KINDS), (6, 2, 1))[0]
        self.path.mkdir(parents=True)
        self.rules = self.draw_rules()
        for rule, value in self.rules.items():
            mount.control(self.series, rule, str(value))
        self.say(f"{self.prefix}*: {self.rules}")
        self.left = self.dice.randrange(3, 9)
        self.start_training()

    def draw_rules(self):
        fitting = [one for one in RULES if self.prefix == "checkpoint-" or not one[1]]
        rules = dict(self.dice.choices(fitting, [one[0] for one in fitting])[0][2])
        for chance, rule, value in ((0.5, "set_aside", 1), (0.2, "keep_partial", "1s"), (0.1, "keep_partial", "2d"),
                                    (0.05, "seal_after", "1s")):
            if self.dice.random() < chance:
                rules[rule] = value
        return rules

    def say(self, what):
        self.told.append(what)

    def note(self, what):
        self.told[-1] += f"; {what}"

    # --- trainings

    def start_training(self):
        numbers = sorted(max(step.numbers) for step in self.steps if not step.gone) or [0]
        any_of_them = self.dice.choice(numbers)
        number = self.dice.choice((numbers[-1], any_of_them, any_of_them, 0, numbers[0] // 2))
        self.trainings.append(Training(self.pool.take(), number, 10))
        self.say(f"a training starts from {number}")

    def living(self, pending=None):
        return [one for one in self.trainings if pending is None or bool(one.pending) == pending]

    def save_operations(self, training):
        loss = self.dice.randrange(1000) / 100
        folder = self.path / f"{self.prefix}{training.next}"
        self.say(f"{self.who(training)} saves {training.next}, loss {loss}")
        operations = [("mkdir", folder)]
        training.names = set()
        for name, data in KINDS[self.prefix](self.dice, training.next, loss):
            training.names.add(name)
            if "/" in name:
                operations.append(("mkdir", (folder / name).parent))
            how = "replace" if name.endswith(".safetensors") and self.dice.random() < 0.5 else "write"
            operations.append((how, folder / name, data))
        return folder, operations, loss

    def who(self, training):
        return f"training {training.worker.pid}"

    def step_at(self, folder):
        """The model's step of that folder, which may be new. None: there is no such folder."""
        try:
            inode = os.stat(folder).st_ino
        except FileNotFoundError:
            return None
        found = next((step for step in self.steps if step.inode == inode and not step.gone), None)
        if not found:
            found = Step(inode, folder.name)
            self.steps.append(found)
        return found

    def begin_save(self, training, cut):
        """All of it; or, with `cut`, up to a random moment."""
        folder, operations, loss = self.save_operations(training)
        training.next += training.stride
        rest = []
        if cut:
            at = self.dice.randrange(1, len(operations))
            operations, rest = operations[:at], operations[at:]
            what, path, *data = rest[0]
            if what in ("write", "replace") and self.dice.random() < 0.4:
                operations.append(("half", path, *data))
                rest[0] = ("rest", path, *data)
            self.note(f"up to {operations[-1][:2]}")
        self.record(training, folder, operations, rest, training.worker.do(operations), loss)

    def record(self, training, folder, operations, rest, outcome, loss):
        done, error = outcome
        if error:
            self.note(f"{os.strerror(error)} after {done} of {len(operations)}")
        step = self.step_at(folder)
        if not step:
            return
        was = step.whole
        self.apply(training, step, folder, operations, done, error)
        if error and done == 0:
            return
        step.touched = self.now
        written = [one for one in operations[: done + bool(error)] if one[0] != "mkdir" and not is_note(one[1].name)]
        mixes = was != NO and (step.writer is training or not written or error)
        step.odd = step.odd or was != NO or bool(step.writer and step.writer is not training)
        training.wrote.add(step)
        state = any(is_of_state(one[1].name) for one in written)
        known = was == step.was_whole == YES and step.full and training not in step.writers
        step.layouts.add(frozenset(training.names))
        # What a save of other shards left over hides that a later one died half-way: a known gap of the mount.
        alike = len(step.layouts) == 1 and bool(self.rules)
        step.mixed = step.mixed or bool(known and alike and state and rest and not error)
        step.writers.add(training)
        was_done = error and not rest and done + 1 == len(operations)  # perhaps, as the daemon died over the last one
        step.whole = MAYBE if mixes or was_done else NO
        if was_done and step.loss is None:
            step.loss = loss  # its trainer_state.json came last
        step.alone = False
        step.writer = training
        if error:
            training.pending = None
        elif rest:
            training.pending = (step, folder, rest, loss)
        else:
            self.end_save(training, step, loss)

    def apply(self, training, step, folder, operations, done, error):
        for at, (what, path, *data) in enumerate(operations[: done + bool(error)]):
            name = str(path.relative_to(folder))
            if what not in ("mkdir", "rest"):  # what others emptied meanwhile is theirs
                step.authors[name] = training
            if what == "half" or at == done:
                step.files.pop(name, None)
            elif what != "mkdir":
                step.files[name] = data[0]

    def end_save(self, training, step, loss):
        training.pending = None
        step.whole, step.saved, step.loss, step.full = YES, self.now, loss, True
        step.mixed = step.of_turns = False
        step.files = {name: data for name, data in step.files.items() if name in training.names}
        training.saves = [one for one in training.saves if one is not step] + [step]
        if self.prefix == "global_step" and self.dice.random() < 0.7:
            self.name_latest(step, training.worker)

    def save(self):
        for training in self.dice.sample(self.living(pending=False), 1):
            self.begin_save(training, cut=False)

    def save_again(self):
        for training in self.dice.sample(self.living(pending=False), 1):
            training.next = max(training.next - training.stride, training.stride)
            self.begin_save(training, cut=self.dice.random() < 0.3)

    def begin(self):
        for training in self.dice.sample(self.living(pending=False), 1):
            self.begin_save(training, cut=True)

    def go_on(self):
        training = self.dice.choice(self.living(pending=True))
        step, folder, operations, loss = training.pending
        self.say(f"{self.who(training)} goes on with {step.name}")
        outcome = training.worker.do(operations)
        done, error = outcome
        if error or step.gone or step.writer is not training:
            self.note(f"which others wrote to, or which went: {outcome}")
            training.pending = None
            step.odd, step.touched = True, self.now
            step.loss = loss if step.loss is None and not error else step.loss  # its trainer_state.json came last
            self.apply(training, step, folder, operations, done, error)
            looked_at = [name for name in step.files if is_of_state(name) or name == ".metadata"]
            authors = {step.authors.get(name) for name in looked_at} - {None}
            step.of_turns = bool(self.rules) and len(authors) > 1
            step.whole = NO if error or step.of_turns else MAYBE
            self.step_at(folder)
            return
        self.apply(training, step, folder, operations, done, error)
        step.touched = self.now
        self.end_save(training, step, loss)

    def die(self):
        training = self.dice.choice(self.trainings)
        if not training.pending and self.dice.random() < 0.7:
            self.begin_save(training, cut=True)
        self.say(f"{self.who(training)} is killed")
        training.worker.kill()
        self.trainings.remove(training)

    def restart(self):
        if self.trainings and self.dice.random() < 0.7:
            self.die()
        self.start_training()
        self.save()

    def kill_daemon(self):
        """In the midst of a save."""
        for training in self.dice.sample(self.living(pending=False), 1):
            folder, operations, loss = self.save_operations(training)
            self.note("the daemon is killed")
            training.next += training.stride
            training.worker.tell(operations)
            time.sleep(self.dice.random() * 0.01)
            self.mount.kill()
            outcome = training.worker.answer()
            self.mount.start()
            self.record(training, folder, operations, [], outcome, loss)

    # --- others

    def by(self, function):
        """By a command, or by a process that lives for long, as a notebook does."""
        with contextlib.suppress(FileNotFoundError):  # a rule took the step this moment
            try:
                if self.dice.random() < 0.5:
                    in_child(function)
                else:
                    function()
            except PermissionError:
                self.note("refused")

    def any_step(self, whole=True):
        """One that is there; old ones rather than the newest."""
        found = [step for step in self.steps if not step.gone and (step.whole == YES or not whole)]
        return min(self.dice.sample(found, min(2, len(found))), key=lambda step: step.saved)

    def touching(self, step, what):
        step.touched = self.now
        self.say(f"{what} {step.name}")
        return self.path / step.name

    def evaluate(self):
        step = self.any_step()
        folder = self.touching(step, "an evaluation writes to")
        name = self.dice.choice(("eval_results.json", "all_results.json", "README.md"))
        self.by(lambda: write(folder / name, b'{"eval_loss": 0.1}'))

    def convert(self):
        folder = self.touching(self.any_step(), "a converter writes to")
        name = self.dice.choice(("pytorch_model.bin", "model.gguf", "consolidated.00.pth", "model.fp16.safetensors"))
        data = safetensors({"x": ("F32", [1], b"1234")}) if name.endswith("s") else torch_file(b"converted")
        self.by(lambda: write(folder / name, data))

    def cache(self):
        folder = self.touching(self.any_step(), "a hub client keeps its cache in") / ".cache/huggingface"

        def fill():
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / "lock", b"")

        self.by(fill)

    def touch(self):
        seconds = self.dice.choice((0, 0, -86400, 86400, -3600 * 24 * 365))
        step = self.any_step(whole=False)
        step.mixed = False  # the kernel's times of its files told that
        folder = self.touching(step, f"a date, {seconds} s from now, for")

        def date():
            for path in (folder, *folder.iterdir()):
                os.utime(path, (time.time() + seconds,) * 2)

        self.by(date)

    def free_name(self):
        """A number that no step had."""
        used = set().union(*(step.numbers for step in self.steps)) | {one.next for one in self.trainings}
        highest = max(used, default=0)
        free = [number for number in range(1, highest + 20) if number % 10 and number not in used]
        return f"{self.prefix}{self.dice.choice(free)}"

    def export(self):
        """A Trainer's own process would not: it saves a model under another name, or is killed in a save."""
        folder = self.path / self.free_name()
        self.say(f"{folder.name} is saved as a model alone")
        trainings = self.living(pending=False) if self.prefix != "checkpoint-" else []
        operations = [("mkdir", folder)] + [("write", folder / name, data) for name, data in exported()]
        training = self.dice.choice(trainings) if trainings and self.dice.random() < 0.5 else None
        if training:
            training.worker.do(operations)
        else:
            in_child(lambda: [perform({}, *one) for one in operations] and None)
        made = self.step_at(folder)
        true(made, f"{folder.name}: it is a model that was meant so, and has another name")
        made.alone, made.whole, made.odd, made.touched = True, MAYBE, True, self.now
        if training:
            training.wrote.add(made)

    def copy(self):
        step = self.any_step()
        source, name = self.path / step.name, self.free_name()
        how = self.dice.choice(("cp -r", "cp -a", "rsync"))
        self.say(f"{how} {source.name} to {name}")
        target = self.path / name
        if how == "rsync":
            copied = in_child(lambda: synchronize(source, target))
        else:
            copied = run(*how.split(), source, target, check=False).returncode == 0
        made = self.step_at(target)
        if not made:
            return
        made.files, made.full, made.loss = dict(step.files), step.full, step.loss
        # What is dated less than a minute ago is as old as it is dated (docs/rotation.md).
        made.whole, made.saved, made.touched = (YES if copied else MAYBE), step.saved, self.now
        made.odd = step.odd or not copied
        if not step.full or (target / THINNED).exists():
            made.full = made.was_full = False

    def move(self):
        step = self.any_step()
        name = self.free_name()
        self.touching(step, f"mv to {name}:")
        with contextlib.suppress(FileNotFoundError):
            try:
                os.rename(self.path / step.name, self.path / name)
            except PermissionError:
                return self.note("refused")
            step.name = name
            step.numbers.add(number_of(name))
        return None

    def remove(self):
        step = self.any_step(whole=False)
        if any(one.pending and one.pending[0] is step for one in self.trainings):
            return
        self.say(f"rm {step.name}")
        self.remove_step(step)

    def remove_step(self, step):
        step.pinned = False
        with contextlib.suppress(OSError):
            self.mount.control(self.series / step.name, "pin", "0")
        if self.dice.random() < 0.5:
            run(CKPTFS, "rm", self.path / step.name, check=False)
        else:
            shutil.rmtree(self.path / step.name, ignore_errors=True)
        step.gone = "by hand"

    def copy_back(self):
        step = self.any_step()
        if any(one.pending and one.pending[0] is step for one in self.trainings):
            return
        backup = self.mount.path / f"backup-{self.series.name}"
        shutil.rmtree(backup, ignore_errors=True)
        backup.mkdir()
        copied = run("cp", "-a", self.path / step.name, backup, check=False).returncode == 0
        if not copied:
            return
        self.say(f"{step.name} is removed, and comes back from a copy")
        self.remove_step(step)
        made_before = len(self.steps)
        run("cp", "-a", backup / step.name, self.path, check=False)
        made = self.step_at(self.path / step.name)
        if made and len(self.steps) > made_before:
            made.files, made.loss, made.whole, made.odd = dict(step.files), step.loss, YES, step.odd
            made.saved, made.touched = step.saved, self.now
            made.full = made.was_full = not (backup / step.name / THINNED).exists()

    def pin(self):
        step = self.any_step(whole=False)
        pinned = not step.pinned
        self.say(f"pin={int(pinned)} {step.name}")
        with contextlib.suppress(OSError):
            self.mount.control(self.series / step.name, "pin", str(int(pinned)))
            step.pinned = pinned

    def seal(self):
        step = self.any_step(whole=False)
        self.say(f"seal {step.name}")
        with contextlib.suppress(OSError):
            self.mount.seal(self.series / step.name)
            if step.alone:  # no training resumes from it
                step.full = step.was_full = False
            for training in self.trainings:
                # It had a file open under a daemon that was killed, so a copy is sealed (meta/steps/seal.h), and it writes on
                # to the file that was there before.
                if training.pending and training.pending[0] is step:
                    training.pending = None
            step.odd, step.alone = step.odd or step.whole != YES, False
            step.mixed = step.of_turns = False
            step.whole = step.whole if step.whole == YES else MAYBE  # so the user says

    def thin(self):
        step = self.any_step()
        if not self.rules and any(step is training.newest() for training in self.trainings):
            return  # without a rule nobody records who saves (docs/rotation.md)
        self.say(f"thin {step.name}")
        done = run(CKPTFS, "thin", "--to", self.dice.choice(("same", "bf16")), self.path / step.name, check=False)
        self.note(f"status {done.returncode}")

    def name_latest(self, step=None, worker=None):
        step = step or self.any_step()
        self.say(f"latest: {step.name}")
        self.latest = step.name
        if worker:
            worker.do([("write", self.path / "latest", step.name.encode())])
        else:
            write(self.path / "latest", step.name.encode())

    TRAINING = ((10, save), (3, save_again), (4, begin), (6, go_on), (3, die), (5, restart), (0.6, kill_daemon))
    OTHERS = (
        (4, evaluate), (2, convert), (1, cache), (2, touch), (3, copy), (2, export), (2, move), (1, remove),
        (1, copy_back), (1.5, pin), (1, seal), (1.5, thin), (1, name_latest),
    )  # fmt: skip

    def act(self):
        if self.left == 0:
            return
        self.left -= 1
        self.now += 1
        if not any(step.whole == YES and not step.gone for step in self.steps) or self.dice.random() < 0.6:
            acts = [one for one in self.TRAINING if self.is_possible(one[1])]
        else:
            acts = self.OTHERS
        self.dice.choices([act for _, act in acts], [weight for weight, _ in acts])[0](self)

    def is_possible(self, act):
        wanted = {"restart": True, "die": self.trainings, "go_on": self.living(pending=True)}
        return wanted.get(act.__name__, self.living(pending=False))
