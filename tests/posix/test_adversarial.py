"""A random user against a reference model: step bytes never change, and no open fails with EIO or EBUSY.

Options: --seed, --rounds (operations), --plain.
"""

import errno
import os
import random
import threading

import pytest

from adversary import Adversary
from agent import Agent
from checking import equal, opened, read, true, write
from mounting import KIB, Failure, Plain, by_level, wait_until
from training import STAGE, names_below

pytestmark = pytest.mark.timeout(1500)

def walk(mount, seed, operations):
    adversary = Adversary(mount, seed)
    try:
        for number in range(operations):
            adversary.act()
            if number % 100 == 99:
                adversary.check_all()
        adversary.remount()
    except Exception:
        print(f"--- seed {seed}, the last operations:", *adversary.history, sep="\n", flush=True)
        raise
    finally:
        adversary.close()
    print("      " + ", ".join(f"{name} {count}" for name, count in sorted(adversary.counts.items())))


def test_walk(request, disk, mode, seed, rounds):
    operations = rounds or by_level(400, 20000)
    walk(Plain(disk / "plain") if mode == "plain" else request.getfixturevalue("mount"), seed, operations)


BLOCK = 4096


def writer(folder, name, stop, problems, counts):
    """Overwrites a file by AIO for ever; each block of 4 KiB says which version it is."""
    version = 0
    try:
        with Agent() as agent:
            while not stop.is_set():
                version += 1
                agent.aio(folder / name, version.to_bytes(8, "little") * (512 * KIB // 8))
                counts[name] = version
    except (OSError, Failure) as problem:
        problems.append(problem)


def opener(mount, stop, problems, counts):
    """Opens whatever there is, live and saved, for reading and for writing."""
    dice = random.Random(1)
    opens = 0
    while not stop.is_set():
        for name in names_below(mount.path):
            flags = dice.choice((os.O_RDONLY, os.O_RDWR))
            try:
                with opened(mount.path / name, flags) as file:
                    os.pread(file, 1000, 0)
                opens += 1
            except OSError as problem:
                if problem.errno != errno.ENOENT and not (problem.errno == errno.EPERM and name.startswith("steps/")):
                    problems.append(problem)
    counts["opens"] = opens


def whole_blocks(data, name):
    for offset in range(0, len(data), BLOCK):
        block = data[offset : offset + BLOCK]
        true(block == block[:8] * (len(block) // 8), f"{name}: the block at {offset} is of two versions")


def test_storm(mount):
    """Saves while other threads write and open: what a save returned for stays as it then was."""
    folder = mount.path / STAGE / "optimizer/rank0"
    folder.mkdir(parents=True, exist_ok=True)
    names = ["storm-a.tensor.swp", "storm-b.tensor.swp"]
    for name in names:
        write(folder / name, bytes(512 * KIB))
    stop, problems, counts = threading.Event(), [], dict.fromkeys(names, 0)
    threads = [threading.Thread(target=writer, args=(folder, name, stop, problems, counts)) for name in names]
    threads.append(threading.Thread(target=opener, args=(mount, stop, problems, counts)))
    for thread in threads:
        thread.start()
    seen = {}
    try:
        for number in range(by_level(5, 100)):
            reached = dict(counts)
            wait_until("the writers go on", lambda: problems or all(counts[name] > reached[name] for name in names), 60)
            mount.save(f"storm{number}")
            for name in names:
                path = mount.path / f"steps/storm{number}/offloaded_tensors/rank00" / name
                seen[path] = read(path)
                equal(len(seen[path]), 512 * KIB, f"length of {path}")
                whole_blocks(seen[path], path)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    equal(problems, [], "errors of the writers and the opener")
    for _ in range(2):
        for path, data in seen.items():
            true(read(path) == data, f"{path} has changed")
        mount.remount()
    print(f"      {counts}")
