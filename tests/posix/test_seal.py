"""Sealed steps: what they refuse, what goes on, what a seal does about writers and links; in both open modes."""

import errno
import os
import shutil

from agent import Agent
from checking import equal, in_child, noise, opened, raises, read, same_bytes, true, write
from mounting import MIB, run, used_bytes, wait_until
from training import check_step, name_in_step, optimizer_file, step_of, write_state

STEP = "steps/global_step1"
SAVED = name_in_step(optimizer_file(0))


def complete_step(mount):
    """A step by `save`, with a file of DeepSpeed's own beside the swap state; what it holds."""
    wanted = step_of(write_state(mount.path))
    mount.save("global_step1")
    wanted["mp_rank_00_model_states.pt"] = noise(300000, 5)
    write(mount.path / STEP / "mp_rank_00_model_states.pt", wanted["mp_rank_00_model_states.pt"])
    return wanted


def test_a_sealed_step_refuses(mount):
    wanted = complete_step(mount)
    step, model = mount.path / STEP, mount.path / STEP / "mp_rank_00_model_states.pt"
    mount.seal(STEP)
    write(mount.path / "outside", b"x")
    (mount.path / "folder").mkdir()
    refused = {
        "open for writing": lambda: os.open(model, os.O_WRONLY),
        "open to truncate": lambda: os.open(model, os.O_RDWR | os.O_TRUNC),
        "truncate": lambda: os.truncate(model, 0),
        "create": lambda: os.open(step / "new", os.O_CREAT | os.O_WRONLY),
        "create below": lambda: os.open(step / "offloaded_tensors/rank00/new", os.O_CREAT | os.O_WRONLY),
        "mkdir": lambda: os.mkdir(step / "new"),
        "mknod": lambda: os.mkfifo(step / "new"),
        "symlink": lambda: os.symlink("x", step / "new"),
        "link into": lambda: os.link(mount.path / "outside", step / "new"),
        "rename within": lambda: os.rename(model, step / "other"),
        "rename into": lambda: os.rename(mount.path / "outside", step / "new"),
        "rename over": lambda: os.rename(mount.path / "outside", model),
        "rename out": lambda: os.rename(model, mount.path / "out"),
        "chmod of a file": lambda: os.chmod(model, 0o777),
        "chmod of the step": lambda: os.chmod(step, 0o777),
        "chown": lambda: os.chown(model, 1, 1),
        "utimens": lambda: os.utime(model, ns=(1, 1)),
        "utimens of the step": lambda: os.utime(step, ns=(1, 1)),
        "rename a folder out": lambda: os.rename(step / "offloaded_tensors", mount.path / "folder"),
    }
    for what, attempt in refused.items():
        with raises(errno.EPERM, what=what):
            attempt()
    check_step(step, wanted)
    os.chmod(mount.path, 0o777)

    def other():
        for what in (lambda: os.open(f"{STEP}/new", os.O_CREAT | os.O_WRONLY), lambda: os.truncate(model, 0)):
            with raises(errno.EPERM, errno.EACCES, what="another user"):
                what()

    in_child(other, uid=4321, folder=mount.path)
    check_step(step, wanted)


def test_refused_requests_do_not_fill_the_log(mount):
    complete_step(mount)
    mount.seal(STEP)
    for _ in range(2000):
        with raises(errno.EPERM):
            os.open(mount.path / STEP / SAVED, os.O_WRONLY)
    lines = mount.log.read_text().count("open")
    true(lines < 1000, f"{lines} lines")  # a few hundred, if 2,000 opens took as long as a minute


def test_a_sealed_step_stays_sealed(mount):
    wanted = complete_step(mount)
    mount.seal(STEP)
    mount.seal(STEP)
    with raises(errno.EPERM, errno.EINVAL, what="unsealing"):
        mount.control(STEP, "seal", "0")
    mount.remount()
    equal(mount.ask(STEP, "seal"), "1", "seal after a remount")
    with raises(errno.EPERM):
        os.open(mount.path / STEP / "mp_rank_00_model_states.pt", os.O_WRONLY)
    check_step(mount.path / STEP, wanted)


def test_a_sealed_step_is_renamed(mount):
    wanted = complete_step(mount)
    mount.seal(STEP)
    os.rename(mount.path / STEP, mount.path / "steps/kept")
    check_step(mount.path / "steps/kept", wanted)
    equal(mount.ask("steps/kept", "seal"), "1", "still sealed")
    with raises(errno.EPERM):
        os.open(mount.path / "steps/kept/new", os.O_CREAT | os.O_WRONLY)


def test_a_sealed_step_is_removed(mount):
    complete_step(mount)
    mount.seal(STEP)
    write_state(mount.path, 1)
    run("sync", "-f", mount.store.inner)
    before = used_bytes(mount.store.inner)
    run("rm", "-r", mount.path / STEP)
    equal(os.listdir(mount.path / "steps"), [], "the series")
    wait_until("the step's 14 MiB are free again", lambda: used_bytes(mount.store.inner) < before - 12 * MIB)


