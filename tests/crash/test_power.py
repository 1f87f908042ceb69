"""Power loss: the image below the store is shut down without a flush of its log. Synced and saved data is complete.

Options: --seed, --rounds, --plain.
"""

import os
import random
import shutil
import sys
import time

import pytest

import saving
from checking import equal, noise, opened, read, same_bytes, true, wait_for_seal, write, write_all
from crashing import Counts, Workers, check_witness, clear, make_witness
from hugging import safetensors
from mounting import (BUILD, CKPTFS, KIB, MIB, REPOSITORY, Store, by_level, mounted, power_cut, run, unmount,
                      wait_until, xfs)
from training import check_step, step_of, write_state

pytestmark = pytest.mark.timeout(1500)


def start_and_cut(root, logs, seed, counts, cut, plain=False):
    """Runs workers on `root`. At a random moment cut(workers) cuts the power, kills the workers, and removes the
    mounts. Returns the workers, and the moment."""
    dice = random.Random(seed)
    workers = Workers(root, logs, seed, plain)
    try:
        workers.wait_for_moment(dice)
        moment = time.monotonic()
        cut(workers)
        flight = workers.in_flight_at(moment)
        counts.add(flight)
        print(f"      seed {seed}, in flight: {flight}", flush=True)
    finally:
        workers.kill()
    return workers, moment


def plain_round(folder, seed, counts):
    """The same on XFS itself, where a save is a reflink copy, synced and renamed. It shows whether the model is
    right."""
    with xfs(folder) as disk:
        (disk / "steps").mkdir()
        device = run("findmnt", "-n", "-o", "SOURCE", disk).stdout.strip()
        run("sync", "-f", disk)

        def cut(workers):
            power_cut(disk)
            workers.kill()
            unmount(disk)
            run("mount", "-t", "xfs", device, disk)

        workers, moment = start_and_cut(disk, folder, seed, counts, cut, plain=True)
        workers.judge(moment, plain=True)


def rounds_on_a_store(mount, logs, seed, number, counts):
    witness = make_witness(mount)
    for index in range(number):
        clear(mount.path)
        workers, moment = start_and_cut(mount.path, logs, seed + index, counts,
                                        lambda workers: mount.lose_power(workers.kill))
        mount.start()
        workers.judge(moment)
        check_witness(mount, witness)
        mount.remount_after_fsck()
        check_witness(mount, witness)


def test_rounds(crashing_mount, scratch, mode, seed, rounds):
    number, counts = rounds or by_level(3, 25), Counts()
    if mode == "plain":
        for index in range(number):
            plain_round(scratch, seed + index, counts)
    else:
        rounds_on_a_store(crashing_mount(image="1G", mode=mode), scratch, seed, number, counts)
    print(counts)
    counts.check()


def write_step(series, number):
    """Writes a step as a Trainer does, which syncs nothing. Returns its content."""
    content = {"config.json": b"{}"}
    for part in range(4):
        weights = noise(4 * MIB, 10 * number + part)
        content[f"model-{part}.safetensors"] = safetensors({"w": ("F32", [MIB], weights)})
    content["trainer_state.json"] = b'{"global_step": %d}' % number
    (series / f"checkpoint-{number}").mkdir(parents=True)
    for name, data in content.items():
        write(series / f"checkpoint-{number}" / name, data)
    return content


def cut_once(mount):
    """Cuts the power, and mounts again."""
    power_cut(mount.store.inner)
    time.sleep(0.5)
    mount.status()  # the daemon survives the loss of its disk
    mount.take_down()
    mount.start()


def test_rotation(crashing_mount, mode):
    """A rule has removed a step. What stays is on the disk, with the tag that `latest` names."""
    mount = crashing_mount(image="1G", mode=mode)
    series = mount.path / "runs/a"
    series.mkdir(parents=True)
    mount.control("runs/a", "keep_last", "1")
    # while a file is open for writing, nothing else syncs them
    with opened(mount.path / "log", os.O_CREAT | os.O_WRONLY):
        write_step(series, 1)
        content = write_step(series, 2)
        write(series / "latest", b"checkpoint-2")
        wait_until("the first is removed", lambda: mount.status()["rotation"]["removed"] == 1, 30)
    cut_once(mount)
    equal(sorted(os.listdir(series)), ["checkpoint-2", "latest"], "the series")
    equal(sorted(os.listdir(series / "checkpoint-2")), sorted(content), "the step")
    for name, data in content.items():
        same_bytes(read(series / "checkpoint-2" / name), data, name)
    equal(mount.ask("runs/a/checkpoint-2", "state"), "complete", "state")


