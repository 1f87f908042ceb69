"""The rule `set_aside`: what a killed training left half done is not found under its name again. In both open modes at
level long."""

import contextlib
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest

from checking import equal, fork_off, in_child, opened, raises, true, wait_for_end, write
from hugging import safetensors
from mounting import CKPTFS, CKPTFS_DEBUG, Mount, Store, abandon, mounted, run, wait_until

pytestmark = pytest.mark.one_mode

SERIES = "runs/a"
WEIGHTS = safetensors({"w": ("F32", [4], bytes(16))})
TRAINERS = ("config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "rng_state.pth")  # in that order
REMOVED_LAST_FIRST = ("trainer_state.json", *reversed(TRAINERS))


@contextlib.contextmanager
def mounted_with_rule(request, disk, work, mode, **options):
    name = f"{mode}-{''.join(c if c.isalnum() else '-' for c in request.node.name)}"[:80]
    with mounted(Store(disk / name), work / name, mode=mode, **options) as mount:
        (mount.path / SERIES).mkdir(parents=True)
        mount.control(SERIES, "set_aside", "1")
        yield mount
    mount.store.fsck(mount.binary)
    shutil.rmtree(mount.store.folder)  # all stores of this file lie on one small disk


@pytest.fixture
def mount(request, disk, work, mode):
    """A mount with a series that has the rule. The quiet time is 0, so that a young process counts as a training."""
    with mounted_with_rule(request, disk, work, mode) as mount:
        yield mount


@pytest.fixture
def calm(request, disk, work, mode):
    """Likewise. Rotation's rounds are seconds apart, so that lookups come before them. All processes count as old."""
    with mounted_with_rule(request, disk, work, mode, options=("quiet=1h",), faults="since_boot=1000000000") as mount:
        yield mount


@pytest.fixture
def slow(request, disk, work, mode):
    """Likewise, and processes have the age that they have."""
    with mounted_with_rule(request, disk, work, mode, options=("quiet=1h",)) as mount:
        yield mount


class Writer:
    """A program that does something and then lives until it is killed; what it opened stays open."""

    def __init__(self, work, uid=None):
        reader, told = os.pipe()

        def act():
            os.write(told, f"{os.getpid()}\n".encode())
            if uid is not None:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
            work()
            os.write(told, b"done\n")
            os.close(told)
            while True:
                signal.pause()

        fork_off(act)
        os.close(told)
        with os.fdopen(reader) as said:
            self.pid = int(said.readline())
            equal(said.readline(), "done\n", "the writer's work")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            wait_for_end(self.pid)
        self.pid = 0


def killed(work, **options):
    with Writer(work, **options):
        pass


def write_step(step, last=True):
    """As a Trainer writes one."""
    step.mkdir()
    for name in TRAINERS:
        write(step / name, WEIGHTS if name.endswith("safetensors") else b"{}")
    if last:
        write(step / "trainer_state.json", json.dumps({"global_step": 1, "log_history": []}).encode())


def open_half(path):
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.write(file, WEIGHTS[:20])


def names(mount):
    return sorted(os.listdir(mount.path / SERIES))


def listed(mount):
    return {row["tag"]: row for row in json.loads(run(CKPTFS, "ls", "--json", mount.path / SERIES).stdout)["steps"]}


def begin_without_file(step):
    step.mkdir()


def begin_with_its_config(step):
    step.mkdir()
    write(step / "config.json", b"{}")


def begin_a_file(step):
    step.mkdir()
    write(step / "config.json", b"{}")
    open_half(step / "model.safetensors")


def begin_between_files(step):
    write_step(step, last=False)


def begin_last_file(step):
    write_step(step, last=False)
    file = os.open(step / "trainer_state.json", os.O_WRONLY | os.O_CREAT)
    os.write(file, b'{"global_st')


MOMENTS = {"no file": begin_without_file, "config": begin_with_its_config, "a file": begin_a_file,
           "between files": begin_between_files, "last file": begin_last_file}


@pytest.mark.builds("faults")
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_in_a_save(calm, moment):
    """A listing that comes at once, and then a lookup, of a step each."""
    mount = calm
    series = mount.path / SERIES
    killed(lambda: write_step(series / "checkpoint-1"))
    killed(lambda: MOMENTS[moment](series / "checkpoint-2"))
    equal(names(mount), ["checkpoint-1", "incomplete-checkpoint-2"], "a listing")
    killed(lambda: MOMENTS[moment](series / "checkpoint-3"))
    true(not os.path.exists(series / "checkpoint-3"), "a lookup finds it")
    equal(names(mount), ["checkpoint-1", "incomplete-checkpoint-2", "incomplete-checkpoint-3"], "all")
    row = listed(mount)["incomplete-checkpoint-2"]
    equal((row["state"], row["number"]), ("incomplete", 2), "ls")
    true(row["reason"].startswith("it was set aside: "), f"its reason: {row['reason']}")
    equal(mount.status()["rotation"]["set_aside"], 2, "steps set aside, by status")
    true("checkpoint-2 is set aside as incomplete-checkpoint-2" in mount.read_log(), "the log says it")
    write_step(series / "checkpoint-2")
    mount.remount()
    equal(names(mount), ["checkpoint-1", "checkpoint-2", "incomplete-checkpoint-2", "incomplete-checkpoint-3"], "later")


@pytest.mark.builds("faults")
@pytest.mark.parametrize("order, removed", ((REMOVED_LAST_FIRST, 1), (REMOVED_LAST_FIRST, 3), (REMOVED_LAST_FIRST, 6),
                                            (sorted(REMOVED_LAST_FIRST), 2), (sorted(REMOVED_LAST_FIRST), 4)))
def test_killed_in_a_removal(calm, order, removed):
    """A trainer with save_total_limit removes a step that was complete; its folder is left, and some of its files."""
    mount = calm
    series = mount.path / SERIES

    def remove_some():
        for name in order[:removed]:
            os.unlink(series / "checkpoint-1" / name)

    for number in (1, 2):
        killed(lambda: write_step(series / f"checkpoint-{number}"))
    equal(names(mount), ["checkpoint-1", "checkpoint-2"], "before")
    with Writer(remove_some):
        equal(names(mount), ["checkpoint-1", "checkpoint-2"], "while the process lives that removes it")
    left = set(order[removed:])
    model_alone = "model.safetensors" in left and left <= set(TRAINERS[:2])  # which could be meant so
    equal(names(mount), ["checkpoint-1", "checkpoint-2"] if model_alone else ["checkpoint-2", "incomplete-checkpoint-1"],
          "at its end")


@pytest.mark.parametrize("moment", ("no file", "config", "a file", "between files"))
def test_the_first_save_of_all(mount, moment):
    """Nothing beside it tells what its writer writes."""
    killed(lambda: MOMENTS[moment](mount.path / SERIES / "checkpoint-1"))
    equal(names(mount), ["incomplete-checkpoint-1"], "the series")


def test_filled_by_commands(slow):
    """mkdir and cp, one after the other: while the next one may follow, the step keeps its name."""
    step = slow.path / SERIES / "checkpoint-1"
    write(slow.path / "file", WEIGHTS)
    run("mkdir", step)
    for name in TRAINERS:
        equal(names(slow), ["checkpoint-1"], f"before cp {name}")
        run("cp", slow.path / "file", step / name)
        true((step / name).exists(), f"after cp {name}")
    slow.remount()
    equal(names(slow), ["checkpoint-1"], "after a new mount")
    with Writer(lambda: write(slow.path / SERIES / "checkpoint-1" / "more", b"x")):
        pass
    equal(names(slow), ["checkpoint-1"], "and after another one")


def test_forks_of_a_program(slow):
    """Megatron forks for each file. A fork that has just begun is no command: its program has more to write."""
    program = ("import os,sys,time\ntime.sleep(2.2)\nif os.fork() == 0:\n    os.mkdir(sys.argv[1])\n    os._exit(0)\n"
               "os.wait()\nprint(flush=True)\nsys.stdin.read()\n")
    step = slow.path / SERIES / "checkpoint-1"
    with subprocess.Popen([sys.executable, "-c", program, step], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        trainer.stdout.readline()
        equal(names(slow), ["checkpoint-1"], "while the program lives")
        trainer.kill()
    equal(names(slow), ["incomplete-checkpoint-1"], "when it has ended")


def test_commands_that_nobody_continues(mount):
    """After the quiet time, which is 0 here."""
    run("mkdir", mount.path / SERIES / "checkpoint-1")
    wait_until("it is set aside", lambda: names(mount) == ["incomplete-checkpoint-1"])


def test_a_copy_between_two_files(mount):
    """Whoever copies a whole step has a folder of it open, and no file between two."""
    step = mount.path / SERIES / "checkpoint-1"
    with Writer(lambda: begin_between_files(step)) as writer:
        with os.scandir(step) as copy:
            next(copy)
            writer.kill()
            equal(names(mount), ["checkpoint-1"], "while it is copied")
    wait_until("it is set aside", lambda: names(mount) == ["incomplete-checkpoint-1"])


def test_it_stays_while_a_writer_lives(mount):
    series = mount.path / SERIES
    with Writer(lambda: begin_between_files(series / "checkpoint-1")):
        with Writer(lambda: write(series / "checkpoint-1" / "rng_state_1.pth", b"rank 1")):
            equal(names(mount), ["checkpoint-1"], "while both ranks live")
        equal(names(mount), ["checkpoint-1"], "while one lives")
        true((series / "checkpoint-1" / "config.json").exists(), "and is found")
    equal(names(mount), ["incomplete-checkpoint-1"], "when both have ended")


def test_who_moves_files_into_it_writes(mount):
    series = mount.path / SERIES
    for name in ("file", "other"):
        write(mount.path / name, b"rank 1")
    for move, name in ((os.rename, "file"), (os.link, "other")):
        with Writer(lambda: os.mkdir(series / "checkpoint-4")) as first:
            with Writer(lambda: move(mount.path / name, series / "checkpoint-4" / "training_args.bin")):
                first.kill()
                equal(names(mount)[0], "checkpoint-4", f"{move.__name__}: while one lives")
        true("checkpoint-4" not in names(mount), f"{move.__name__}: at its end")


def test_saved_by_the_mount(mount):
    """`save` wrote it whole. What a program that was killed wrote beside tells nothing."""
    swap = mount.path / "zero_stage_3" / "optimizer" / "rank0"
    swap.mkdir(parents=True)
    write(swap / "0_1.tensor.swp", bytes(1 << 16))
    mount.save("global_step7", SERIES)
    killed(lambda: write(mount.path / SERIES / "global_step7" / "notes.txt", b"x"))
    equal(names(mount), ["global_step7"], "the series")


def test_workers_that_live_on(mount):
    """Children that wrote nothing, and have nothing open, do not count."""
    series = mount.path / SERIES
    reader, child = os.pipe()

    def work():
        if os.fork() == 0:
            os.write(child, str(os.getpid()).encode())
            while True:
                signal.pause()
        begin_between_files(series / "checkpoint-1")

    killed(work)
    orphan = int(os.read(reader, 20))
    try:
        equal(names(mount), ["incomplete-checkpoint-1"], "the series")
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_what_is_open_stays(mount):
    """Also if it is open for reading only, by whomever."""
    series = mount.path / SERIES
    with Writer(lambda: begin_between_files(series / "checkpoint-1")) as writer:
        with opened(series / "checkpoint-1" / "config.json", os.O_RDONLY):
            writer.kill()
            equal(names(mount), ["checkpoint-1"], "while a file is open")
            true("a file or a folder of it is open" in mount.read_log(), "the log says why")
    wait_until("it is set aside", lambda: names(mount) == ["incomplete-checkpoint-1"])


def test_the_daemon_was_killed_too(mount):
    """Who wrote is known to the next daemon, also if a writer lives on."""
    series = mount.path / SERIES
    killed(lambda: begin_without_file(series / "checkpoint-2"))
    killed(lambda: begin_between_files(series / "checkpoint-3"))
    with Writer(lambda: begin_between_files(series / "checkpoint-4")):
        mount.kill()
        mount.start()
        equal(names(mount), ["checkpoint-4", "incomplete-checkpoint-2", "incomplete-checkpoint-3"], "after a new mount")
    equal(names(mount), ["incomplete-checkpoint-2", "incomplete-checkpoint-3", "incomplete-checkpoint-4"], "at its end")


@pytest.mark.builds("faults")
@pytest.mark.parametrize("ahead", (-86400, 86400))
def test_the_wall_clock_jumps(calm, ahead):
    """Whether a process has ended does not depend on it."""
    mount = calm
    series = mount.path / SERIES
    write_step(series / "checkpoint-1")
    killed(lambda: begin_between_files(series / "checkpoint-2"))
    with Writer(lambda: begin_between_files(series / "checkpoint-3")):
        mount.kill()
        mount.faults += f";clock_ahead={ahead}"
        mount.start()
        killed(lambda: begin_between_files(series / "checkpoint-4"))
        with Writer(lambda: begin_between_files(series / "checkpoint-5")):
            made = os.stat(series / "checkpoint-5").st_mtime
            true(abs(made - time.time() - ahead) < 3600, f"the mount's clock has jumped: {made}")
            equal(names(mount), ["checkpoint-1", "checkpoint-3", "checkpoint-5", "incomplete-checkpoint-2",
                                 "incomplete-checkpoint-4"], "after the jump")
    equal(names(mount), ["checkpoint-1", *(f"incomplete-checkpoint-{number}" for number in range(2, 6))], "at the end")


def test_names_that_are_taken(mount):
    series = mount.path / SERIES
    for wanted in ("incomplete-checkpoint-5", "incomplete-2-checkpoint-5", "incomplete-3-checkpoint-5"):
        killed(lambda: begin_between_files(series / "checkpoint-5"))
        true(not (series / "checkpoint-5").exists(), f"before {wanted}")
        true((series / wanted).is_dir(), wanted)


def test_what_is_protected(mount):
    """Pinned; named by `latest`, since a trainer that did not find it would begin anew; sealed."""
    series = mount.path / SERIES

    def work():
        for number in (1, 2, 4):
            begin_between_files(series / f"checkpoint-{number}")
        write_step(series / "checkpoint-3")

    with Writer(work):
        mount.control(f"{SERIES}/checkpoint-1", "pin", "1")
        write(series / "latest", b"checkpoint-2")
        mount.seal(f"{SERIES}/checkpoint-4")
    left = ["checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-4", "latest"]
    equal(names(mount), left, "the series")
    log = mount.read_log()
    true("it is pinned" in log and "`latest` names it" in log, f"the log says why: {log}")
    mount.control(f"{SERIES}/checkpoint-1", "pin", "0")
    wait_until("what was pinned is set aside by a round", lambda: "incomplete-checkpoint-1" in names(mount), 30, 0.1)


def test_kinds_that_cannot_be_judged(mount):
    """A step that holds nothing of a kind that tells which files belong to it, and what is no step."""
    series = mount.path / SERIES

    def work():
        for name, file in (("step_5", "weights.bin"), ("checkpoint-6", "model.safetensors"), ("best", "trainer.txt")):
            (series / name).mkdir()
            write(series / name / file, WEIGHTS)

    killed(work)
    equal(names(mount), ["best", "checkpoint-6", "step_5"], "the series")
    true("its state cannot be told" in mount.read_log(), "the log says why")
    killed(lambda: write_step(series / "checkpoint-5"))
    killed(lambda: write(series / "checkpoint-6" / "more", b"x"))
    equal(names(mount), ["best", "checkpoint-5", "checkpoint-6", "step_5"], "beside a Trainer's step: a model may be meant so")
    killed(lambda: write(series / "checkpoint-6" / "optimizer.pt", b"x"))
    equal(names(mount), ["best", "checkpoint-5", "incomplete-checkpoint-6", "step_5"], "what is for a resume is not")


def write_model(step):
    """As a Trainer begins a checkpoint."""
    step.mkdir()
    for name in ("config.json", "model.safetensors"):
        write(step / name, WEIGHTS if name.endswith("safetensors") else b"{}")


@pytest.mark.builds("faults")
def test_a_model_of_who_saves_checkpoints(calm):
    """Under the Trainer's own name, and by a process that has saved one in full, it is the beginning of a checkpoint."""
    series = calm.path / SERIES

    def work():
        write_step(series / "checkpoint-1")
        for name in ("checkpoint-2", "step-3"):
            write_model(series / name)

    killed(work)
    killed(lambda: write_model(series / "checkpoint-4"))
    equal(names(calm), ["checkpoint-1", "checkpoint-4", "incomplete-checkpoint-2", "step-3"], "the series")


def test_another_users_steps_tell_nothing(mount):
    """A model alone, as `trainer.save_model` saves it, beside the checkpoints of somebody else's Trainer."""
    series = mount.path / SERIES
    os.chmod(series, 0o777)

    def work(name):
        write_model(series / name)
        write(series / name / "training_args.bin", b"x")

    killed(lambda: write_step(series / "checkpoint-1"))
    killed(lambda: work("checkpoint-10"), uid=12345)
    equal(in_child(lambda: names(mount), uid=12345), ["checkpoint-1", "checkpoint-10"], "the series, as its owner lists it")
    killed(lambda: work("checkpoint-11"))
    equal(names(mount), ["checkpoint-1", "checkpoint-10", "incomplete-checkpoint-11"], "beside one's own")


def test_a_step_in_a_step(mount):
    """A Trainer's with DeepSpeed's in it: the outer one is the step."""
    series = mount.path / SERIES

    def work():
        begin_between_files(series / "checkpoint-7")
        (series / "checkpoint-7" / "global_step7").mkdir()
        open_half(series / "checkpoint-7" / "global_step7" / "mp_rank_00_model_states.pt")

    with Writer(work):
        with Writer(lambda: open_half(series / "checkpoint-7" / "global_step7" / "rank1.pt")):
            pass
        equal(names(mount), ["checkpoint-7"], "while one lives")
    equal(names(mount), ["incomplete-checkpoint-7"], "the series")
    equal(os.path.isdir(series / "incomplete-checkpoint-7" / "global_step7"), True, "the inner one")


def test_deepspeed(mount):
    series = mount.path / SERIES

    def work():
        (series / "global_step5").mkdir()
        open_half(series / "global_step5" / "mp_rank_00_optim_states.pt")

    killed(work)
    equal(names(mount), ["incomplete-global_step5"], "the series")


@pytest.mark.builds("faults")
def test_only_what_the_setter_could_rename(calm):
    """And no user waits for another one's steps: they are answered before, and rounds do the rest."""
    mount = calm
    shared = mount.path / "shared"
    shared.mkdir(mode=0o777)
    os.chmod(shared, 0o777 | stat.S_ISVTX)
    mount.control("shared", "set_aside", "1")
    killed(lambda: begin_between_files(shared / "checkpoint-1"), uid=12345)
    equal(in_child(lambda: sorted(os.listdir(shared)), uid=12346), ["checkpoint-1"], "another user's listing")
    equal(in_child(lambda: sorted(os.listdir(shared)), uid=12345), ["incomplete-checkpoint-1"], "the owner's")
    own = mount.path / "own"
    own.mkdir()
    os.chmod(own, 0o777)
    in_child(lambda: os.setxattr(own, "user.ckptfs.set_aside", b"1"), uid=12345)
    killed(lambda: begin_between_files(own / "checkpoint-1"))
    equal(sorted(os.listdir(own)), ["checkpoint-1"], "root's step, by a user's rule")
    true("could not remove it by hand" in mount.read_log(), "the log says why")


def test_more_than_anybody_has(mount):
    """Of one user so many are kept in mind. The others stay, and nobody waits for them."""
    series, most = mount.path / SERIES, 1024

    def work():
        for number in range(most + 20):
            (series / f"checkpoint-{number}").mkdir()

    killed(work)
    aside = [name for name in names(mount) if name.startswith("incomplete-")]
    equal(len(aside), most, "set aside")


def test_by_hand(mount):
    """Who gives it its old name back is not overruled; keep_partial removes it; the rule can be taken away."""
    series = mount.path / SERIES
    with raises(errno.EINVAL, what="another value"):
        mount.control(SERIES, "set_aside", "2")
    with raises(errno.EINVAL, what="a tag of that form"):
        mount.save("incomplete-x")
    killed(lambda: begin_between_files(series / "checkpoint-1"))
    equal(names(mount), ["incomplete-checkpoint-1"], "set aside")
    run("mv", series / "incomplete-checkpoint-1", series / "checkpoint-1")
    equal(names(mount), ["checkpoint-1"], "renamed by hand")
    mount.remount()
    equal(names(mount), ["checkpoint-1"], "after a new mount")
    os.removexattr(series, "user.ckptfs.set_aside")
    killed(lambda: begin_between_files(series / "checkpoint-2"))
    equal(names(mount), ["checkpoint-1", "checkpoint-2"], "without the rule")


def test_keep_partial_removes_it(disk, work, mode):
    with mounted(Store(disk / f"{mode}-keep"), work / f"{mode}-keep", mode=mode) as mount:
        series = mount.path / SERIES
        series.mkdir(parents=True)
        mount.control(SERIES, "set_aside", "1")
        mount.control(SERIES, "keep_partial", "1s")
        killed(lambda: begin_between_files(series / "checkpoint-1"))
        equal(names(mount), ["incomplete-checkpoint-1"], "set aside")
        # A step that rotation sees later than a complete one stays.
        seen = mount.status()["rotation"]["rounds"] + 2
        wait_until("rotation has seen it", lambda: mount.status()["rotation"]["rounds"] >= seen)
        write_step(series / "checkpoint-2")
        wait_until("keep_partial removes it", lambda: names(mount) == ["checkpoint-2"], 60, 0.1)


def test_keep_partial_leaves_a_model(disk, work, mode):
    """That it was set aside is no proof that nobody wants it."""
    with mounted(Store(disk / f"{mode}-model"), work / f"{mode}-model", mode=mode) as mount:
        series = mount.path / SERIES
        series.mkdir(parents=True)
        for rule, value in (("set_aside", "1"), ("keep_partial", "1s")):
            mount.control(SERIES, rule, value)

        def saves():
            time.sleep(2.2)  # else it is a command
            write_step(series / "checkpoint-1")
            write_model(series / "checkpoint-2")
            begin_a_file(series / "checkpoint-3")

        killed(saves)
        equal(names(mount), ["checkpoint-1", "incomplete-checkpoint-2", "incomplete-checkpoint-3"], "set aside")
        mount.wait_for_rounds(2)
        write_step(series / "checkpoint-4")
        left = ["checkpoint-1", "checkpoint-4", "incomplete-checkpoint-2"]
        wait_until("keep_partial removes what is cut off", lambda: names(mount) == left, 60, 0.1)
        mount.wait_for_rounds(2)
        equal(names(mount), left, "the series")


@pytest.mark.builds("faults")
def test_of_another_boot_or_container(disk, work, mode):
    """Nothing outlives a boot. A process of a namespace below the daemon's is one like any other."""
    mount = Mount(Store(disk / f"{mode}-boot"), work / f"mnt-{mode}-boot", mode=mode, faults="boot_id=before")
    try:
        mount.start()
        step = mount.path / SERIES / "checkpoint-1"
        step.parent.mkdir(parents=True)
        mount.control(SERIES, "set_aside", "1")
        # A process of a namespace above the daemon's would look so.
        run("unshare", "--pid", "--fork", "--mount-proc", "mkdir", step)
        equal(names(mount), ["incomplete-checkpoint-1"], "made in a container")
        with Writer(lambda: begin_between_files(step)):
            mount.kill()
            mount.faults = "boot_id=after"
            mount.start()
            equal(names(mount), ["incomplete-2-checkpoint-1", "incomplete-checkpoint-1"], "after another boot")
        mount.stop()
        mount.store.fsck(CKPTFS_DEBUG)
    finally:
        abandon(mount)


@pytest.mark.builds("faults")
def test_killed_between_rename_and_sync(disk, work, mode):
    mount = Mount(Store(disk / f"{mode}-sync"), work / f"mnt-{mode}-sync", mode=mode, binary=CKPTFS_DEBUG)
    try:
        mount.start()
        series = mount.path / SERIES
        series.mkdir(parents=True)
        mount.control(SERIES, "set_aside", "1")
        mount.stop()
        mount.faults = "set_aside.after_rename=kill"
        mount.start()
        killed(lambda: begin_between_files(series / "checkpoint-1"))
        with contextlib.suppress(OSError):
            os.listdir(series)
        wait_until("the daemon dies", lambda: not mount.alive(), 20)
        mount.faults = None
        mount.start()
        equal(names(mount), ["incomplete-checkpoint-1"], "after a new mount")
        equal(listed(mount)["incomplete-checkpoint-1"]["state"], "incomplete", "its state")
        mount.stop()
        mount.store.fsck(CKPTFS_DEBUG)
    finally:
        abandon(mount)
