"""What `ckptfs watch` and ckptfs.watch tell of steps: each thing that happens once, whatever dies."""

import collections
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time

import pytest

from calling import ckptfs, status_is
from checking import equal, true, write
from hugging import safetensors
from mounting import CKPTFS, REPOSITORY, by_level, run, wait_until
from rotating_series import SERIES, WEIGHTS, make_series, write_step

sys.path.insert(0, str(REPOSITORY / "gpu" / "python"))
import ckptfs as api

pytestmark = pytest.mark.one_mode
STEPS = by_level(120, 1000)


class Watcher:
    """`ckptfs watch --json`, and the events that it has printed."""

    def __init__(self, *words):
        self.process = subprocess.Popen([CKPTFS, "watch", "--json", *map(str, words)], stdout=subprocess.PIPE, text=True)
        self.events = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.reader.join()
        self.process.wait()

    def told(self, tag=None):
        return [(event["event"], event["detail"]) for event in list(self.events) if tag in (None, event["tag"])]


def write_when_it_goes(mount, number):
    """Saves a step as often as it takes: the daemon may die meanwhile."""
    while True:
        with contextlib.suppress(OSError):
            step = mount.path / SERIES / f"checkpoint-{number}"
            step.mkdir(exist_ok=True)  # fails where nothing is mounted
            write(step / "config.json", b"{}")
            write(step / "model.safetensors", safetensors(WEIGHTS))
            write(step / "trainer_state.json", json.dumps({"global_step": number, "log_history": []}).encode())
            return
        time.sleep(0.05)


def test_the_life_of_a_step(mount):
    make_series(mount, keep_last=9)
    with Watcher(mount.path / SERIES) as watcher:
        time.sleep(0.6)  # it has asked where to begin
        step = write_step(mount, 10, extra=4096)
        write_step(mount, 20)
        wait_until("both are complete", lambda: ("completed", "") in watcher.told("checkpoint-20"))
        equal(watcher.told("checkpoint-10"), [("began", ""), ("completed", "")], "a save")
        write(step / "eval_results.json", b"{}")
        mount.wait_for_rounds(2)
        equal(len(watcher.told("checkpoint-10")), 2, "a note is no save")
        write_step(mount, 30)
        wait_until("a third one", lambda: ("completed", "") in watcher.told("checkpoint-30"))
        status_is(ckptfs("thin", step), 0)
        status_is(ckptfs("rm", step), 0)
        wait_until("it is removed", lambda: ("removed", "ckptfs rm") in watcher.told("checkpoint-10"))
        equal(watcher.told("checkpoint-10")[2:], [("thinned", ""), ("removed", "ckptfs rm")], "its end")
        os.rename(mount.path / SERIES / "checkpoint-20", mount.path / SERIES / "checkpoint-21")
        os.rename(mount.path / SERIES / "checkpoint-21", mount.path / SERIES / "incomplete-checkpoint-21")
        shutil.rmtree(mount.path / SERIES / "incomplete-checkpoint-21")
        wait_until("the last one", lambda: watcher.told("incomplete-checkpoint-21"))
        equal(watcher.told("checkpoint-20")[2:], [("renamed", "checkpoint-21")], "renamed")
        equal(watcher.told("checkpoint-21"), [("set_aside", "incomplete-checkpoint-21")], "set aside")
        equal(watcher.told("incomplete-checkpoint-21"), [("removed", "")], "by rm -r")
        numbers = [event["number"] for event in watcher.events]
        equal(numbers, sorted(set(numbers)), "numbers")
        equal(watcher.events[0]["path"], str(step), "path")


def test_saves_of_other_kinds(mount):
    """`ckptfs save`, which makes a step at once, and a step that is saved again."""
    make_series(mount, keep_last=9)
    swap = mount.path / "zero_stage_3" / "optimizer" / "rank0"
    swap.mkdir(parents=True)
    write(swap / "0_0.tensor.swp", bytes(4096))
    with Watcher(mount.path / SERIES) as watcher:
        time.sleep(0.6)
        mount.save("global_step5", series=SERIES)
        wait_until("it is complete", lambda: ("completed", "") in watcher.told("global_step5"))
        program = ("import pathlib, sys, time; time.sleep(2.2); step = pathlib.Path(sys.argv[1])\n"
                   "for path in step.iterdir(): path.write_bytes(path.read_bytes())")
        step = write_step(mount, 10)
        wait_until("it is complete", lambda: ("completed", "") in watcher.told("checkpoint-10"))
        run(sys.executable, "-c", program, step)
        wait_until("it is complete again", lambda: watcher.told("checkpoint-10")[2:] == [("began", ""), ("completed", "")])