def test_replaced_without_a_sync(crashing_mount, mode):
    """Files that replace others, some overwritten in place, have the old content or the new, never none."""
    old, new = {"latest": b"global_step1"}, {"latest": b"global_step2"}
    for name, size in (("anew", 700), ("model", 6 * MIB), ("copy", 6 * MIB)):
        old[name], new[name] = noise(size, 1), noise(size, 2)
    mount = crashing_mount(image="1G", mode=mode, options=("quiet=30s",))  # nothing else syncs them
    for name, data in old.items():
        write(mount.path / name, data)
    write(mount.path / "source", new["copy"])
    run("sync", "-f", mount.store.inner)
    write(mount.path / "anew", new["anew"])
    for name in ("latest", "model"):
        write(mount.path / "tmp", new[name])
        os.rename(mount.path / "tmp", mount.path / name)
    shutil.copy(mount.path / "source", mount.path / "tmp")  # the copy is adopted
    os.rename(mount.path / "tmp", mount.path / "copy")
    for index in range(4):  # the log's sync makes the names durable
        time.sleep(0.4)
        write(mount.path / f"log{index}", b"x")
    cut_once(mount)
    found = {name: read(mount.path / name) for name in old}
    neither = [name for name in old if found[name] not in (old[name], new[name])]
    equal(neither, [], "what is neither old nor new")


def test_written_to_be_durable(crashing_mount, mode):
    """What O_DSYNC or RWF_DSYNC has written to a new file is there, under its name."""
    data = noise(64 * KIB, 1)
    mount = crashing_mount(image="1G", mode=mode)
    with opened(mount.path / "o_dsync", os.O_WRONLY | os.O_CREAT | os.O_DSYNC) as file:
        os.write(file, data)
    if mode == "direct":  # in passthrough the daemon does not see it: the name is durable within a second
        with opened(mount.path / "rwf_dsync", os.O_WRONLY | os.O_CREAT) as file:
            os.pwritev(file, [data], 0, os.RWF_DSYNC)
    cut_once(mount)
    for name in ("o_dsync", "rwf_dsync")[: 2 if mode == "direct" else 1]:
        same_bytes(read(mount.path / name), data, name)


def keep_a_file(mount):
    data = noise(3 * MIB, 1)
    with opened(mount.path / "file", os.O_WRONLY | os.O_CREAT) as file:
        write_all(file, data)
        os.fsync(file)
    yield
    same_bytes(read(mount.path / "file"), data, "the file")


def keep_a_save(mount):
    wanted = step_of(write_state(mount.path))
    mount.save("s")
    write_state(mount.path, 1)
    yield
    check_step(mount.path / "steps/s", wanted, "the step")


def keep_a_save_of_what_was_saved(mount):
    """It clones nothing."""
    wanted = step_of(write_state(mount.path))
    for tag in ("s", "t"):
        mount.save(tag)
    yield
    check_step(mount.path / "steps/t", wanted, "the second step")


def keep_a_seal(mount):
    wanted = step_of(write_state(mount.path))
    mount.save("s")
    write(mount.path / "steps/s/model", noise(70000))
    wanted["model"] = noise(70000)
    wait_for_seal(mount, "steps/s")
    yield
    check_step(mount.path / "steps/s", wanted, "the step")
    equal(mount.ask("steps/s", "seal"), "1", "is it sealed?")


def keep_a_removal(mount):
    write_state(mount.path)
    for tag in ("s", "t"):
        mount.save(tag)
    run(CKPTFS, "rm", mount.path / "steps/s")
    yield
    equal(os.listdir(mount.path / "steps"), ["t"], "the steps")


