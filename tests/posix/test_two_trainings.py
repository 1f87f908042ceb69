"""One step to which two trainings write in turns: it is of neither, and takes no other step's place."""

import os
import random
import subprocess
import sys

import pytest

from checking import equal, true
from mounting import run, wait_until
from hugging import safetensors
from rotating_series import SERIES, WEIGHTS, make_series, never, policy, stays
from savers import Pool, dcps, trainers
from viewing import torch_file

NAMES = ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json")


def operations(path, number, how="write", names=NAMES):
    """What a Trainer does to save a step, from the first of these files to the last."""
    folder = path / SERIES / f"checkpoint-{number}"
    files = dict(trainers(random.Random(4), number, 1.0)) | {"optimizer.pt": torch_file(b"moments")}
    return [("mkdir", folder)] + [(how, folder / name, files[name]) for name in names]


def last_step(mount):
    found = policy(mount)["steps"][-1]
    return found["state"], found["reason"]


def is_of_two(mount):
    mount.wait_for_rounds(2)
    state, reason = last_step(mount)
    equal(state, "unknown", "the state of what two trainings wrote")
    true("of another run: they may be of two saves" in reason, f"why: {reason}")


@pytest.mark.parametrize("how", ["write", "replace"])
def test_a_new_step_of_two_trainings_takes_no_place(mount, how):
    make_series(mount, keep_last=1)
    with Pool(2) as pool:
        one, other = pool.take(), pool.take()
        one.do(operations(mount.path, 10))
        stays(mount, {10})
        one.do(operations(mount.path, 20, names=NAMES[:2]))
        other.do(operations(mount.path, 20, how, NAMES[:2]))
        mount.kill()
        mount.start()
        one.do(operations(mount.path, 20, names=NAMES[2:]))
        never(mount, {10, 20})
        is_of_two(mount)
        mount.remount()
        is_of_two(mount)
        other.do(operations(mount.path, 20))
        stays(mount, {20}, "once one of them has saved all of it")
        one.do(operations(mount.path, 20, names=NAMES[2:]))  # it still takes the step for its own
        is_of_two(mount)
        mount.control(f"{SERIES}/checkpoint-20", "whole", "1")
        equal(last_step(mount)[0], "complete", "what the user calls whole")


@pytest.mark.one_mode
def test_a_training_that_was_overtaken_gives_a_step_no_metric(mount):
    make_series(mount, keep_last=1, keep_best="eval_loss:min:1")
    with Pool(2) as pool:
        one, other = pool.take(), pool.take()
        one.do(operations(mount.path, 20, names=NAMES[:3]))
        other.do(operations(mount.path, 20))
        mount.wait_for_rounds(3)
        equal(last_step(mount), ("complete", ""), "the step")
        one.do(operations(mount.path, 20, names=NAMES[3:]))
        mount.wait_for_rounds(3)
        true("another run has written trainer_state.json" in last_step(mount)[1], f"why: {policy(mount)}")


@pytest.mark.one_mode
@pytest.mark.parametrize("how", ["remove", "truncate"])
def test_who_removes_what_another_training_wrote_writes_it_again(mount, how):
    make_series(mount, keep_last=1)
    weights = mount.path / SERIES / "checkpoint-20/model.safetensors"
    with Pool(2) as pool:
        one, other = pool.take(), pool.take()
        one.do(operations(mount.path, 20, names=NAMES[:2]))
        other.do([(how, weights), ("write", weights, safetensors(WEIGHTS))])
        one.do(operations(mount.path, 20, names=NAMES[2:]))
        is_of_two(mount)


@pytest.mark.one_mode
def test_dcp_files_of_two_trainings_make_no_step(mount):
    """Whoever writes .metadata, which names them, may have written none of them."""
    make_series(mount, keep_last=1)
    folder = mount.path / SERIES / "step_20"
    begin = [("mkdir", folder)]
    *data, metadata = [("write", folder / name, content) for name, content in dcps(random.Random(4), 20, 1.0)]
    with Pool(2) as pool:
        one, other = pool.take(), pool.take()
        one.do(begin + data)
        other.do(begin + data)
        one.do([metadata])
        is_of_two(mount)
        other.do([metadata])
        wait_until("one of them has saved all of it", lambda: last_step(mount) == ("complete", ""))


@pytest.mark.one_mode
def test_a_file_that_is_moved_in_is_of_who_made_it(mount):
    make_series(mount, keep_last=1)
    _, *all_of_it = operations(mount.path, 20)
    with Pool(2) as pool:
        one, other = pool.take(), pool.take()
        one.do(operations(mount.path, 20, names=NAMES[:3]))
        for _, path, data in all_of_it[:2]:
            other.do([("write", mount.path / path.name, data), ("move", mount.path / path.name, path)])
        one.do(operations(mount.path, 20, names=NAMES[3:]))
        is_of_two(mount)


