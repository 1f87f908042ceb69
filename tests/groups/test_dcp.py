"""torch's DCP through ckptfs.dcp, by real groups of ranks: what was saved is loaded, by any number of ranks."""

import dataclasses
import os
import pathlib
import subprocess
import time

import pytest

from acting import HERE, SECONDS_TO_AN_ERROR, Ranks, said
from checking import equal, true
from harness import environment, python
from mounting import REPOSITORY

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(600),
              pytest.mark.usefixtures("venv"), pytest.mark.one_mode]

GROUP = Ranks("dcp_ranks.py")


@dataclasses.dataclass(frozen=True)
class Case:
    """`saved` and `loaded`: numbers of ranks."""

    saved: int
    loaded: int

    def __str__(self):
        return f"{self.saved} to {self.loaded}"


CASES = [Case(4, 2), *(pytest.param(Case(*pair), marks=pytest.mark.long)
                       for pair in ((1, 3), (2, 4), (3, 1), (2, 8), (8, 3)))]


def judge(series, scratch, case):
    def act(name, step, **options):
        return {"act": name, "to" if name == "save" else "of": str(series / step), **options}

    wide = "square" if case.saved % 2 == 0 else "flat"
    truth = GROUP.do(case.saved, [act("save", "step_1", layout="flat", seed=1),
                            act("save", "step_2", layout=wide, seed=2, how="thread"),
                            act("save", "step_3", layout=wide, seed=3, writer="torch"),
                            act("save", "step_4", layout=wide, seed=4, how="with a cached plan")], scratch / "saved")
    steps = [f"step_{number}" for number in (1, 2, 3, 4)]
    wide = "square" if case.loaded % 2 == 0 else "flat"
    acts = [act("load", step, layout=layout, reader=reader)
            for step in steps for layout, reader in ((wide, "ours"), ("flat", "ours"), ("flat", "torch"))]
    loaded = GROUP.do(case.loaded, acts + [act("load_alone", step) for step in steps], scratch / "loaded")
    for done, values in zip(acts, loaded):
        equal(values, truth[steps.index(pathlib.Path(done["of"]).name)], f"{case}: {done}")
    for step, wanted, values in zip(steps, truth, loaded[len(acts):], strict=True):
        equal(values, as_views_name(wanted), f"{case}: {step} by ckptfs.load")


def as_views_name(digests):
    """The tensors, by the names that ckptfs.load gives them."""
    named = {}
    for path, value in digests.items():
        part, *rest = path.strip("/").split("/")
        if value.startswith("torch."):
            named["/".join(rest[part == "optim":]) if part != "dice" else "dice/value"] = value
    return named


def judge_files(step, ranks):
    files = sorted(os.listdir(step))
    equal(files, [".metadata", *(f"__{rank}_0.distcp" for rank in range(ranks)),
                  *(f"ckptfs.rank{rank:02d}.json" for rank in range(ranks))], f"files of {step}")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_a_mount(mount, scratch, case):
    series = mount.path / "steps"
    judge(series, scratch, case)
    judge_files(series / "step_1", case.saved)
    states = {path.name: mount.ask(f"steps/{path.name}", "state") for path in series.iterdir()}
    equal(states, {name: "complete" if name == "step_3" else "sealed" for name in states}, "states of the steps")
    equal(sorted(states), ["step_1", "step_2", "step_3", "step_4", "step_4-before", "step_4-then"], "steps")


@pytest.mark.parametrize("case", [pytest.param(Case(2, 3), marks=pytest.mark.long)], ids=str)
def test_in_a_folder(disk, scratch, case):
    series = disk / "runs" / "plain"  # the Writer makes it
    judge(series, scratch, case)
    judge_files(series / "step_1", case.saved)
    equal(sorted(os.listdir(series)), ["step_1", "step_2", "step_3", "step_4", "step_4-before", "step_4-then"], "steps")


@pytest.mark.long
def test_saved_by_processes_beside(mount, scratch):
    """dcp.async_save's process gets the Writer pickled. Beside that: a rank that has nothing to write."""
    step, one = str(mount.path / "steps" / "step_1"), str(mount.path / "steps" / "step_2")
    truth, files = GROUP.do(2, [{"act": "save", "to": step, "layout": "flat", "seed": 1, "how": "process"},
                          {"act": "save_one", "to": one}], scratch / "saved")
    equal(len([name for name in files if name.endswith(".distcp")]), 1, f"files with tensors, of {files}")
    loaded, = GROUP.do(1, [{"act": "load", "of": step, "layout": "flat", "reader": "torch"}], scratch / "loaded")
    equal(loaded, truth, "tensors")
    equal(mount.ask("steps/step_1", "state"), "sealed", "state")


