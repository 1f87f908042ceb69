"""Workers that run on a mount while its disk is recorded, and what must be there at any moment of the recording.

    replay_workers.py KIND ROOT MARK SEED ROUNDS

In addition to the scribe and the trainer of crash_workers.py there are: a copier (steps that Python copies), a rotator
(a series with a rule), ranks (steps saved past the mount), twins (equal files, whose blocks get shared), killed
(steps that are set aside) and a thinner (steps of which only the weights stay). Each line of a worker's journal is a
mark in the disk's log. A worker ends after its rounds, with status 1 at any error.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import struct
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import saving
from checking import equal, fork_off, opened, read, same_bytes, true, wait_for_end, write, write_all
from crash_model import Content, Files, Log, Steps, noise
from crash_workers import Journal, Scribe, Trainer
from hugging import parse, safetensors
from mounting import CKPTFS, KIB, Failure, run
from training import names_below
from viewing import torch_file

PIECE = 64 * KIB
KEPT = 2  # keep_last of the rotator's series


def sync_all(folder):
    """fsyncs each file and folder below the folder, and the folder that has its name."""
    for where, _, names in os.walk(folder):
        for path in [where, *(os.path.join(where, name) for name in names)]:
            with opened(path, os.O_RDONLY) as file:
                os.fsync(file)
    with opened(pathlib.Path(folder).parent, os.O_RDONLY) as parent:
        os.fsync(parent)


def content_of(parts):
    return b"".join(noise(length, seed) for seed, length in parts)


class Worker:
    def __init__(self, root, journal, seed):
        self.root = pathlib.Path(root)
        self.journal = journal
        self.dice = random.Random(seed)
        self.made = 0
        self.root.mkdir(exist_ok=True)

    def seed(self):
        return self.dice.randrange(1 << 40)


class Copier(Worker):
    """Makes steps of steps: by shutil.copytree; or with some changed bytes, piece by piece; or as safetensors does,
    under another name, with the full length first, and open for reading, too."""

    NAMES = ("model.safetensors", "optimizer.pt", "rng_state.pth")

    def __init__(self, root, journal, seed):
        super().__init__(root, journal, seed)
        self.steps = {}  # tag -> name -> parts

    def act(self):
        self.made += 1
        tag = f"checkpoint-{self.made}"
        source = self.dice.choice(sorted(self.steps)) if self.steps else None
        if source is None:
            files = {name: self.parts() for name in self.NAMES}
            self.journal.logged(lambda: self.write(tag, files), "copy", tag=tag, files=files)
        elif self.dice.random() < 0.5:
            files = self.steps[source]
            copy = lambda: shutil.copytree(self.root / source, self.root / tag)
            self.journal.logged(copy, "copy", tag=tag, files=files)
        else:
            files = {name: self.other(parts) for name, parts in self.steps[source].items()}
            how = self.dice.choice((self.write, self.write_and_rename))
            self.journal.logged(lambda: how(tag, files, source), "copy", tag=tag, files=files)
        self.steps[tag] = files
        if source is None or self.dice.random() < 0.5:
            self.journal.logged(lambda: sync_all(self.root / tag), "fsync", tag=tag)
        if len(self.steps) > 4:
            self.remove(self.dice.choice(sorted(self.steps)))

    def parts(self):
        count = self.dice.randrange(3, 7)
        return [[self.seed(), PIECE] for _ in range(count)] + [[self.seed(), self.dice.randrange(1, PIECE)]]

    def other(self, parts):
        return [[self.seed(), length] if self.dice.random() < 0.3 else [seed, length] for seed, length in parts]

    def write(self, tag, files, source=None):
        (self.root / tag).mkdir()
        for name, parts in files.items():
            # the open reader from which a copy is predicted
            reader = os.open(self.root / source / name, os.O_RDONLY) if source else None
            with opened(self.root / tag / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                for seed, length in parts:
                    write_all(file, noise(length, seed))
            if reader is not None:
                os.close(reader)

    def write_and_rename(self, tag, files, _source):
        (self.root / tag).mkdir()
        for name, parts in files.items():
            with opened(self.root / tag / f"{name}.tmp", os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
                os.ftruncate(file, sum(length for _, length in parts))
                for seed, length in parts:
                    write_all(file, noise(length, seed))
            os.rename(self.root / tag / f"{name}.tmp", self.root / tag / name)

    def remove(self, tag):
        del self.steps[tag]
        self.journal.logged(lambda: shutil.rmtree(self.root / tag), "remove", tag=tag)


class Copies:
    """What the copier may leave. Synced files are there. In others each sector has what was written, or zeros."""

    def __init__(self, operations, power):
        self.power = power
        self.files, self.certain, self.gone = {}, set(), set()
        for operation in operations:
            getattr(self, operation["op"])(operation, operation["done"] is not None)

    def copy(self, operation, done):
        names = [(f"{name}{end}", parts) for name, parts in operation["files"].items() for end in ("", ".tmp")]
        for name, parts in names:
            content = Content()
            content.change(b"")
            content.change(content_of(parts))
            self.files[f"{operation['tag']}/{name}"] = content
        if not self.power:
            self.fsync(operation, done)

    def fsync(self, operation, done):
        for path in self.of(operation) if done else ():
            self.files[path].settle()
            (self.gone if path.endswith(".tmp") else self.certain).add(path)

    def remove(self, operation, done):
        for path in self.of(operation):
            self.certain.discard(path)
            if done and not self.power:
                self.gone.add(path)

    def of(self, operation):
        return [path for path in self.files if path.startswith(f"{operation['tag']}/")]

    def check(self, root):
        there = set(names_below(root))
        true(self.certain <= there, f"{root}: synced, and not there: {sorted(self.certain - there)}")
        unknown = (there - set(self.files)) | (there & self.gone)
        true(not unknown, f"{root}: nobody made, or somebody removed: {sorted(unknown)}")
        for path in sorted(there):
            self.files[path].check(read(f"{root}/{path}"), f"{root}/{path}")


class Rotator(Worker):
    """Writes a Trainer's steps into a series with a rule that keeps the newest. It syncs the first ones only."""

    def act(self):
        if self.made == 0:
            os.setxattr(self.root, "user.ckptfs.keep_last", str(KEPT).encode())
        self.made += 1
        number, seed = self.made, self.seed()
        self.journal.logged(lambda: self.write(number, seed), "step", number=number, seed=seed)
        if number <= KEPT:
            self.journal.logged(lambda: sync_all(self.root / f"checkpoint-{number}"), "fsync", number=number)

    def write(self, number, seed):
        folder = self.root / f"checkpoint-{number}"
        folder.mkdir()
        for name, data in trainers_step(number, seed).items():
            write(folder / name, data)