def keep_what_the_library_synced(mount):
    """ckptfs.deepspeed.save_checkpoint returns, and writes `latest`, behind these two."""
    sys.path.append(str(REPOSITORY / "gpu" / "python"))
    from ckptfs import durable

    step, data = mount.path / "steps/global_step1", noise(2 * MIB, 3)
    (step / "inner").mkdir(parents=True)
    for place in (step, step / "inner"):
        write(place / "states.pt", data)
    durable.sync(step)
    durable.sync_one(step.parent)
    durable.replace(step.parent / "latest", "global_step1")
    yield
    for place in (step, step / "inner"):
        same_bytes(read(place / "states.pt"), data, place)
    equal(read(step.parent / "latest"), b"global_step1", "latest")


def keep_a_commit(mount):
    """Ranks have saved a step that is not sealed, and no step of that name was there."""
    saving.save(mount.path / "steps", "step_1", "a", seal=0)
    yield
    equal(os.listdir(mount.path / "steps"), ["step_1"], "the steps")
    saving.check(mount.path / "steps/step_1")


def keep_a_commit_into_a_step(mount):
    (mount.path / "steps/step_1").mkdir()
    write(mount.path / "steps/step_1/rank00.safetensors", b"older")
    yield from keep_a_commit(mount)


def keep_a_part(mount):
    """A part of a step is never sealed, as DeepSpeed's in a Trainer's checkpoint."""
    step = mount.path / "runs/checkpoint-1"
    step.mkdir(parents=True)
    saving.save(step, "global_step1", "a")
    yield
    equal(os.listdir(step), ["global_step1"], "the parts")
    saving.check(step / "global_step1")


def keep_a_fetch(mount):
    source, remote = mount.path.with_name("source"), mount.path.with_name("remote")
    source.mkdir()
    write(source / "model.safetensors", noise(MIB, 4))
    remote.mkdir()
    run(BUILD / "helpers/remote_step", f"file://{remote}", "step_1", source)
    run(mount.binary, "fetch", f"file://{remote}/step_1", mount.path / "steps")
    yield
    equal(os.listdir(mount.path / "steps"), ["step_1"], "the steps")
    same_bytes(read(mount.path / "steps/step_1/model.safetensors"), noise(MIB, 4), "what was fetched")


def keep_what_was_told(mount):
    """Nothing syncs a rename, but who watches was told of it."""
    series = mount.path / "steps"
    for number in (1, 2):
        (series / f"checkpoint-{number}").mkdir()
        write(series / f"checkpoint-{number}" / "trainer_state.json", b"{}")
    os.rename(series / "checkpoint-1", series / "checkpoint-3")

    def told():
        return run("timeout", "2", mount.binary, "watch", "--json", "--since", "0", mount.path, check=False).stdout

    before = told()
    true('"checkpoint-3"' in before, f"it is told: {before}")
    yield
    equal(sorted(os.listdir(series)), ["checkpoint-2", "checkpoint-3"], "the steps")
    os.rename(series / "checkpoint-2", series / "checkpoint-4")
    equal(told().splitlines()[:1], before.splitlines(), "what was told, by its number")
    equal(len(told().splitlines()), 2, "and what came since")


@pytest.mark.parametrize("keep", (keep_a_file, keep_a_save, keep_a_save_of_what_was_saved, keep_a_seal, keep_a_removal,
                                  keep_what_the_library_synced, keep_a_commit, keep_a_commit_into_a_step, keep_a_part, keep_a_fetch,
                                  keep_what_was_told))
def test_what_has_returned_is_kept(crashing_mount, mode, keep):
    """The power goes right behind it."""
    mount = crashing_mount(image="1G", mode=mode, options=("quiet=30s",))  # nothing else syncs
    act = keep(mount)
    next(act)
    mount.lose_power()
    mount.start()
    next(act, None)


def test_what_was_unmounted_is_kept(scratch):
    """The disk loses its power right behind a successful umount."""
    data = noise(3 * MIB, 1)
    with xfs(scratch) as disk:
        device = run("findmnt", "-n", "-o", "SOURCE", disk).stdout.strip()
        with mounted(Store(disk / "store"), scratch / "mnt", options=("quiet=30s",)) as mount:
            write(mount.path / "file", data)
            mount.stop()
            power_cut(disk)
            unmount(disk)
            run("mount", "-t", "xfs", device, disk)
            mount.start()
            true(mount.status()["recovery"]["clean"], "the end was clean")
            same_bytes(read(mount.path / "file"), data, "the file")