def test_a_removal_that_began_is_known(mount):
    complete_step(mount)
    mount.seal(STEP)
    os.unlink(mount.path / STEP / SAVED)
    equal(mount.ask(STEP, "state"), "being removed", "state")
    mount.remount()
    equal(mount.ask(STEP, "state"), "being removed", "state after a remount")
    with raises(errno.EPERM):
        os.open(mount.path / STEP / "new", os.O_CREAT | os.O_WRONLY)
    shutil.rmtree(mount.path / STEP)


def test_a_pinned_step_is_not_removed(mount):
    wanted = complete_step(mount)
    mount.control(STEP, "pin", "1")
    mount.seal(STEP)
    equal(run("rm", "-rf", mount.path / STEP, check=False).returncode, 1, "status of rm -rf")
    with raises(errno.EPERM):
        os.unlink(mount.path / STEP / SAVED)
    check_step(mount.path / STEP, wanted)
    mount.remount()
    with raises(errno.EPERM):
        os.unlink(mount.path / STEP / SAVED)
    check_step(mount.path / STEP, wanted)
    mount.control(STEP, "pin", "0")
    run("rm", "-r", mount.path / STEP)


def test_a_writer_hinders_the_seal(mount):
    complete_step(mount)
    model = mount.path / STEP / "mp_rank_00_model_states.pt"
    with opened(model, os.O_WRONLY) as file:
        with raises(errno.EBUSY):
            mount.seal(STEP)
        os.write(file, b"still mine")
    mount.seal(STEP)
    equal(read(model)[:10], b"still mine", "content")


def test_a_reader_does_not_hinder_the_seal(mount):
    wanted = complete_step(mount)
    model = mount.path / STEP / "mp_rank_00_model_states.pt"
    with opened(model, os.O_RDONLY) as file:
        mount.seal(STEP)
        same_bytes(os.pread(file, MIB, 0), wanted["mp_rank_00_model_states.pt"], "the open reader")
        with opened(model, os.O_RDONLY) as another:
            same_bytes(os.pread(another, MIB, 0), wanted["mp_rank_00_model_states.pt"], "a second reader")
    check_step(mount.path / STEP, wanted)


def test_a_leaked_mapping_does_not_reach_a_sealed_step(mount):
    wanted = complete_step(mount)
    name = "mp_rank_00_model_states.pt"
    with Agent() as agent:
        mapping = agent.map(mount.path / STEP / name, len(wanted[name]))
        agent.store(mapping, 1000, b"before")
        wanted[name] = wanted[name][:1000] + b"before" + wanted[name][1006:]
        try:
            mount.seal(STEP)
        except OSError as problem:
            equal(problem.errno, errno.EBUSY, "the refusal")
            agent.unmap(mapping)
            mount.seal(STEP)
        else:
            agent.store(mapping, 2000, b"after")
            agent.msync(mapping)
            check_step(mount.path / STEP, wanted)
            agent.unmap(mapping)
        check_step(mount.path / STEP, wanted)
    mount.remount()
    check_step(mount.path / STEP, wanted)


def test_a_link_outside_stays_a_live_file(mount):
    wanted = complete_step(mount)
    name = "mp_rank_00_model_states.pt"
    os.link(mount.path / STEP / name, mount.path / "outside")
    os.link(mount.path / STEP / SAVED, mount.path / "outside.swp")
    mount.seal(STEP)
    with opened(mount.path / "outside", os.O_RDWR) as file:
        os.pwrite(file, b"written outside", 0)
        os.ftruncate(file, 20)
    check_step(mount.path / STEP, wanted)
    equal(len(read(mount.path / "outside")), 20, "the outside file")
    same_bytes(read(mount.path / "outside.swp"), wanted[SAVED], "a frozen one, linked")
    with raises(errno.EPERM):
        os.open(mount.path / "outside.swp", os.O_WRONLY)
    os.unlink(mount.path / "outside.swp")
    mount.remount()
    check_step(mount.path / STEP, wanted)


def test_a_link_out_of_a_sealed_step(mount):
    wanted = complete_step(mount)
    mount.seal(STEP)
    try:
        os.link(mount.path / STEP / SAVED, mount.path / "link")
    except OSError as problem:
        equal(problem.errno, errno.EPERM, "the refusal")
    else:
        with raises(errno.EPERM):
            os.open(mount.path / "link", os.O_WRONLY)
    check_step(mount.path / STEP, wanted)


def test_copies_of_a_sealed_step_are_free(mount):
    wanted = complete_step(mount)
    mount.seal(STEP)
    run("cp", "-r", mount.path / STEP, mount.path / "branch")
    for name in wanted:
        with opened(mount.path / "branch" / name, os.O_RDWR) as file:
            os.pwrite(file, b"changed", 100)
        same_bytes(read(mount.path / "branch" / name), wanted[name][:100] + b"changed" + wanted[name][107:], name)
    check_step(mount.path / STEP, wanted)


def test_what_is_no_step_is_not_sealed(mount):
    (mount.path / "work").mkdir()
    (mount.path / "steps/runs").mkdir()
    write(mount.path / "steps/runs/notes.txt", b"x")
    for path in (".", "steps", "work", "steps/runs"):
        with raises(errno.EINVAL, errno.EOPNOTSUPP, what=path):
            mount.seal(path)