def test_what_is_set_aside_is_not_complete(mount):
    """A second run dies in its save of a step that was whole."""
    make_series(mount, set_aside="1", keep_last=9)
    series = mount.path / SERIES
    with Watcher(series) as watcher:
        time.sleep(0.6)
        write_step(mount, 20)
        step = write_step(mount, 10)
        wait_until("both are complete", lambda: ("completed", "") in watcher.told("checkpoint-10"))
        program = ("import os, pathlib, sys, time; time.sleep(2.2); step = pathlib.Path(sys.argv[1])\n"
                   "with open(step / 'model.safetensors.index.json', 'w') as index:\n"  # open: nobody takes it for ended
                   "    index.write('{\"weight_map\": {\"w\": \"model-00001-of-00001.safetensors\"}}')\n"
                   "    (step / 'model.safetensors').unlink()")
        run(sys.executable, "-c", program, step)
        wait_until("it is set aside", lambda: (series / "incomplete-checkpoint-10").exists(), 30)
        mount.wait_for_rounds(3)
        equal(watcher.told("checkpoint-10")[2:], [("began", ""), ("set_aside", "incomplete-checkpoint-10")], "the second save")
        equal(watcher.told("incomplete-checkpoint-10"), [], "what is set aside")


def test_steps_of_declared_names(mount):
    make_series(mount, steps="best-*", keep_last=9)
    with Watcher(mount.path / SERIES) as watcher:
        time.sleep(0.6)
        step = mount.path / SERIES / "best-a"
        step.mkdir()
        for name, content in (("config.json", b"{}"), ("model.safetensors", safetensors(WEIGHTS)),
                              ("trainer_state.json", b'{"global_step": 1, "log_history": []}')):
            write(step / name, content)
        wait_until("it is complete", lambda: ("completed", "") in watcher.told("best-a"))
        shutil.rmtree(step)
        wait_until("it is removed", lambda: len(watcher.told("best-a")) == 3)
        equal([what for what, _ in watcher.told("best-a")], ["began", "completed", "removed"], "all of it")


def test_lines_for_people(mount):
    make_series(mount)
    process = subprocess.Popen([CKPTFS, "watch", mount.path], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(0.6)
        step = write_step(mount, 10)
        status_is(ckptfs("rm", step), 0)
        line = process.stdout.readline()
        true(line.endswith(f"Z {step} removed: ckptfs rm\n"), line)
        equal(json.loads(run("timeout", "2", CKPTFS, "watch", "--json", "--since", "0", mount.path, check=False).stdout)["owner"],
              os.geteuid(), "whose step it was")
    finally:
        process.kill()
        process.communicate()


def test_since(mount):
    """Who comes back goes on where they were; who asks for too much is told so."""
    make_series(mount)
    with Watcher(mount.path / SERIES, "--since", "0") as watcher:
        for number in (10, 20, 30):
            status_is(ckptfs("rm", write_step(mount, number)), 0)
        wait_until("all are told", lambda: len(watcher.events) == 3)
    with Watcher(mount.path / SERIES, "--since", watcher.events[0]["number"]) as again:
        wait_until("the others are told", lambda: len(again.events) == 2)
        equal([event["tag"] for event in again.events], ["checkpoint-20", "checkpoint-30"], "behind the first")
    events = api.watch(mount.path / SERIES, since=0)
    equal([(next(events).tag, event["number"]) for event in watcher.events],
          [(event["tag"], event["number"]) for event in watcher.events], "in Python")
    status_is(ckptfs("watch", mount.path / SERIES, "--since", "4000"), 1, "is it another store")
    with pytest.raises(OSError, match="is it another store"):
        next(api.watch(mount.path / SERIES, since=4000))


def test_the_script_of_the_page(mount, scratch):
    """docs/watching.md: it is killed, and goes on where it was."""
    make_series(mount, keep_last=20)
    page = (REPOSITORY / "docs/watching.md").read_text()
    block = next(part for part in page.split("\n\n    import pathlib")[1:]).partition("\n\nA rule may")[0]
    script = "import pathlib" + block.replace("\n    ", "\n").replace("/ckpt/steps", str(mount.path / SERIES))
    note = 'def evaluate(path):\n    print(path.name, file=open("evaluated", "a"), flush=True)\n'
    evaluated, seen, saved = scratch / "evaluated", scratch / "seen", []
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY / "gpu" / "python"))
    with Watcher(mount.path / SERIES, "--since", "0") as watcher:
        for numbers in ((1, 2, 3), (4, 5)):
            saved += [write_step(mount, number).name for number in numbers]
            with subprocess.Popen([sys.executable, "-c", note + script], cwd=scratch, env=environment) as process:
                wait_until("all are evaluated", lambda: evaluated.exists() and len(evaluated.read_text().split()) == len(saved))
                wait_until("it has noted that", lambda: seen.exists() and seen.read_text() == str(watcher.events[-1]["number"]))
                process.kill()
    equal(sorted(evaluated.read_text().split()), saved, "each step once")


