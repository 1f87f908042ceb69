"""Programs that run while the daemon is killed or the power cut: a scribe (plain files), a trainer (saves).

    crash_workers.py scribe|trainer ROOT LOG SEED [plain]

Each operation is logged in LOG before it begins and after it has returned, so that crash_model.py knows what must be
there afterwards. The log is outside of the mount. A worker ends at its first error, which is the last line of its log.
With `plain`, ROOT is plain XFS, and a save is a reflink copy that a rename makes visible as a whole.
"""

import json
import os
import pathlib
import random
import shutil
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

from agent import Agent
from checking import noise, opened, pwrite_all
from mounting import KIB, run
from training import name_in_step, swap_names

LONGEST = 600 * KIB


class Journal:
    """The log of one worker. If several workers write to one file, each line has the worker's name as `who`."""

    def __init__(self, path, who=""):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.number = 0
        self.who = who

    def line(self, **fields):
        os.write(self.file, json.dumps({"t": time.monotonic(), "who": self.who, **fields}).encode() + b"\n")

    def logged(self, action, op, **fields):
        self.number += 1
        number = self.number
        self.line(n=number, phase="begin", op=op, **fields)
        action()
        self.line(n=number, phase="end")


class Scribe:
    def __init__(self, root, journal, seed):
        self.root = pathlib.Path(root)
        self.journal = journal
        self.dice = random.Random(seed)
        self.sizes = {}  # name -> size
        self.held = {}  # name -> descriptor
        self.made = 0

    def act(self):
        kinds = (
            ["pwrite"] * 5 + ["fsync"] * 3 + ["truncate", "rename", "unlink", "replace", "create", "create", "fsyncdir"]
        )
        kind = self.dice.choice(kinds)
        if kind in ("create", "replace", "fsyncdir") or not self.sizes:
            getattr(self, kind if kind in ("replace", "fsyncdir") else "create")()
        else:
            getattr(self, kind)(self.dice.choice(sorted(self.sizes)))

    def descriptor(self, name):
        """Returns a descriptor of the file, open for writing and often kept open: such writes continue when the
        daemon is dead."""
        if name in self.held:
            return self.held[name]
        if len(self.held) > 5:
            os.close(self.held.pop(next(iter(self.held))))
        self.held[name] = os.open(self.root / name, os.O_RDWR)
        return self.held[name]

    def create(self, name=None):
        if len(self.sizes) > 30:
            self.unlink(self.dice.choice(sorted(self.sizes)))
        seed, length = self.dice.randrange(1 << 40), self.dice.choice((0, 100, 4096, 50000, 200000))
        return self.make(seed, length, name)

    def make(self, seed, length, name=None):
        self.made += 1
        name = name or f"file{self.made}"

        def write():
            with opened(self.root / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                pwrite_all(file, noise(length, seed), 0)

        self.journal.logged(write, "create", name=name, seed=seed, length=length)
        self.sizes[name] = length
        return name

    def pwrite(self, name):
        offset = self.dice.randrange(self.sizes[name] + 1)
        length, seed = self.dice.choice((1, 700, 4096, 30000, 150000)), self.dice.randrange(1 << 40)
        length = min(length, LONGEST - offset)
        if length > 0:
            self.journal.logged(
                lambda: pwrite_all(self.descriptor(name), noise(length, seed), offset),
                "pwrite",
                name=name,
                offset=offset,
                seed=seed,
                length=length,
            )
            self.sizes[name] = max(self.sizes[name], offset + length)

    def truncate(self, name):
        length = self.dice.randrange(self.sizes[name] + 10000) % LONGEST
        self.journal.logged(lambda: os.ftruncate(self.descriptor(name), length), "truncate", name=name, length=length)
        self.sizes[name] = length

    def fsync(self, name):
        self.journal.logged(lambda: os.fsync(self.descriptor(name)), "fsync", name=name)

    def fsyncdir(self):
        def sync():
            with opened(self.root, os.O_RDONLY) as folder:
                os.fsync(folder)

        self.journal.logged(sync, "fsyncdir")

    def rename(self, name, to=None):
        if to is None:
            self.made += 1
            to = f"renamed{self.made}"
        elif to in self.held:
            os.close(self.held.pop(to))
        self.journal.logged(lambda: os.rename(self.root / name, self.root / to), "rename", name=name, to=to)
        self.sizes[to] = self.sizes.pop(name)
        if name in self.held:
            self.held[to] = self.held.pop(name)

    def unlink(self, name):
        if name in self.held:
            os.close(self.held.pop(name))
        self.journal.logged(lambda: os.unlink(self.root / name), "unlink", name=name)
        del self.sizes[name]

    def replace(self):
        """Writes and syncs a new file, renames it over an old one, and syncs the folder, as careful programs save."""
        name = self.create()
        self.fsync(name)
        others = sorted(set(self.sizes) - {name})
        if others:
            self.rename(name, self.dice.choice(others))
            self.fsyncdir()


class Trainer:
    """Trains: rewrites some swap files by libaio and saves. Now and then it seals a step, or removes an old one."""

    def __init__(self, root, journal, seed, plain):
        self.root = pathlib.Path(root)
        self.journal = journal
        self.dice = random.Random(seed)
        self.plain = plain
        self.state = {}  # name -> [seed, length]
        self.steps = []
        self.saves = 0
        self.seed = seed
        self.agent = Agent()

    def act(self):
        self.train()
        self.save()
        if self.dice.random() < 0.3 and not self.plain:
            tag = self.dice.choice(self.steps)
            self.journal.logged(lambda: self.seal(tag), "seal", tag=tag)
        if len(self.steps) > 4:
            tag = self.steps.pop(self.dice.randrange(3))
            self.journal.logged(lambda: shutil.rmtree(self.root / "steps" / tag), "remove", tag=tag)

    def seal(self, tag):
        os.setxattr(self.root / "steps" / tag, "user.ckptfs.seal", b"1")

    def train(self):
        for name in swap_names():
            if name not in self.state or self.dice.random() < 0.6:
                seed = self.dice.randrange(1 << 40)
                length = self.state[name][1] if name in self.state else 4 * KIB * self.dice.randrange(1, 150)
                self.journal.logged(
                    lambda: self.write(name, noise(length, seed)), "swap", name=name, seed=seed, length=length
                )
                self.state[name] = [seed, length]

    def write(self, name, data):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.agent.aio(path, data)

    def save(self):
        self.saves += 1
        tag = f"step-{self.seed}-{self.saves}"
        state = {name_in_step(name): row for name, row in self.state.items()}
        how = (
            self.save_plainly
            if self.plain
            else lambda name: os.setxattr(self.root / "steps", "user.ckptfs.save", name.encode())
        )
        self.journal.logged(lambda: how(tag), "save", tag=tag, state=state)
        self.steps.append(tag)

    def save_plainly(self, tag):
        made = self.root / "steps" / f".{tag}"
        for name in self.state:
            (made / name_in_step(name)).parent.mkdir(parents=True, exist_ok=True)
            run("cp", "--reflink=always", self.root / name, made / name_in_step(name))
        run("sync", "-f", made)
        os.rename(made, self.root / "steps" / tag)
        with opened(self.root / "steps", os.O_RDONLY) as folder:
            os.fsync(folder)


def main():
    kind, root, log, seed = sys.argv[1:5]
    journal = Journal(log)
    worker = (
        Scribe(root, journal, int(seed)) if kind == "scribe" else Trainer(root, journal, int(seed), "plain" in sys.argv)
    )
    try:
        while True:
            worker.act()
    except OSError as problem:
        journal.line(phase="error", errno=problem.errno, text=str(problem))


if __name__ == "__main__":
    main()