@pytest.mark.one_mode
def test_who_opens_a_file_and_writes_nothing_takes_nothing_over(mount):
    make_series(mount, keep_last=1)
    folder = mount.path / SERIES / "checkpoint-20"
    with Pool(2) as pool:
        one, other = pool.take(), pool.take()
        one.do(operations(mount.path, 20, names=NAMES[:3]))
        other.do([("look", folder / name) for name in NAMES[:3]])
        one.do(operations(mount.path, 20, names=NAMES[3:]))
        wait_until("it is whole", lambda: last_step(mount) == ("complete", ""))
        other.do([("look", folder / name) for name in NAMES])
        mount.wait_for_rounds(2)
        wait_until("it still is", lambda: last_step(mount) == ("complete", ""))


@pytest.mark.one_mode
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_processes_of_a_training_are_of_it(mount, start):
    """As one that writes in the background; also if they live longer than commands do (meta/steps/ledger.h)."""
    make_series(mount, keep_last=1)
    program = mount.store.folder.parent / "forks.py"
    program.write_text(FORKS)
    run(sys.executable, program, mount.path, start, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    mount.wait_for_rounds(2)
    equal(last_step(mount), ("complete", ""), "the step")


FORKS = """
import multiprocessing, pathlib, sys, time
from save_worker import perform
from test_two_trainings import NAMES, operations

def write(age, begin, end):
    time.sleep(age)
    for one in operations(pathlib.Path(sys.argv[1]), 20, names=NAMES[begin:end]):
        perform({}, *one)

if __name__ == "__main__":
    time.sleep(2.2)
    for work in ((0, 0, 3), (2.2, 0, 2), (2.2, 1, 2), (0, 3, 4)):
        process = multiprocessing.get_context(sys.argv[2]).Process(target=write, args=work)
        process.start()
        process.join()
        assert process.exitcode == 0
"""


@pytest.mark.one_mode
def test_a_training_that_was_started_again_saves_the_step_to_its_end(mount):
    make_series(mount, keep_last=1)
    with Pool(2) as pool:
        first = pool.take()
        first.do(operations(mount.path, 10))
        first.do(operations(mount.path, 20, names=NAMES[:3]))
        first.kill()
        pool.take().do(operations(mount.path, 20))
        stays(mount, {20})
        equal(last_step(mount), ("complete", ""), "the step")


@pytest.mark.one_mode
def test_ranks_of_one_training_write_a_step_together(mount):
    """Each has files of its own; of others only the notes are the same."""
    make_series(mount, keep_last=1)
    with Pool(2) as pool:
        one, other = pool.take(), pool.take()
        for number in (10, 20):
            one.do(operations(mount.path, number, names=NAMES[:2]))
            folder = mount.path / SERIES / f"checkpoint-{number}"
            for rank in (one, other):
                rank.do([("write", folder / "README.md", b"# A model\n")])
            other.do(operations(mount.path, number, names=NAMES[2:3]))
            one.do(operations(mount.path, number, names=NAMES[3:]))
            stays(mount, {number})


RANK = """
import pathlib, sys, time
from save_worker import perform
from test_two_trainings import NAMES, operations
time.sleep(2.2)  # until it is no command
for line in sys.stdin:
    begin, end = map(int, line.split())
    for one in operations(pathlib.Path(sys.argv[1]), 20, names=NAMES[begin:end]):
        perform({}, *one)
    print("saved", flush=True)
"""


@pytest.mark.one_mode
@pytest.mark.parametrize("launcher", ["MASTER_PORT RANK MASTER_ADDR", "SLURM_STEP_ID SLURM_PROCID SLURM_JOB_ID",
                                      "PMIX_NAMESPACE PMIX_RANK OTHER"])
def test_ranks_of_one_launch_may_all_write_the_same_files(mount, launcher):
    """As a script does that saves on each rank."""
    launch, rank, other = launcher.split()
    for launches, wanted in (("11", "complete"), ("12", "unknown")):
        make_series(mount, keep_last=1)
        ranks = []
        for number, of in enumerate(launches):
            environment = os.environ | {launch: of, rank: str(number), other: "7", "PYTHONPATH": os.pathsep.join(sys.path)}
            words = (sys.executable, "-c", RANK, mount.path)
            ranks.append(subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        # Of two launches they are of two runs, also if each writes its own files.
        for one, names in ((0, b"0 2\n"), (1, b"0 3\n" if wanted == "complete" else b"2 3\n"), (0, b"3 4\n")):
            ranks[one].stdin.write(names)
            ranks[one].stdin.flush()
            equal(ranks[one].stdout.readline(), b"saved\n", "what a rank says")
        wait_until(f"the step is {wanted}", lambda: last_step(mount)[0] == wanted)
        if wanted == "unknown":
            is_of_two(mount)
        for one in ranks:
            one.communicate()
        run("rm", "-r", mount.path / SERIES)
