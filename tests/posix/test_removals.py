"""Removal of whole steps, by hand and by rules: at once, after a crash, and beside others who remove."""

import errno
import os
import threading
import time

import pytest

from checking import equal, opened, raises, read, same_bytes, true, write
from hugging import safetensors
from mounting import CKPTFS, CKPTFS_DEBUG, MIB, run, used_bytes, wait_until
from rotating_series import SERIES, WEIGHTS, make_series, stays, steps, write_step


def test_a_whole_step_at_once(mount):
    """`ckptfs rm`: gone when it returns, whoever reads it; freed behind."""
    (mount.path / SERIES).mkdir(parents=True)
    step = write_step(mount, 1, extra=64 * MIB)
    deep = step / "a" / "b"
    deep.mkdir(parents=True)
    for number in range(700):
        write(deep / str(number), b"x")
    os.link(step / "config.json", mount.path / "kept.json")
    os.link(deep / "1", deep / "other name")
    write_step(mount, 2)
    mount.control(f"{SERIES}/checkpoint-2", "pin", "1")
    os.sync()
    used = used_bytes(mount.store.folder)
    content = read(step / "optimizer.pt")
    with opened(step / "optimizer.pt", os.O_RDONLY) as file, opened(deep, os.O_RDONLY | os.O_DIRECTORY) as folder:
        equal(run(CKPTFS, "rm", step).stdout, "", "what it says")
        true(not step.exists(), "the step is still there")
        equal(os.listdir(mount.path / SERIES), ["checkpoint-2"], "the series")
        with raises(errno.ENOENT, what="a file of it by its path"):
            os.open(step / "optimizer.pt", os.O_RDONLY)
        wait_until("all is emptied", lambda: mount.status()["rotation"]["being_emptied"] == 0)
        with raises(errno.ENOENT, what="a new file in a folder of it"):
            os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=folder)
        same_bytes(os.pread(file, len(content), 0), content, "what is open")
    wait_until("its space is freed", lambda: used - used_bytes(mount.store.folder) >= 64 * MIB, 20, 0.2)
    equal(read(mount.path / "kept.json"), b"{}", "a file with another name")
    for path, what in ((mount.path / SERIES / "checkpoint-2", "pinned"), (mount.path / SERIES, "no step")):
        done = run(CKPTFS, "rm", path, check=False)
        equal(done.returncode, 1, what)
        true(what in done.stderr, done.stderr)


@pytest.mark.builds("faults")
@pytest.mark.one_mode
def test_what_was_not_emptied_is_at_the_next_mount(mount):
    mount.stop()
    mount.binary, mount.faults = CKPTFS_DEBUG, "purge.after_batch=kill"
    mount.start()
    make_series(mount)
    step = write_step(mount, 1)
    for number in range(600):
        write(step / f"file-{number}", b"x")
    inner = step / "inner"
    inner.mkdir()
    write(inner / "file", bytes(MIB))
    write_step(mount, 2)
    os.sync()
    run(CKPTFS, "rm", step, check=False)  # the daemon may die before it answers, or behind that
    wait_until("the daemon dies", lambda: not mount.alive(), 20)
    mount.pid = None
    mount.faults = None
    mount.start()
    equal(steps(mount), {2}, "the steps")
    wait_until("all is emptied", lambda: mount.status()["rotation"]["being_emptied"] == 0)


@pytest.mark.builds("faults")
@pytest.mark.one_mode
def test_killed_at_any_point(mount):
    """A step is whole or gone; the next mount goes on."""
    for point in ("rotation.before_remove", "take_out.after_batch", "purge.after_batch"):
        if mount.alive():
            mount.stop()
        mount.binary, mount.faults = CKPTFS_DEBUG, f"{point}=kill"
        mount.start()
        if not (mount.path / SERIES).is_dir():
            make_series(mount, keep_last=1)
        first = max(steps(mount), default=0) + 1
        write_step(mount, first)
        write_step(mount, first + 1)
        os.sync()
        wait_until(f"the daemon dies at {point}", lambda: not mount.alive(), 30)
        mount.pid = None
        mount.faults = "rotation.before_remove=error:EIO"  # nothing goes while it is looked at
        mount.start()
        for number in steps(mount):
            step = mount.path / SERIES / f"checkpoint-{number}"
            equal(sorted(os.listdir(step)), ["config.json", "model.safetensors", "trainer_state.json"], f"{point}: {step}")
            equal(read(step / "model.safetensors"), safetensors(WEIGHTS), f"{point}: {step}")
        mount.stop()
        mount.faults = None
        mount.start()
        stays(mount, {first + 1}, f"after {point}", 30)
        wait_until("all is emptied", lambda: mount.status()["rotation"]["being_emptied"] == 0)  # else the next dies of it


@pytest.mark.one_mode
def test_beside_removals_by_others(mount):
    """HF's save_total_limit and `rm -rf` remove steps of their own accord, while steps are rotated."""
    make_series(mount, keep_last=2)
    stop = threading.Event()
    problems = []

    def remove_old():
        while not stop.is_set():
            for number in sorted(steps(mount))[:-1]:
                done = run("rm", "-rf", mount.path / SERIES / f"checkpoint-{number}", check=False)
                if done.returncode != 0 and "No such file" not in done.stderr and "not empty" not in done.stderr:
                    problems.append(done.stderr)

    remover = threading.Thread(target=remove_old)
    remover.start()
    try:
        for number in range(1, 30):
            write_step(mount, number)
            time.sleep(0.05)
    finally:
        stop.set()
        remover.join()
    equal(problems, [], "what rm complained of")
    wait_until("at most two are left", lambda: len(steps(mount)) <= 2)
    true(29 in steps(mount), "the newest is gone")
