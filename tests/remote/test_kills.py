"""Kills at random moments, while two nodes push steps: of their daemons, of their power, of the server, and of the link
to it.

Whoever reads sees whole steps only: exactly the bytes of one attempt. In the end all is committed without a hand.

Options: --seed, --rounds: how many kills of each kind.
"""

import contextlib
import json
import random
import shutil
import subprocess
import sys
import threading
import time

import pytest

from checking import equal, noise, true, write
from mounting import (CKPTFS, LEVEL, MIB, Mount, Store, abandon, by_level, power_cut, run, unmount, wait_until,
                      xfs)
from seaweed import BUCKET, Proxy, environment, seaweed
from test_push import agree, arrived, ckptfs, state_of, tree

pytestmark = [pytest.mark.builds("venv"),
              pytest.mark.one_mode, pytest.mark.timeout(600 if LEVEL != "long" else 12_000)]

QUIET = ("quiet=1s",)
KINDS = ("daemon", "power", "server", "cut", "slow", "deaf")
KILLS_OF_A_SERVER = 2  # of each kind; then another one, so that its disk does not fill up
MOST_SENT_AGAIN = 512 * MIB  # after each kill
STEP = 40 * MIB
SECONDS_TO_COMMIT = 150


def part_of(slot, attempt, size):
    """What one node has of a step; `shared.json` is the same on both."""
    names = (f"rank{slot}.bin", f"sub/optimizer{slot}.pt", f"sub/more{slot}.pt")
    part = {name: noise(size // 3 + number, attempt * 100 + 10 * slot + number) for number, name in enumerate(names)}
    return part | {"sub": None, "shared.json": json.dumps({"attempt": attempt}).encode()}


def write_part(step, part):
    (step / "sub").mkdir(parents=True, exist_ok=True)
    for name, content in part.items():
        if content is not None:
            write(step / name, content)


def contents(folder):
    return {name: entry[3] for name, entry in tree(folder).items()}


class Reader(threading.Thread):
    """Lists the steps all the time, reads each new one, and compares it with the attempts to save it."""

    def __init__(self, url, options, out):
        super().__init__(daemon=True)
        self.url, self.options, self.out = url, options, out
        self.attempts = {}  # tag: contents
        self.read, self.wrong = {}, []  # step: which attempt
        self.ending = threading.Event()

    def expect(self, tag, wanted):
        self.attempts.setdefault(tag, []).append(wanted)

    def call(self, *words):
        words = [CKPTFS, "remote", *map(str, words), *self.options, "--timeout", "20s"]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment(), check=False)

    def look(self):
        """Returns the names of the steps; none if the server does not answer."""
        done = self.call("ls", "--json", self.url)
        if done.returncode != 0:
            return None
        names = [one["step"] for one in json.loads(done.stdout)["steps"]]
        for name in names:
            if name not in self.read:
                self.compare(name)
        return names

    def compare(self, name):
        out = self.out / name
        done = self.call("export", f"{self.url}/{name}", out)
        if done.returncode != 0:
            true(not out.exists(), f"{name}: a step that is half there")
            return
        found = contents(out)
        shutil.rmtree(out)
        same = [number for number, wanted in enumerate(self.attempts[name.partition("~")[0]]) if wanted == found]
        if not same:
            self.wrong.append(f"{name} is no attempt that was saved: {sorted(found)}")
        self.read[name] = same

    def run(self):
        while not self.ending.is_set():
            try:
                self.look()
            except BaseException as error:  # noqa: BLE001 - the test shows it
                self.wrong.append(repr(error))
                return
            self.ending.wait(0.5)

    def end(self):
        self.ending.set()
        self.join()
        equal(self.wrong, [], "what was read")


class Node:
    """A mount in a slot, on a disk of its own, and its link to the server."""

    def __init__(self, work, disk, name, slot, mode):
        self.slot, self.disk, self.store = slot, disk, Store(disk / name)
        self.mount = Mount(self.store, work / f"mnt-{name}", mode=mode, options=QUIET)
        self.link = None

    @property
    def series(self):
        return self.mount.path / "steps"

    def add(self, url, port):
        self.link = Proxy(port).__enter__()
        ckptfs("remote", "add", url, self.series, "--slot", f"{self.slot}/2", "--endpoint",
               f"http://127.0.0.1:{self.link.port}")

    def leave(self):
        ckptfs("remote", "remove", self.series)
        self.link.__exit__()
        self.link = None

    def kill(self):
        self.mount.kill()
        run("umount", "-l", self.mount.path, check=False)
        self.mount.start()

    def lose_power(self):
        device = run("findmnt", "-n", "-o", "SOURCE", self.disk).stdout.strip()
        power_cut(self.disk)
        self.mount.kill()
        run("umount", "-l", self.mount.path, check=False)
        unmount(self.disk)
        run("mount", "-t", "xfs", "-o", "nouuid", device, self.disk)
        self.mount.start()

    def remote(self):
        return json.loads(ckptfs("remote", "status", "--json", self.series))["remotes"][0]


@contextlib.contextmanager
def two_nodes(work, name, mode):
    with xfs(work, name="disk0") as first, xfs(work, name="disk1") as second:
        yield from nodes_on(work, (first, second), name, mode)


def nodes_on(work, disks, name, mode):
    nodes = [Node(work, disk, f"{name}{slot}", slot, mode) for slot, disk in enumerate(disks)]
    try:
        for node in nodes:
            node.mount.start()
        yield nodes
        for node in nodes:
            node.mount.stop()
            node.store.fsck()
    except BaseException:
        for node in nodes:
            print(f"--- the log of slot {node.slot}:\n{node.mount.log.read_text()[-6000:]}", file=sys.stderr)
        raise
    finally:
        for node in nodes:
            if node.link:
                node.link.__exit__()
            abandon(node.mount)


def strike(kind, nodes, server, dice):
    """Kills something, and sees to it that it comes back."""
    node = dice.choice(nodes)
    if kind == "daemon":
        node.kill()
    elif kind == "power":
        node.lose_power()
    elif kind == "server":
        server.kill()
        time.sleep(dice.uniform(0, 1))
        server.start()
        server.wait_until_it_answers()
    elif kind == "cut":
        node.link.become("refuse")
        time.sleep(dice.uniform(0.1, 2))
        node.link.become()
    elif kind == "slow":
        node.link.become(rate=dice.choice((MIB, 5 * MIB)))
        time.sleep(dice.uniform(0.5, 2))
        node.link.become()
    else:
        node.link.become(fates=["deaf" if dice.random() < 0.7 else dice.randrange(1, 400) for _ in range(6)])


def save(nodes, tag, attempt, reader):
    """On both nodes, which agree that it is one save; what was there of that name is removed first."""
    parts = [part_of(node.slot, attempt, STEP // 2) for node in nodes]
    reader.expect(tag, parts[0] | parts[1])
    for node in nodes:
        if (node.series / tag).exists():
            shutil.rmtree(node.series / tag)
    for node, part in zip(nodes, parts):
        write_part(node.series / tag, part)
        agree(f"attempt-{attempt}", node.series / tag)
        run("sync", "-f", node.disk)  # or else the power takes of it what no trainer would call saved


def wait_for_moment(nodes, tag, dice):
    """Mostly one at which something is on its way."""
    if dice.random() < 0.3:
        time.sleep(dice.uniform(0.5, 3))
        return
    end = time.monotonic() + 6
    while time.monotonic() < end and all(state_of(node.series / tag) == "unpushed" for node in nodes):
        time.sleep(0.02)
    time.sleep(dice.uniform(0, 1.5))


def struck_while_it_pushes(nodes, server, url, out, kinds, dice):
    reader = Reader(url, ["--endpoint", server.endpoint], out)
    for node in nodes:
        node.add(url, server.ports[3])
    reader.start()
    tags, bytes_saved, kills = [], 0, 0
    for number, kind in enumerate(kinds):
        if tags and dice.random() < 0.2:
            tag = tags[-1]
        else:
            tags.append(tag := f"global_step{number}")
        save(nodes, tag, 1000 + number, reader)
        bytes_saved += STEP
        for node in nodes:
            node.link.become(rate=dice.choice((None, 10 * MIB, 20 * MIB)))
        wait_for_moment(nodes, tag, dice)
        print(f"  {tag}: {kind}, states {[state_of(node.series / tag) for node in nodes]}", flush=True)
        strike(kind, nodes, server, dice)
        kills += 1
    begun = time.monotonic()
    for tag in tags:
        for node in nodes:
            step = node.series / tag
            wait_until(f"{step} is committed", lambda step=step: state_of(step).startswith("committed"),
                       SECONDS_TO_COMMIT, 0.2)
    print(f"  all are committed {time.monotonic() - begun:.0f} s after the last kill", flush=True)

    def is_all_read():
        names = reader.look()
        return names is not None and len(reader.read) == len(names)

    reader.end()
    wait_until("all can be read", is_all_read, 60)
    equal(reader.wrong, [], "what was read in the end")
    for tag in tags:
        last = max(attempt for name, same in reader.read.items() if name.partition("~")[0] == tag for attempt in same)
        equal(last, len(reader.attempts[tag]) - 1, f"{tag}: the newest attempt is there")
    done = reader.call("verify", url)
    equal(done.returncode, 0, f"verify: {done.stdout}{done.stderr}")
    sent = sum(node.link.sent for node in nodes)
    print(f"  {sent // MIB} MiB sent for {bytes_saved // MIB} MiB and {kills} kills", flush=True)
    true(sent <= bytes_saved + kills * MOST_SENT_AGAIN, f"sent {sent} for {bytes_saved} and {kills} kills")
    for node in nodes:
        node.leave()
        for tag in tags:
            shutil.rmtree(node.series / tag)


def test_kills(work, mode, seed, rounds, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    dice, left = random.Random(seed), rounds or by_level(1, 100)
    with two_nodes(work, "kills", mode) as nodes:
        while left > 0:
            folder = work / f"server{left}"
            folder.mkdir()
            kinds = list(KINDS) * min(left, KILLS_OF_A_SERVER)
            left -= KILLS_OF_A_SERVER
            dice.shuffle(kinds)
            with seaweed(folder) as server:
                struck_while_it_pushes(nodes, server, f"s3://{BUCKET}/kills", work, kinds, dice)
            shutil.rmtree(folder)


@pytest.mark.disk(by_level(2, 8))
def test_a_kill_sends_little_again(work, disk, scratch, mode, seed):
    """Of a large step what has arrived is not sent again, whenever the daemon is killed."""
    dice, size = random.Random(seed), by_level(512, 2048) * MIB
    url, store = f"file://{scratch}", Store(disk / "large")
    mount = Mount(store, work / "mnt-large", mode=mode, options=QUIET)
    try:
        mount.start()
        step = mount.path / "steps" / "global_step1"
        ckptfs("remote", "add", url, step.parent, "--limit-upload", "200M")
        step.mkdir()
        with open(step / "weights.bin", "wb") as file:
            for piece in range(size // (32 * MIB)):
                file.write(noise(32 * MIB, piece))
        sent_before = 0
        for _ in range(by_level(1, 5)):
            wait_until("more has arrived", lambda: arrived(store, size) > sent_before + 100 * MIB, 60, 0.02)
            time.sleep(dice.uniform(0, 0.5))
            if state_of(step).startswith("committed"):
                break
            mount.kill()
            run("umount", "-l", mount.path, check=False)
            sent_before = arrived(store, size)
            equal(ckptfs("remote", "latest", url, check=False).returncode, 1, "no half step")
            mount.start()
        wait_until("it is committed", lambda: state_of(step).startswith("committed"), SECONDS_TO_COMMIT, 0.2)
        told = json.loads(ckptfs("remote", "status", "--json", step.parent))["remotes"][0]["sent"]
        print(f"{sent_before // MIB} MiB of {size // MIB} were there, {told // MIB} MiB were sent")
        equal(told, size - sent_before, f"bytes that were sent of {size}, of which {sent_before} were there")
        lies_there = sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file())
        true(lies_there <= size + MIB, f"{lies_there} bytes lie there of {size}")
        done = ckptfs("remote", "verify", url, check=False)
        equal(done.returncode, 0, f"verify: {done.stdout}{done.stderr}")
        mount.stop()
    finally:
        abandon(mount)
