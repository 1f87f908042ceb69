"""Saves: what they take, what they cost, whom they refuse, and that nothing changes them; in both open modes."""

import errno
import json
import os
import re
import shutil
import threading
import time

from agent import Agent
from checking import equal, in_child, noise, opened, pwrite_all, raises, read, same_bytes, true, write
from mounting import CKPTFS, KIB, MIB, extents, run, used_bytes
from training import (STAGE, check_step, name_in_step, names_below, optimizer_file, param_file, step_of, swap_names,
                      write_state)


def save_command(mount, tag, *words, check=True):
    return run(CKPTFS, "save", *words, tag, mount.path, check=check)


def test_what_a_save_takes(mount):
    state = write_state(mount.path, ranks=3)
    folder = mount.path / STAGE / "optimizer/rank0"
    write(folder / "0_2_gradient_0_1048576.tensor.swp", b"gradient")
    (folder / "sub").mkdir()
    mount.save("global_step1")
    check_step(mount.path / "steps/global_step1", step_of(state))
    equal(
        sorted(os.listdir(mount.path / "steps/global_step1/offloaded_tensors")), ["rank00", "rank01", "rank02"], "ranks"
    )


def test_a_rank_of_two_digits(mount):
    state = {}
    for rank in (9, 10, 123):
        state[optimizer_file(rank)] = noise(100 * KIB, rank)
        (mount.path / optimizer_file(rank)).parent.mkdir(parents=True, exist_ok=True)
        write(mount.path / optimizer_file(rank), state[optimizer_file(rank)])
    mount.save("s")
    check_step(mount.path / "steps/s", step_of(state))


def test_live_files_go_on_and_steps_do_not(mount):
    wanted, state = {}, {}
    for version in range(6):
        state = write_state(mount.path, version)
        tag = f"global_step{version}"
        mount.save(tag)
        wanted[tag] = step_of(state)
        for old, content in wanted.items():
            check_step(mount.path / "steps" / old, content, old)
    name = optimizer_file(0)
    live = mount.path / name
    with Agent() as agent:
        mapping = agent.map(live, len(state[name]))
        agent.store(mapping, 5000, b"stored")
        mount.save("mapped")  # in direct mode the store sits in the kernel's cache still
        content = dict(state)
        content[name] = state[name][:5000] + b"stored" + state[name][5006:]
        wanted["mapped"] = step_of(content)
        check_step(mount.path / "steps/mapped", wanted["mapped"], "mapped")
        agent.store(mapping, 6000, b"stored later")
        agent.msync(mapping)
        agent.aio(live, noise(MIB, 99))
        os.truncate(live, 70000)
        with opened(live, os.O_RDWR) as file:
            pwrite_all(file, b"tail", 90000)
        os.unlink(mount.path / optimizer_file(1))
        for tag, content in wanted.items():
            check_step(mount.path / "steps" / tag, content, tag)
        agent.unmap(mapping)
    mount.remount()
    for tag, content in wanted.items():
        check_step(mount.path / "steps" / tag, content, tag)


def test_readers_and_writers_stay_open_across_saves(mount):
    state = write_state(mount.path)
    name = optimizer_file(0)
    with opened(mount.path / name, os.O_RDWR) as writer, opened(mount.path / name, os.O_RDONLY) as reader:
        for version in range(5):
            data = noise(len(state[name]), 50 + version)
            pwrite_all(writer, data, 0)
            state[name] = data
            mount.save(f"v{version}")
            same_bytes(os.pread(reader, len(data), 0), data, "the open reader of the live file")
            check_step(mount.path / f"steps/v{version}", step_of(state))


def test_fifty_saves_of_an_unchanged_state(mount):
    write_state(mount.path, size=4 * MIB)
    mount.save("first")
    run("sync", "-f", mount.store.inner)

    def count():
        return sum(extents(path)[0] for path in mount.store.blobs.rglob("*") if path.is_file())

    before, used = count(), used_bytes(mount.store.inner)
    for number in range(50):
        mount.save(f"again{number}")
    run("sync", "-f", mount.store.inner)
    equal(count(), before, "extents in blobs/")
    true(used_bytes(mount.store.inner) - used < 8 * MIB, f"df grew by {used_bytes(mount.store.inner) - used} bytes")
    check_step(mount.path / "steps/again49", step_of(write_state(mount.path, size=4 * MIB)))


def test_a_save_shares_its_blocks(mount):
    write_state(mount.path, size=8 * MIB)
    run("sync", "-f", mount.store.inner)
    before = used_bytes(mount.store.inner)
    mount.save("s")
    run("sync", "-f", mount.store.inner)
    grown = used_bytes(mount.store.inner) - before
    true(grown < 8 * MIB, f"a save of 112 MiB took {grown} bytes")
    shared = sum(extents(path)[1] for path in mount.store.blobs.rglob("*") if path.is_file())
    true(shared > 0, "shared extents in blobs/")