@pytest.mark.long
def test_a_rank_fails(mount, scratch):
    """All are told why, there is no step, and the next save of that name works. A sealed step is refused."""
    series = mount.path / "steps"
    step = str(series / "step_1")
    failed, saved, refused = GROUP.do(2, [{"act": "fail", "to": step, "rank": 1},
                                    {"act": "save", "to": step, "layout": "flat", "seed": 1},
                                    {"act": "refuse", "to": step}], scratch / "out")
    true("this rank has no memory left" in failed["error"], failed["error"])
    equal([name for name in failed["listed"] if not name.startswith("partial-")], [], "steps after the failure")
    true(saved, "nothing was saved")
    true("the step is sealed" in refused, refused)
    equal(mount.ask("steps/step_1", "state"), "sealed", "state")


DEATHS = [(1, "write_data", "before"), (0, "finish", "before"),
          *(pytest.param(*death, marks=pytest.mark.long) for death in ((1, "write_data", "after"),
                                                                               (0, "write_data", "after")))]


@pytest.mark.parametrize("rank, call, when", DEATHS)
def test_a_rank_is_killed(mount, scratch, rank, call, when):
    """There is no step. The others get an error, and do not hang."""
    series, out = mount.path / "steps", scratch / "out"
    acts = [{"act": "save", "to": str(series / "step_1"), "layout": "flat", "seed": 1},
            {"act": "die", "to": str(series / "step_2"), "rank": rank, "call": call, "when": when}]
    with GROUP.running(3, acts, out) as processes:
        processes[rank].wait(SECONDS_TO_AN_ERROR + 60)
        end = time.monotonic() + SECONDS_TO_AN_ERROR
        for survivor in (number for number in range(3) if number != rank):
            equal(processes[survivor].wait(max(0, end - time.monotonic())), 0, f"how rank {survivor} ended")
            told = said(out, survivor)[1]
            true(told["error"], f"rank {survivor} was told nothing")
            print(f"rank {survivor} had its error {SECONDS_TO_AN_ERROR - end + time.monotonic():.1f} s after the death")
            equal([name for name in told["listed"] if not name.startswith("partial-")], ["step_1"], "steps")
    equal([path.name for path in series.glob("step_*")], ["step_1"], "steps")


def run_python(mount, program):
    """Runs a program that has /ckpt in it where the mount is."""
    done = subprocess.run([python(), "-W", "ignore", "-c", program.replace("/ckpt/", f"{mount.path}/")],
                          capture_output=True, text=True, timeout=120, check=False,
                          env=environment())
    equal((done.returncode, done.stdout.strip()), (0, "through"), done.stderr[-3000:])


@pytest.mark.long
def test_one_process(mount):
    run_python(mount, (HERE / "dcp_alone.py").read_text())


BEFORE = """
import torch
state = {"model": torch.nn.Linear(300, 200).state_dict(), "epoch": 3}
wanted = {name: tensor.clone() for name, tensor in state["model"].items()}
"""
AFTER = """
assert all(torch.equal(state["model"][name], wanted[name]) for name in wanted) and state["epoch"] == 3
import torch.distributed.checkpoint as dist_cp
dist_cp.save(state, storage_writer=dist_cp.FileSystemWriter("/ckpt/steps/step_400", single_file_per_rank=True))
dist_cp.save(state, checkpoint_id="/ckpt/steps/step_500")
import os
assert all("ckptfs.rank00.json" in os.listdir(f"/ckpt/steps/step_{number}") for number in (300, 400, 500))
state["model"]["weight"].zero_()
dist_cp.load(state, checkpoint_id="/ckpt/steps/step_500")
assert torch.equal(state["model"]["weight"], wanted["weight"])
assert isinstance(dist_cp.FileSystemReader("x"), ckptfs.dcp.Reader)
print("through")
"""


@pytest.mark.long
def test_what_the_guide_says(mount):
    """docs/loading.md, as it stands there."""
    section = (REPOSITORY / "docs" / "loading.md").read_text().split("## PyTorch DCP\n")[1].split("\n## ")[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    true(any("install()" in line for line in lines), f"lines of the section: {lines}")
    run_python(mount, BEFORE + "\n".join(lines) + AFTER)
