"""Real trainings that save into a series with rules, by the libraries themselves, and what others do in it meanwhile, at
random: evaluate, convert, upload, copy, touch. Trainings save again, are killed in a save, and begin again with an older
step. After each act the newest whole save and the best one are there, in full, and what went could go. In the end no more
stays than twice what the rules say.

Options: --seed, --rounds (how many acts of each kind of training in each open mode; 50).
"""

import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import time

import pytest

import forked_ranks
from checking import true
from harness import HERE, environment, python
from mounting import BUILD, CKPTFS, Failure, Store, mounted, run, wait_until
from obeying import PREFIXES, STRIDE, TRACKER
from ports import free_port

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.together, pytest.mark.timeout(1200)]

QUIET = 1  # seconds
OLDER_THAN_A_COMMAND = 2.2  # seconds
ACTS_OF_A_SERIES = 25
MEGATRON = "megatron-core==0.16.1"  # the newest one for Python 3.11
NEVER = 1 << 40
ALSO = 2  # stay, too: the step that the notebook, which lives, wrote to last, and the best one of the training before

RULES = ({"keep_last": 1}, {"keep_last": 2}, {"keep_last": 1, "keep_every": 4 * STRIDE}, {"keep_last": 4, "keep_full": 1})
RULES_OF_TRAINERS = ({"keep_last": 1, "keep_best": "eval_score:max:1"}, {"keep_last": 1, "keep_best": "eval_score:max:2"},
                     {"keep_last": 4, "keep_full": 1, "thin_to": "bf16"}, {"keep_last": 2})  # fmt: skip
MORE_RULES = {"megatron": {"steps": "iter_*", "complete_when": TRACKER},
              "accelerate": {"steps": "step_*", "complete_when": "random_states_0.pkl"}}  # what it writes last


@pytest.fixture(scope="module")
def log(venv, work):
    """Of all processes. Megatron's library gets a folder of its own, because the 20 minutes do not need it."""
    folder = BUILD / MEGATRON
    if not folder.exists():
        part = folder.with_suffix(".part")
        run(python(), "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", part, MEGATRON, timeout=300)
        part.rename(folder)
    return work / "processes.log"


class Process:
    """obeying.py, forked from a process that has loaded the libraries."""

    def __init__(self, kind, log, *words):
        shared = environment() | {"PYTHONPATH": str(BUILD / MEGATRON)}
        modules = (*forked_ranks.TRAINERS, "megatron.core.dist_checkpointing")
        server = forked_ranks.server(python(), modules, shared)
        self.log, self.port = log, str(free_port())
        if kind not in ("trainer", "helper"):  # what torchrun says
            shared |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1", "MASTER_PORT": self.port}
        (asked, asking), (answers, answering) = os.pipe(), os.pipe()
        self.asking, self.answers = open(asking, "w"), open(answers)
        with open(log, "ab") as output, open(asked) as stdin, open(answering) as stdout:
            self.born = time.monotonic()
            self.process = server.start([HERE / "obeying.py", kind, *words], shared, output, stdin, stdout)
        self.loaded = self.answer()

    def grow_old(self):
        time.sleep(max(0, self.born + OLDER_THAN_A_COMMAND - time.monotonic()))
        return self

    def tell(self, *words):
        self.asking.write(" ".join(map(str, words)) + "\n")
        self.asking.flush()

    def answer(self):
        for line in self.answers:
            if line.startswith('{"'):
                return json.loads(line)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        raise Failure(f"a training ended:\n{tail}")

    def kill(self):
        """Forked writers go on, as after a real kill. Megatron's server of queues would do so for ever."""
        tasks = pathlib.Path(f"/proc/{self.process.pid}/task")
        children = [int(pid) for path in tasks.glob("*/children") for pid in path.read_text().split()]
        servers = [pid for pid in children if "multiprocessing" in pathlib.Path(f"/proc/{pid}/cmdline").read_text()]
        self.process.kill()
        self.process.wait()
        for pid in servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pipe in (self.asking, self.answers):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        for buffer in pathlib.Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{self.port}_*"):
            buffer.unlink()