def test_nobody_is_told_of_what_they_may_not_list(mount):
    make_series(mount)
    write_step(mount, 10, series="runs/private")
    (mount.path / "runs/private").chmod(0o700)
    for series in ("runs/private", SERIES):
        status_is(ckptfs("rm", write_step(mount, 11, series=series)), 0)
    words = ("setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", "timeout", "2", CKPTFS, "watch", "--json", "--since", "0")
    told = [json.loads(line)["series"] for line in run(*words, mount.path, check=False).stdout.splitlines()]
    equal(told, [f"/{SERIES}"], "to a stranger")
    told = [json.loads(line)["series"] for line in run("timeout", "2", *words[6:], mount.path, check=False).stdout.splitlines()]
    equal(told, ["/runs/private", f"/{SERIES}"], "to root")
    os.rename(write_step(mount, 12), mount.path / "runs/private/checkpoint-12")
    told = [json.loads(line)["detail"] for line in run(*words, mount.path, check=False).stdout.splitlines()]
    equal(told, ["ckptfs rm", ""], "where it went")


def test_what_cannot_be_watched(mount):
    make_series(mount)
    step = write_step(mount, 10)
    status_is(ckptfs("watch", step), 1, "can be a series")
    status_is(ckptfs("watch", mount.path / "nowhere"), 1, "nowhere")
    said = run("timeout", "2", CKPTFS, "watch", mount.path / SERIES, check=False).stderr
    true("no rule is set" in said and "ckptfs policy" in said, f"what will not be told: {said}")
    mount.control(SERIES, "keep_last", "3")
    equal(run("timeout", "2", CKPTFS, "watch", mount.path / SERIES, check=False).stderr, "", "with a rule")
    with pytest.raises(FileNotFoundError):
        next(api.watch(mount.path / "nowhere"))
    events = api.watch(mount.path, since=0)
    status_is(ckptfs("rm", step), 0)
    equal((next(events).tag, api.latest(mount.path)), ("checkpoint-10", None), "of the whole mount")


def test_no_event_is_lost_and_none_comes_twice(mount, store):
    """Steps that are made, pushed and removed by a rule, while the daemon is killed twice."""
    make_series(mount, keep_last=5)
    remote = store.folder.parent / "remote"
    remote.mkdir()
    run(CKPTFS, "remote", "add", f"file://{remote}", mount.path / SERIES)
    kills = sorted(random.sample(range(10, STEPS - 5), 2))
    heard, ended = [], threading.Event()

    def hear():
        for event in api.watch(mount.path / SERIES):
            heard.append(event)
            if ended.is_set():
                return

    listener = threading.Thread(target=hear, daemon=True)
    with Watcher(mount.path / SERIES, "--since", "0") as watcher:
        listener.start()
        made = []

        def save():
            for number in range(1, STEPS + 1):
                write_when_it_goes(mount, number)
                made.append(number)
                time.sleep(0.02)  # so that the pushes keep up with some of them

        writer = threading.Thread(target=save)
        writer.start()
        for kill in kills:
            wait_until(f"step {kill}", lambda: len(made) >= kill, 300, 0.001)
            mount.kill()
            mount.remount()
        writer.join()
        last = f"checkpoint-{STEPS}"

        def is_over():
            left = {f"checkpoint-{name}" for name in range(STEPS - 4, STEPS + 1)}
            removed = sum(event["event"] == "removed" for event in list(watcher.events))
            return (set(os.listdir(mount.path / SERIES)) == left and removed >= STEPS - 5 and
                    all(("pushed", one) in watcher.told(one) for one in left))

        wait_until("five steps are left, and pushed, and the others are told to be gone", is_over, 120, 0.2)
        counted = collections.Counter((event["tag"], event["event"]) for event in watcher.events)
    pushed = {step["step"] for step in json.loads(run(CKPTFS, "remote", "ls", "--json", f"file://{remote}").stdout)["steps"]}
    for number in range(1, STEPS + 1):
        tag = f"checkpoint-{number}"
        equal(counted[tag, "began"], 1, f"{tag}: began")
        equal(counted[tag, "removed"], int(number <= STEPS - 5), f"{tag}: removed")
        equal(counted[tag, "completed"], 1, f"{tag}: completed")
        equal(counted[tag, "pushed"], int(tag in pushed), f"{tag}: pushed")
    true(any(event.tag == last for event in heard), "Python has heard of the last one")
    numbers = [event.number for event in heard]
    equal(numbers, sorted(set(numbers)), "numbers in Python")
    equal([event["number"] for event in watcher.events if event["number"] >= numbers[0]][: len(numbers)], numbers, "both hear the same")
    ended.set()
    write_step(mount, 5000)
    listener.join(30)