def test_a_tag_that_was_saved(mount):
    state = write_state(mount.path)
    mount.save("s")
    number = os.stat(mount.path / "steps/s").st_ino
    mount.save("s")
    equal(os.stat(mount.path / "steps/s").st_ino, number, "the same step")
    with opened(mount.path / optimizer_file(0), os.O_WRONLY) as file:
        os.pwrite(file, state[optimizer_file(0)][:10], 0)  # opened for writing is changed
    with raises(errno.EEXIST):
        mount.save("s")
    true(len(mount.ask("steps", "last_error")) > 5, "last_error says why")
    check_step(mount.path / "steps/s", step_of(state))
    answer = json.loads(save_command(mount, "t", "--json").stdout)
    check_step(mount.path / "steps/t", step_of(state))
    true(isinstance(answer, dict) and answer.get("files") == len(step_of(state)), f"the command's answer: {answer}")
    equal(save_command(mount, "s", check=False).returncode, 1, "status of the command")


def test_into_a_step_that_exists(mount):
    state = write_state(mount.path)
    step = mount.path / "steps/global_step7"
    step.mkdir()
    write(step / "mp_rank_00_model_states.pt", b"DeepSpeed's")
    mount.save("global_step7")
    check_step(step, {**step_of(state), "mp_rank_00_model_states.pt": b"DeepSpeed's"})
    write_state(mount.path, 1)
    with raises(errno.EEXIST):
        mount.save("global_step7")
    (mount.path / "steps/has").mkdir()
    (mount.path / "steps/has/offloaded_tensors").mkdir()
    with raises(errno.EEXIST):
        mount.save("has")
    equal(names_below(mount.path / "steps/has"), [], "left alone")
    write(mount.path / "steps/file", b"x")
    with raises(errno.EEXIST, errno.ENOTDIR):
        mount.save("file")
    mount.seal("steps/global_step7")
    with raises(errno.EPERM, errno.EEXIST):
        mount.save("global_step7")
    check_step(step, {**step_of(state), "mp_rank_00_model_states.pt": b"DeepSpeed's"})


def test_no_source_and_several(mount):
    with raises(errno.ENOENT):
        mount.save("s")
    true("zero_stage" in mount.ask("steps", "last_error"), "last_error says what is missing")
    state = write_state(mount.path)
    other = mount.path / "second" / STAGE / "optimizer/rank0"
    other.mkdir(parents=True)
    write(other / "0_1.tensor.swp", b"o" * 4096)
    with raises(errno.EINVAL):
        mount.save("s")
    said = mount.ask("steps", "last_error")
    true(
        "second/zero_stage_3" in said and "/zero_stage_3" in said.replace("second/zero_stage_3", ""),
        f"both named: {said}",
    )
    equal(os.listdir(mount.path / "steps"), [], "nothing was left")
    mount.control("steps", "source", "/zero_stage_3")
    mount.save("s")
    check_step(mount.path / "steps/s", step_of(state))
    mount.control("steps", "source", "/second/zero_stage_3")
    mount.save("t")
    check_step(mount.path / "steps/t", {"offloaded_tensors/rank00/0_1.tensor.swp": b"o" * 4096})


def test_perhaps_stale_files(mount):
    """0_2 was written by a process that ended, then a newer one writes 3_5 only."""
    in_child(lambda: write_state(mount.path, 0, ranks=1, groups=("0_2",)) and None)
    time.sleep(0.1)  # processes' start times are counted in ticks of 10 ms

    def newer():
        for kind in ("", "exp_avg-", "exp_avg_sq-"):
            write(mount.path / optimizer_file(0, "3_5", kind), noise(MIB))
        write(mount.path / param_file(0), noise(MIB))

    in_child(newer)
    said = json.loads(save_command(mount, "s", "--json").stdout)
    text = json.dumps(said["warnings"])
    for name in ("0_2.tensor.swp", "exp_avg-0_2.tensor.swp", "exp_avg_sq-0_2.tensor.swp"):
        true(name in text, f"{name} is named in {text}")
    true("3_5.tensor.swp" not in text and "7_param" not in text, f"the newer ones are not: {text}")
    true("0_2.tensor.swp" in run(CKPTFS, "ls", "--json", mount.path / "steps").stdout, "ls names it too")
    equal(len(names_below(mount.path / "steps/s")), 7, "they are taken all the same")
    in_child(lambda: (newer(), write_state(mount.path, 1, ranks=1, groups=("0_2",)))[0])
    equal(json.loads(save_command(mount, "t", "--json").stdout)["warnings"], [], "all written by the newest")


def test_ls_shows_saves(mount):
    write_state(mount.path)
    mount.save("global_step2")
    mount.save("global_step10")
    mount.seal("steps/global_step2")
    text = run(CKPTFS, "ls", mount.path / "steps").stdout
    true(re.search(r"global_step2\b.*global_step10\b", text, re.S), f"in the order of steps: {text}")
    true("swap state only" in text and "sealed" in text, f"what they are: {text}")
    equal(run(CKPTFS, "ls", "--json", mount.path / "steps").stdout.count('"global_step10"'), 1, "in JSON")