class Step:
    def __init__(self, path):
        self.path, self.number = path, int(re.split("[-_]", path.name)[-1])
        self.whole = False  # as the training told; None: it is being saved, or a training was killed in that
        self.files, self.weights = {}, set()  # their digests; of `weights` a load finds one
        self.score = self.run = self.inode = None
        self.saved = self.touched = 0  # acts
        self.copy = self.gone = False

    def is_full(self):
        return all((self.path / name).exists() for name in self.files)


def files_of(folder):
    """The digests of what a training wrote."""
    others = re.compile(r"\.cache/|eval_results\.json|pytorch_model\.bin")
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names if not others.match(name)}


class History:
    """Of one series."""

    def __init__(self, mount, kind, dice, name, notebook):
        self.mount, self.kind, self.dice, self.name, self.notebook = mount, kind, dice, name, notebook
        self.path, self.prefix = mount.path / name, PREFIXES[kind]
        self.steps = {}  # by name, all that ever were
        self.saved = []  # those that a training saved, in that order
        self.told, self.now, self.takes = [], 0, 0.5
        self.training = self.pending = self.best = None
        self.path.mkdir()
        rules = RULES_OF_TRAINERS if kind.startswith("trainer") else RULES
        thinned = kind != "megatron"  # which is not thinned
        self.rules = dice.choice([rule for rule in rules if thinned or "keep_full" not in rule]) | MORE_RULES.get(kind, {})
        self.rules |= {"set_aside": 1} if dice.random() < 0.5 else {}
        for rule, value in self.rules.items():
            mount.control(name, rule, str(value))
        self.say(f"{kind}: {self.rules}")
        time.sleep(1.5 * QUIET)  # then the first step arms the rules
        self.start()

    def say(self, what):
        self.told.append(what)

    def state(self, step):
        with contextlib.suppress(OSError):
            return self.mount.ask(f"{self.name}/{step.path.name}", "state")
        return "not there"

    def step_at(self, name):
        if name not in self.steps or self.steps[name].gone:
            self.steps[name] = Step(self.path / name)
        return self.steps[name]

    def whole_ones(self):
        return [step for step in self.steps.values() if step.whole and not step.gone]

    def newest(self):
        return next((step for step in reversed(self.saved) if step.whole and not step.gone), None)

    def must_stay(self):
        """The newest whole save of the training that lives. An async save may be whole before its training says so."""
        newest = self.newest()
        overtaken = self.pending and self.state(self.pending) == "complete"
        return newest if newest and self.training and newest.run is self.training and not overtaken else None

    # --- trainings

    def start(self):
        """From the newest complete step, as the mount has it, or an older one, or none."""
        step = None
        if self.whole_ones():
            time.sleep(QUIET)  # what a killed training has written last may be whole
            wait_until(f"{self.name} has a newest step: {self.rows()}", self.newest_of_mount, 20, 0.2)
            older = [one for one in self.whole_ones() if one.is_full()]
            step = self.newest_of_mount() if self.dice.random() < 0.6 else self.dice.choice([*older, None])
        self.say(f"a training begins with {step and step.path.name}")
        try:
            self.training = Process(self.kind, self.notebook.log, self.path, *([step.path] if step else [])).grow_old()
        except Failure:
            if not step or step.is_full() or step is self.newest_of_mount():
                raise
            return self.start()  # a rule has removed or thinned it this moment
        if step:
            true(self.training.loaded["weights"] in step.weights, f"{step.path.name}: what it holds was never saved")
        return None

    def rows(self):
        return json.loads(run(CKPTFS, "ls", "--json", self.path).stdout)["steps"]

    def newest_of_mount(self):
        names = [row["tag"] for row in self.rows() if "newest" in row.get("by", []) and row["state"] == "complete"]
        return self.steps[names[0]] if names else None

    def order(self, what):
        """Returns the step that the training now saves."""
        score = self.dice.randrange(100) / 100
        self.began = time.monotonic()
        self.training.tell(what, score)
        said = self.training.answer()
        step = self.step_at(f"{self.prefix}{said['saving']}")
        self.say(f"{what} {step.path.name}, score {score}")
        step.whole, step.copy = None, False
        step.saved = step.touched = self.now
        step.weights = {*step.weights, said["weights"]}
        step.score = step.score if what == "again" else score
        return step

    def is_saved(self, step):
        said = self.training.answer()
        self.takes = time.monotonic() - self.began
        step.whole, step.weights, step.run = True, {said["weights"]}, self.training
        step.files, step.inode = files_of(step.path), os.stat(step.path).st_ino
        self.saved = [one for one in self.saved if one is not step] + [step]
        best = self.steps.get(os.path.basename(said["best"] or ""))
        self.best = best if best and best.path.exists() else None

    def save(self):
        self.is_saved(self.order("save"))

    def save_again(self):
        self.is_saved(self.order("again" if self.must_stay() else "save"))

    def begin(self):
        self.pending = self.order("begin")
        self.training.answer()

    def end(self):
        self.say("end")
        self.training.tell("end")
        self.is_saved(self.pending)
        self.pending = None

    def die(self):
        step = self.pending or self.order("again" if self.must_stay() and self.dice.random() < 0.3 else "save")
        time.sleep(self.dice.random() * 0.7 * self.takes)
        self.training.kill()
        self.training = self.pending = self.best = None
        self.say(f"the training is killed; {step.path.name} is {self.state(step)}")

    # --- others

    def any_step(self):
        """Old ones rather than the newest."""
        found = self.whole_ones()
        return min(self.dice.sample(found, min(2, len(found))), key=lambda step: step.saved)

    def write(self):
        step, what = self.any_step(), self.dice.choice(("evaluate", "evaluate", "hub", "convert"))
        who = self.dice.choice(("a notebook", "a command", "the training"))
        process = {"a notebook": self.notebook, "the training": what != "convert" and self.training}.get(who)
        step.touched = self.now
        self.say(f"{who if process else 'a command'}: {what} {step.path.name}")
        asked = process or Process("helper", self.notebook.log, self.path)
        asked.tell(what, step.path)
        error = asked.answer()["error"]
        if not process:
            asked.kill()
        true(not error or not step.path.exists() or not step.is_full(), f"{self.told[-1]}: {error}")

    def copy(self):
        step, used = self.any_step(), {one.number for one in self.steps.values()}
        free = [number for number in range(1, max(used) + 20) if number % STRIDE and number not in used]
        copy, full = self.step_at(f"{self.prefix}{self.dice.choice(free)}"), step.is_full()
        self.say(f"cp -r {step.path.name} {copy.path.name}")
        copied = run("cp", "-r", step.path, copy.path, check=False).returncode == 0 and full == step.is_full()
        if not copy.path.exists():
            del self.steps[copy.path.name]
            return
        copy.copy, copy.saved, copy.touched = True, step.saved, self.now
        copy.files, copy.weights, copy.score = step.files, step.weights, step.score
        copy.inode = os.stat(copy.path).st_ino
        copy.whole = copied and self.kind != "megatron" or None  # whose tracker file never names it

    def touch(self):
        step, seconds = self.any_step(), self.dice.choice((0, -86400, 3600))
        self.say(f"touch {step.path.name}, {seconds} s from now")
        step.touched = self.now
        with contextlib.suppress(FileNotFoundError):
            for path in (step.path, *step.path.iterdir()):
                os.utime(path, (time.time() + seconds,) * 2)

    def pause(self):
        self.say("a pause")
        time.sleep(3 * QUIET)

    def acts(self):
        if not self.training:
            yield 8, self.start
        elif self.pending:
            yield from ((8, self.end), (2, self.die))
        else:
            yield from ((12, self.save), (3, self.save_again), (3, self.die))
            yield 4 * (self.kind in ("dcp", "megatron")), self.begin
        if self.whole_ones():
            yield from ((7, self.write), (2, self.copy), (1, self.touch), (2, self.pause))

    def act(self):
        self.now += 1
        acts = list(self.acts())
        self.dice.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()
        time.sleep(self.dice.random() * QUIET)
        self.look()

    # --- what must hold

    def judge(self, good, step, what):
        if not good:
            raise Failure(f"{step.path.name}: {what}; it is {self.state(step)}; there are {self.rows()}")

    def look(self):
        must_stay = self.must_stay()
        for step in self.steps.values():
            if not step.gone and not step.path.exists():
                step.gone = True
                self.told[-1] += f" [{step.path.name} goes]"
                self.judge(step is not must_stay, step, "it went, and is the newest of the training that lives")
                self.judge(step is not self.best, step, "it went, and is the best of the training that lives")
                if step.whole:
                    self.judge_removal(step)
        for step in filter(None, (self.must_stay(), self.best)):
            self.judge(step.is_full(), step, f"it is the newest or the best, and lacks some of {list(step.files)}")

    def judge_removal(self, step):
        aside = [path.name for path in self.path.glob("incomplete-*") if path.stat().st_ino == step.inode]
        self.judge(not aside, step, f"it is whole, and called {aside}")
        others = [one for one in self.steps.values() if one is not step and one.whole is not False]
        left = [one for one in others if one.path.exists() and (one.whole or self.state(one) == "complete")]
        self.judge(left, step, "it went, and was the last whole one")
        higher = [one.path.name for one in others if one.number > step.number]
        later = [one.path.name for one in others if one.touched >= step.saved]
        for what, names in (("higher", higher), ("saved, or touched, later", later)):
            self.judge(len(names) >= self.rules["keep_last"], step, f"it went, and too few are {what}: {names}")
        self.judge(step.copy or step.number % self.rules.get("keep_every", NEVER), step, "keep_every keeps it")
        if step.score is not None and not step.copy:
            better = [one.path.name for one in others if one.score is not None and one.score >= step.score]
            self.judge(len(better) >= self.count_of_best(), step, f"it went, and is among the best: {better}")

    def count_of_best(self):
        return int(self.rules.get("keep_best", "0").rpartition(":")[2])

    def settle(self):
        """Nothing stays beyond twice the rules, and what has to stay holds what was saved."""
        if self.pending:
            self.end()
        try:
            wait_until("the rules have acted", lambda: not self.too_many(), 15, 0.2)
        except Failure as late:
            raise Failure(f"beyond twice {self.rules} stay {self.too_many()}: {self.rows()}") from late
        self.look()
        for step in filter(None, (self.must_stay(), self.best)):
            found = files_of(step.path)
            self.judge(all(found.get(name) == wanted for name, wanted in step.files.items()), step, f"changed: {found}")

    def too_many(self):
        there = [step for step in self.whole_ones() if step.path.exists()]
        arrived = sorted((step for step in there if step.copy), key=lambda step: step.touched)[-1:]
        left = [step for step in there if step not in (self.newest(), self.best, *arrived)]
        left = [step for step in left if step.copy or step.number % self.rules.get("keep_every", NEVER)]
        full = [step for step in left if step.is_full()]
        most = 2 * self.rules["keep_last"] + self.count_of_best() + ALSO
        if len(left) > most:
            return [step.path.name for step in left]
        return [step.path.name for step in full if len(full) > 2 * self.rules.get("keep_full", NEVER) + ALSO]


@pytest.mark.parametrize("kind", PREFIXES)
def test_real_trainings(kind, log, mode, disk, work, seed, rounds):
    count, dice, store = rounds or 50, random.Random(seed), Store(disk / f"{kind}-{mode}")
    with contextlib.ExitStack() as stack:
        mount = stack.enter_context(mounted(store, work / f"mnt-{kind}", mode=mode, options=(f"quiet={QUIET}s",)))
        notebook = Process("helper", log, "-").grow_old()
        stack.callback(notebook.kill)
        for first in range(0, count, ACTS_OF_A_SERIES):
            history = History(mount, kind, dice, f"series-{first}", notebook)
            try:
                for at in range(min(ACTS_OF_A_SERIES, count - first)):
                    history.act()
                    if at % 10 == 9:
                        history.settle()
                history.settle()
            finally:
                print(f"--- {history.name}, seed {seed}, {mode}:", *history.told, sep="\n", flush=True)
                if history.training:
                    history.training.kill()
    store.fsck()
