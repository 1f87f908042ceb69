"""A run of DeepSpeed that resumes without its optimizer's state is told of once: in the log and in status."""

import http.client
import shutil

import pytest

from checking import equal, true
from mounting import Store, mounted, run
from training import STAGE, write_state

# What DeepSpeed's load_checkpoint does with files: it reads its model's states, then copies the swap files over the live
# ones. A load that loses nothing reads the optimizer's states before that.
LOAD = """
import pathlib, shutil, sys
step, live, lossless = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["lossless"]
if lossless:
    next(step.rglob("*_optim_states.pt")).read_bytes()
next(step.rglob("*_model_states.pt")).read_bytes()
shutil.copytree(next(step.rglob("rank00")), live, dirs_exist_ok=True)
"""


def live(mount):
    return mount.path / STAGE / "optimizer" / "rank0"


def make_step(mount, folder="steps/global_step4"):
    """A step as DeepSpeed saves it, of the live swap files."""
    write_state(mount.path, ranks=1)
    step = mount.path / folder
    step.mkdir(parents=True)
    for name in ("zero_pp_rank_0_mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        (step / name).write_bytes(b"states")
    shutil.copytree(live(mount), step / "offloaded_tensors" / "rank00")
    if step.parent.name.startswith("checkpoint-"):
        (step.parent / "trainer_state.json").write_text('{"global_step": 1}')
    return step


def load(mount, step, *how):
    run("python3", "-c", LOAD, step, live(mount), *how)


def told(mount):
    return [warning for warning in mount.status()["warnings"] if "begins the optimizer anew" in warning]


def logged(mount):
    return sum("begins the optimizer anew" in line for line in mount.log.read_text().splitlines())


def counted(mount):
    connection = http.client.HTTPConnection(mount.status()["http"], timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return next(float(line.split()[1]) for line in lines if line.startswith("ckptfs_lossy_resumes_total "))


@pytest.mark.one_mode
def test_a_metric_counts_them(disk, work, mode):
    with mounted(Store(disk / "counted"), work / "counted", mode=mode, options=("http=127.0.0.1:0",)) as mount:
        step, other = make_step(mount), make_step(mount, "runs/checkpoint-8/global_step8")
        load(mount, step, "lossless")
        equal(counted(mount), 0, "a load that loses nothing")
        for one in (step, step, other):
            load(mount, one)
        equal(counted(mount), 2, "steps")


def test_a_lossy_resume_is_told_of_once(mount):
    step, other = make_step(mount), make_step(mount, "runs/checkpoint-8/global_step8")
    for _ in range(3):  # ranks, or runs
        load(mount, step)
    equal([warning.split(":")[0] for warning in told(mount)], ["/steps/global_step4"], "the steps that status names")
    true("python -m ckptfs.patch" in told(mount)[0], f"the way out: {told(mount)}")
    equal(logged(mount), 1, "lines in the log")
    load(mount, other)
    equal([warning.split(":")[0] for warning in told(mount)], ["/steps/global_step4", "/runs/checkpoint-8"], "both steps")


def test_a_resume_over_files_that_are_not_there_is_told_of(mount):
    step = make_step(mount)
    shutil.rmtree(live(mount))
    load(mount, step)
    equal(len(told(mount)), 1, f"warnings: {told(mount)}")


def test_nothing_else_is_told_of(mount):
    step = make_step(mount)
    load(mount, step, "lossless")
    run("cp", "-rT", step / "offloaded_tensors" / "rank00", live(mount))
    run("cp", "-r", step, mount.path / "copy")
    run("cp", "-r", step, mount.path / "steps" / "global_step5")
    write_state(mount.path, 1, ranks=1)
    equal((told(mount), logged(mount)), ([], 0), "what is told")