def test_whom_a_save_refuses(mount):
    write_state(mount.path)

    def try_xattr():
        with raises(errno.EACCES, errno.EPERM):
            os.setxattr("steps", "user.ckptfs.save", b"s")

    in_child(try_xattr, uid=4321, folder=mount.path)
    if os.access(CKPTFS, os.X_OK) and in_child(lambda: os.access(CKPTFS, os.X_OK), uid=4321):
        equal(in_child(lambda: save_command(mount, "s", check=False).returncode, uid=4321), 1, "status of the command")
    equal(os.listdir(mount.path / "steps"), [], "nothing was made")


def test_a_step_belongs_to_who_saved_it(mount):
    state = write_state(mount.path)
    os.chown(mount.path / "steps", 4321, 4321)
    run("chown", "-R", "4321:4321", mount.path / STAGE)
    in_child(lambda: os.setxattr("steps", "user.ckptfs.save", b"mine"), uid=4321, folder=mount.path)
    for path in ("steps/mine", "steps/mine/offloaded_tensors", "steps/mine/offloaded_tensors/rank00"):
        equal(os.stat(mount.path / path).st_uid, 4321, f"owner of {path}")
    in_child(lambda: check_step("steps/mine", step_of(state)), uid=4321, folder=mount.path)
    in_child(lambda: shutil.rmtree("steps/mine"), uid=4321, folder=mount.path)
    equal(os.listdir(mount.path / "steps"), [], "he may remove it")


def test_two_names_of_one_swap_file(mount):
    """Both are in the step; removing one step leaves the other whole."""
    first, second = optimizer_file(0), optimizer_file(0, "3_5")
    (mount.path / first).parent.mkdir(parents=True)
    write(mount.path / first, noise(100 * KIB))
    os.link(mount.path / first, mount.path / second)
    wanted = step_of({first: noise(100 * KIB), second: noise(100 * KIB)})
    mount.save("a")
    mount.save("b")
    shutil.rmtree(mount.path / "steps/b")
    mount.remount()  # whatever was to be removed is gone now
    check_step(mount.path / "steps/a", wanted)


def test_saves_at_the_same_time(mount):
    state = write_state(mount.path)
    problems = []

    def save(tag):
        try:
            mount.save(tag)
        except OSError as problem:
            problems.append(problem)

    threads = [threading.Thread(target=save, args=(f"s{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(problems, [], "errors")
    for number in range(8):
        check_step(mount.path / f"steps/s{number}", step_of(state))


def test_the_series_is_usable_during_a_save(mount):
    """Lookups, creations and removals in the source while saves run: they wait or go on, none fails.

    A save whose source changes faster than it can be listed says EBUSY; then it is taken again.
    """
    write_state(mount.path)
    problems, stop = [], threading.Event()

    def churn():
        folder = mount.path / STAGE / "optimizer/rank0"
        number = 0
        while not stop.is_set():
            number += 1
            try:
                write(folder / "churn.tensor.swp", noise(64 * KIB, number))
                os.rename(folder / "churn.tensor.swp", folder / "moved.tensor.swp")
                os.truncate(folder / "moved.tensor.swp", 1000)
                os.unlink(folder / "moved.tensor.swp")
                os.listdir(folder)
            except OSError as problem:
                problems.append(problem)

    def save_patiently(tag):
        for attempt in range(20):
            try:
                return mount.save(tag)
            except OSError as problem:
                if problem.errno != errno.EBUSY or attempt == 19:
                    raise
        return None

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for number in range(20):
            save_patiently(f"s{number}")
    finally:
        stop.set()
        thread.join()
    equal(problems, [], "errors")
    steps = {
        f"s{number}": {
            name: read(mount.path / f"steps/s{number}" / name) for name in names_below(mount.path / f"steps/s{number}")
        }
        for number in range(20)
    }
    for name in swap_names():
        same_bytes(steps["s19"][name_in_step(name)], read(mount.path / name), name)
    mount.remount()
    for tag, content in steps.items():
        check_step(mount.path / "steps" / tag, content, tag)


def test_removed_steps_free_their_blocks(mount):
    write_state(mount.path, size=4 * MIB)
    mount.save("s")
    write_state(mount.path, 1, size=4 * MIB)
    run("sync", "-f", mount.store.inner)
    before = used_bytes(mount.store.inner)
    run("rm", "-r", mount.path / "steps/s")
    for _ in range(1000):
        if used_bytes(mount.store.inner) < before - 48 * MIB:
            break
        time.sleep(0.01)
    freed = before - used_bytes(mount.store.inner)
    true(freed >= 48 * MIB, f"56 MiB were the step's alone, {freed} bytes are free again")
