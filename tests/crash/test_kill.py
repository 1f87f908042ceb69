"""kill -9 of the daemon during writes and saves. Everything that a call returned for is there, in both open modes.

Options: --seed, --rounds.
"""

import errno
import json
import mmap
import os
import random
import time

import pytest

from agent import Agent
from checking import equal, noise, opened, pwrite_all, raises, read, same_bytes, true, write
from crashing import Counts, Workers, check_witness, clear, make_witness
from mounting import by_level, run
from training import check_step, optimizer_file, step_of, write_state

pytestmark = pytest.mark.timeout(1500)


def one_round(mount, logs, seed, counts):
    """Runs workers, kills the daemon, mounts over the dead mount, and checks. The mount is in use afterwards."""
    dice = random.Random(seed)
    workers = Workers(mount.path, logs, seed)
    try:
        workers.wait_for_moment(dice)
        moment = time.monotonic()
        mount.kill()
        workers.end()
        flight = workers.in_flight_at(moment)
        counts.add(flight)
        print(f"      seed {seed}, {mount.mode}, in flight: {flight}", flush=True)
        mount.start()
        workers.judge()
    finally:
        workers.kill()


def test_rounds(crashing_mount, scratch, mode, seed, rounds):
    counts = Counts()
    mount = crashing_mount(mode=mode)
    witness = make_witness(mount)
    for index in range(rounds or by_level(3, 25)):
        clear(mount.path)
        one_round(mount, scratch, seed + index, counts)
        check_witness(mount, witness)
        mount.remount_after_fsck()
        check_witness(mount, witness)
    print(counts)
    counts.check()


def test_survivors(crashing_mount):
    """Under passthrough, open descriptors and mappings work without a daemon, and beside the next one."""
    mount = crashing_mount()
    state = write_state(mount.path)
    name = optimizer_file(0)
    size = len(state[name])
    with Agent() as agent, opened(mount.path / name, os.O_RDWR) as file:
        mapping = agent.map(mount.path / optimizer_file(1), size)
        mount.kill()
        with raises(errno.ENOTCONN, errno.ECONNABORTED):  # of a name that the kernel cannot know without the daemon
            os.stat(mount.path / "never looked up")
        pwrite_all(file, b"nobody there", size)
        agent.store(mapping, 5000, b"nobody there")
        mount.start()
        equal(os.stat(mount.path / name).st_size, size + 12, "what grew without a daemon")
        pwrite_all(file, b"and the next one", size + 12)
        equal(os.stat(mount.path / name).st_size, size + 28, "what grows beside the next one")
        agent.store(mapping, 6000, b"and the next one")
        mount.save("s")
        state[name] += b"nobody thereand the next one"
        old = state[optimizer_file(1)]
        state[optimizer_file(1)] = old[:5000] + b"nobody there" + old[5012:6000] + b"and the next one" + old[6016:]
        check_step(mount.path / "steps/s", step_of(state))
        pwrite_all(file, b"after the save", 0)
        agent.store(mapping, 0, b"after the save")
        check_step(mount.path / "steps/s", step_of(state))
        mount.save("t")
        state[name] = b"after the save" + state[name][14:]
        state[optimizer_file(1)] = b"after the save" + state[optimizer_file(1)][14:]
        check_step(mount.path / "steps/t", step_of(state))
        agent.unmap(mapping)


def test_an_idle_kill(crashing_mount, mode):
    """With nothing in flight everything is there, no blob counts as an orphan, and status reports the unclean end."""
    mount = crashing_mount(mode=mode)
    state = write_state(mount.path)
    mount.save("s")
    write(mount.path / "plain", noise(12345))
    numbers = {path: os.stat(mount.path / path).st_ino for path in ("plain", "steps/s", "zero_stage_3")}
    mount.kill()
    equal(run(mount.binary, "status", mount.path, check=False).returncode, 1, "status of a dead mount")
    mount.start()
    recovery = mount.status()["recovery"]
    equal((recovery["clean"], recovery["damaged"], recovery["orphan_blobs"]), (False, [], 0), json.dumps(recovery))
    check_step(mount.path / "steps/s", step_of(state))
    same_bytes(read(mount.path / "plain"), noise(12345), "plain")
    equal({path: os.stat(mount.path / path).st_ino for path in numbers}, numbers, "inode numbers")
    mount.remount()
    true(mount.status()["recovery"]["clean"], "clean after an umount")


def test_a_mapping_that_was_synced(crashing_mount, mode):
    """In direct mode a mapping keeps its pages in the kernel: msync hands them to the daemon."""
    data = noise(3 * 4096, 2)
    mount = crashing_mount(mode=mode)
    write(mount.path / "file", bytes(len(data)))
    with opened(mount.path / "file", os.O_RDWR) as file:
        mapping = mmap.mmap(file, len(data))
    with mapping:
        mapping[:] = data
        mapping.flush()
        mount.kill()
        mount.start()
        same_bytes(read(mount.path / "file"), data, "the file")