def trainers_step(number, seed):
    weights = noise(96 * KIB, seed)
    return {
        "config.json": b"{}",
        "model.safetensors": safetensors({"w": ("F32", [len(weights) // 4], weights)}),
        "trainer_state.json": json.dumps({"global_step": number, "log_history": []}).encode(),
    }


class Rotated:
    """Once KEPT steps were synced, as many complete ones are there, and none is newer than the writer's."""

    def __init__(self, operations, power):
        self.power = power
        self.seeds = {one["number"]: one["seed"] for one in operations if one["op"] == "step"}
        kind = "fsync" if power else "step"
        self.synced = [one["number"] for one in operations if one["op"] == kind and one["done"] is not None]

    def check(self, root):
        there = {int(name.split("-")[1]) for name in os.listdir(root) if name.startswith("checkpoint-")}
        true(there <= set(self.seeds), f"{root}: steps that nobody wrote: {there - set(self.seeds)}")
        whole = {number for number in there if self.is_whole(root, number)}
        wanted = min(KEPT, len(self.synced))
        true(
            len(whole) >= wanted,
            f"{root}: of the steps {sorted(there)} only {sorted(whole)} are whole; durable were "
            f"{sorted(self.synced)}, and the rule keeps {KEPT}",
        )

    def is_whole(self, root, number):
        wanted = trainers_step(number, self.seeds[number])
        folder = f"{root}/checkpoint-{number}"
        try:
            found = {name: read(f"{folder}/{name}") for name in os.listdir(folder)}
        except OSError:
            found = {}
        if number in self.synced and found:  # it may be removed in pieces, but is never changed
            for name, data in found.items():
                same_bytes(data, wanted.get(name), f"{folder}/{name}")
        return found == wanted


class Killed(Worker):
    """Processes are killed in their saves, and what they left is set aside before a listing is answered."""

    def act(self):
        if self.made == 0:
            os.setxattr(self.root, "user.ckptfs.set_aside", b"1")
        self.made += 1
        number = self.made
        self.journal.logged(lambda: self.save(number), "aside", number=number)

    def save(self, number):
        reader, told = os.pipe()

        def act():
            os.write(told, str(os.getpid()).encode())
            folder = self.root / f"checkpoint-{number}"
            folder.mkdir()
            for name in ("training_args.bin", "config.json", "optimizer.pt"):
                write(folder / name, noise(KIB, number))
            os.kill(os.getpid(), signal.SIGKILL)

        fork_off(act)
        os.close(told)
        with os.fdopen(reader) as said:
            wait_for_end(int(said.read()))
        true(f"incomplete-checkpoint-{number}" in os.listdir(self.root), f"step {number} is set aside")


class Aside:
    """What was shown as set aside is so, and no half step is found under its name, also if its files are lost."""

    def __init__(self, operations, _power):
        self.done = {f"incomplete-checkpoint-{one['number']}" for one in operations if one["done"] is not None}

    def check(self, root):
        there = set(os.listdir(root))
        true(self.done <= there, f"{root}: set aside, and not there: {sorted(self.done - there)}")
        named = sorted(name for name in there if not name.startswith("incomplete-"))
        true(not named or not self.done, f"{root}: not set aside: {named}")


class Ranks(Worker):
    """Saves steps past the mount, by step_save.c. Marks each state that the program reports."""

    BYTES = 60_001

    def act(self):
        self.made += 1
        tag, seed = f"step_{self.made}", self.dice.randrange(1, 1000)
        self.journal.logged(lambda: self.save(tag, seed), "commit", tag=tag, seed=seed)

    def save(self, tag, seed):
        process = saving.begin(self.root, tag, "only", size=self.BYTES, seed=seed)
        for line in process.stdout:
            if line.strip() == "durable":
                self.journal.logged(lambda: None, "durable", tag=tag)
        if process.wait() != 0:
            raise Failure(f"step_save: {process.stderr.read()}")


class Saved:
    """A committed step is complete and sealed. A durable one's files are there under some name. Others may be
    absent."""

    def __init__(self, operations, _power):
        self.commits = [one for one in operations if one["op"] == "commit"]
        self.durable = {one["tag"] for one in operations if one["op"] == "durable"}

    def check(self, root):
        for one in self.commits:
            step = f"{root}/{one['tag']}"
            if one["done"] is not None or os.path.exists(f"{step}/ckptfs.rank00.json"):
                saving.check(step, size=Ranks.BYTES, seed=one["seed"])
            elif one["tag"] in self.durable:
                self.check_partial(f"{root}/partial-only-{one['tag']}/rank00.safetensors", one["seed"])
        tags = {name.removeprefix("partial-only-") for name in os.listdir(root)}
        unknown = tags - {one["tag"] for one in self.commits}
        true(not unknown, f"{root}: steps that nobody saved: {unknown}")

    def check_partial(self, path, seed):
        same_bytes(read(path)[-Ranks.BYTES :], saving.content(0, Ranks.BYTES, seed), path)

    def check_seals(self, root):
        for one in self.commits:
            if one["done"] is not None:
                state = os.getxattr(f"{root}/{one['tag']}", "user.ckptfs.state")
                true(state == b"sealed", f"{root}/{one['tag']} was sealed and is {state}")


class Twins(Scribe):
    """Makes equal files and syncs them, so that the caretaker shares their blocks. Now and then it writes to one of
    two."""

    def __init__(self, root, journal, seed):
        super().__init__(root, journal, seed)
        self.root.mkdir(exist_ok=True)

    def act(self):
        if len(self.sizes) > 12:
            self.unlink(self.dice.choice(sorted(self.sizes)))
        seed, length = self.dice.randrange(1 << 40), self.dice.randrange(100, 500) * KIB
        for _ in range(2):
            self.fsync(self.make(seed, length))
        if self.dice.random() < 0.5:
            name = self.dice.choice(sorted(self.sizes))
            self.pwrite(name)
            self.fsync(name)
        for name in list(self.held):  # a file that is open for writing is not shared
            os.close(self.held.pop(name))


class Thinner(Worker):
    """Writes a Trainer's steps, syncs each, and has the step before it thinned, alternately to bf16 and as it is."""

    def act(self):
        self.made += 1
        number = self.made
        step = self.root / f"checkpoint-{number}"
        self.journal.logged(lambda: self.write(step, number), "step", number=number)
        self.journal.logged(lambda: sync_all(step), "fsync", number=number)
        if number > 1:
            self.journal.logged(lambda: run(CKPTFS, "thin", "--to", thin_type(number - 1), self.root / f"checkpoint-{number - 1}"),
                                "thin", number=number - 1)

    def write(self, step, number):
        step.mkdir()
        for name, data in full_step(number).items():
            write(step / name, data)


def thin_type(number):
    return "bf16" if number % 2 else "same"


def full_step(number):
    """The files of a step. Its weights are exact in bf16."""
    weights = struct.pack("<30000f", *((index * 7 + number) % 251 for index in range(30000)))
    return {
        "config.json": b"{}",
        "model.safetensors": safetensors({"w": ("F32", [30000], weights)}),
        "optimizer.pt": torch_file(noise(64 * KIB, number)),
        "trainer_state.json": json.dumps({"global_step": number, "log_history": []}).encode(),
    }


class Thinned:
    """A step that was synced is full, or thin if that had begun. It is thin if that had returned."""

    def __init__(self, operations, power):
        kind = "fsync" if power else "step"
        self.synced = {one["number"] for one in operations if one["op"] == kind and one["done"] is not None}
        thin = {one["number"]: one["done"] is not None for one in operations if one["op"] == "thin"}
        self.begun, self.done = set(thin), {number for number, done in thin.items() if done}

    def check(self, root):
        for number in self.synced:
            step = pathlib.Path(root) / f"checkpoint-{number}"
            found = {path.name: read(path) for path in step.iterdir()}
            wanted = full_step(number)
            if found == wanted:
                true(number not in self.done, f"{step}: it was thinned, and is full")
                continue
            true(number in self.begun, f"{step}: nobody thinned it, and it has {sorted(found)}")
            manifest = json.loads(found.pop("ckptfs-thinned.json", b"{}"))
            equal([one["name"] for one in manifest.get("went", [])],
                  ["model.safetensors", "optimizer.pt"] if thin_type(number) == "bf16" else ["optimizer.pt"],
                  f"{step}: what went, of {sorted(found)}")
            weights = found.pop("model.safetensors")
            if thin_type(number) == "bf16":
                halves = parse(wanted["model.safetensors"])["w"][2]
                halves = b"".join(halves[at + 2 : at + 4] for at in range(0, len(halves), 4))
                equal(parse(weights), {"w": ("BF16", [30000], halves)}, f"{step}: the weights")
            else:
                same_bytes(weights, wanted["model.safetensors"], f"{step}: the weights")
            equal(found, {name: wanted[name] for name in ("config.json", "trainer_state.json")}, f"{step}: other files")
            equal(os.getxattr(step, "user.ckptfs.state"), b"weights", f"{step}: state")


class RecordedTrainer(Trainer):
    def __init__(self, root, journal, seed):
        super().__init__(root, journal, seed, plain=False)


class RecordedScribe(Scribe):
    def __init__(self, root, journal, seed):
        super().__init__(root, journal, seed)
        self.root.mkdir(exist_ok=True)


# name: (the worker, its folder, the class that checks its results)
KINDS = {
    "scribe": (RecordedScribe, "work", Files),
    "trainer": (RecordedTrainer, "", Steps),
    "copier": (Copier, "copies", Copies),
    "rotator": (Rotator, "runs", Rotated),
    "ranks": (Ranks, "ranks", Saved),
    "twins": (Twins, "twins", Files),
    "killed": (Killed, "killed", Aside),
    "thinner": (Thinner, "thin", Thinned),
}


def judge(root, lines):
    """Compares what is on the mount with what the marks before the crash promise."""
    logs = {}
    for line in lines:
        record = json.loads(line)
        logs.setdefault(record["who"], Log()).take(record)
    mount = logs.pop("mount").operations[0]
    power = mount["done"] is None  # after an unmount that returned, everything is on the disk
    problems = []
    for who, log in logs.items():
        _, folder, model = KINDS[who]
        place = os.path.join(root, folder) if folder else str(root)
        try:
            check_one(model(log.operations, power), place)
        except (Failure, OSError) as problem:
            problems.append(f"{who}: {problem}")
    if problems:
        raise Failure("; ".join(problems))


def check_one(model, place):
    if not os.path.isdir(place):
        os.makedirs(place)  # nobody synced its name
    model.check(place)
    if hasattr(model, "check_seals"):
        model.check_seals(place)


def main():
    kind, root, mark, seed, rounds = sys.argv[1:6]
    worker_type, folder, _ = KINDS[kind]
    worker = worker_type(pathlib.Path(root) / folder, Journal(mark, kind), int(seed))
    for _ in range(int(rounds)):
        worker.act()


if __name__ == "__main__":
    main()
