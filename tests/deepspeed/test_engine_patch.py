"""What an engine does under ckptfs.patch: on a mount what ckptfs.deepspeed does, elsewhere what DeepSpeed does."""

import json
import os
import pathlib
import subprocess

import pytest

from checking import equal, true
from harness import RUN_TIMEOUT, Ckptfs, digest, environment, python, ranks_running, tree, wait_for_ranks
from mounting import Failure

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(1200)]

BEFORE, AFTER = 3, 2
IDS = "ckptfs.ds_ids.json"  # ckptfs.deepspeed leaves it in a step
UNKNOWN = "0.99.0"


def run_ranks(scene, name, *words, ranks=1, patched=True, plain=True, fails=False):
    """goes_on.py with the engine's own functions (plain) or ours; the results of the ranks and the log."""
    scene.number += 1
    out = scene.work / f"{scene.number}-{name}"
    given = ["--nvme", str(scene.point), "--width", "1024", "--out", str(out), *map(str, words)]
    given += ["--plain"] if plain else []
    log = out.with_suffix(".log")
    with open(log, "wb") as output:
        with ranks_running(ranks, given, output, patched=patched, script="goes_on.py") as processes:
            if fails:
                codes = [process.wait(RUN_TIMEOUT) for process in processes]
                true(all(codes), f"every rank fails: {codes}")
                return [], log.read_text(errors="replace")
            wait_for_ranks(processes, log)
    results = [json.loads(pathlib.Path(f"{out}.{rank}").read_text()) for rank in range(ranks)]
    for result in results:
        del result["cost"]  # no two runs have the same
    return results, log.read_text(errors="replace")


def first_run(scene, series, **options):
    series.mkdir(exist_ok=True)
    return run_ranks(scene, "first", "--steps", BEFORE, "--save", series, **options)


def content(folder):
    return {name: digest(folder / name) for name in tree(folder)}


def lossy(mount):
    return [warning for warning in mount.status()["warnings"] if "begins the optimizer anew" in warning]


@pytest.mark.long
def test_on_a_mount(scene):
    """load_checkpoint loses nothing, also without the scheduler, as Lightning calls it."""
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        first, _ = first_run(scene, series)
        true((series / f"global_step{BEFORE}" / IDS).exists(), "the save is that of ckptfs.deepspeed")
        equal((series / "latest").read_text(), f"global_step{BEFORE}", "latest")
        for how in ([], ["--without-scheduler"]):
            loaded, _ = run_ranks(scene, "loaded", "--steps", 0, "--resume", series, *how)
            equal(loaded[0]["first"], BEFORE, "the step that was resumed")
            wanted = first[0]["state"] | ({"scheduler": loaded[0]["state"]["scheduler"]} if how else {})
            equal(loaded[0]["state"], wanted, f"the state {how}")
        equal(lossy(mount), [], "what is told")


def test_latest_is_not_written_before_all_ranks_have_saved(scene):
    """DeepSpeed's own rank 0 writes it when its own files are there, if no parameter is gathered before."""
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        (series / f"global_step{BEFORE}" / "offloaded_tensors" / "rank01").mkdir(parents=True)  # so rank 1 cannot
        _, log = run_ranks(scene, "failing", "--steps", BEFORE, "--save", series, "--threshold", 0, ranks=2,
                           patched=False, plain=False, fails=True)
        true("FileExistsError" in log, log[-3000:])
        true(not (series / "latest").exists(), "latest names a step that lacks rank 1")


@pytest.mark.long
def test_an_unknown_version_is_refused_by_name(scene):
    """On every rank, before anything is changed; its save is DeepSpeed's own, and says so."""
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        _, log = first_run(scene, series, ranks=2)
        true("does not know DeepSpeed" not in log, "a version that is known")
        resume = ["--resume", series, "--pretend", UNKNOWN]
        _, log = run_ranks(scene, "refused", "--steps", AFTER, *resume, ranks=2, fails=True)
        true(f"NotSupported: DeepSpeed {UNKNOWN}" in log and "nothing was changed" in log, log[-3000:])
        true(f"CKPTFS_DEEPSPEED={UNKNOWN}" in log, "the way out")
        equal(lossy(mount), [], "no swap file was touched")
        other = mount.path / "other"
        _, log = run_ranks(scene, "unknown", "--steps", 1, "--save", other, "--pretend", UNKNOWN)
        equal(log.count(f"does not know DeepSpeed {UNKNOWN}"), 1, "the save says so")
        true((other / "latest").exists() and not (other / "global_step1" / IDS).exists(), "and is DeepSpeed's own")


@pytest.mark.long
def test_elsewhere_nothing_changes(scene):
    """The checkpoint does not lie on the mount: the engine saves, and loses, what it does without the patch."""
    with Ckptfs().place(scene):
        series = {patched: scene.work / f"elsewhere-{patched}" for patched in (False, True)}
        found = {}
        for patched, folder in series.items():
            first, _ = first_run(scene, folder, patched=patched)
            second, _ = run_ranks(scene, "second", "--steps", AFTER, "--resume", folder, patched=patched)
            found[patched] = (first, second, content(folder))
        for what, ours, plain in zip(("saved", "resumed", "files"), found[True], found[False], strict=True):
            equal(ours, plain, f"patched against unpatched: {what}")
        true(IDS not in str(found[True][2]), "a file of ckptfs.deepspeed")


SHOW = """
from deepspeed.runtime.engine import DeepSpeedEngine
print("patched:", hasattr(DeepSpeedEngine.load_checkpoint, "ckptfs"))
"""


@pytest.mark.long
@pytest.mark.parametrize("launcher", (["torchrun", "--nproc-per-node", "2"], ["accelerate", "launch", "--cpu"],
                                      ["deepspeed", "--num_gpus", "2"]), ids=lambda words: words[0])
def test_launchers(venv, scratch, launcher):
    """The ranks that a launcher starts are patched."""
    (scratch / "show.py").write_text(SHOW)
    words = [python(), "-m", "ckptfs.patch", *launcher, str(scratch / "show.py")]
    shared = dict(environment(), PET_MASTER_PORT="0", HOME=str(scratch))
    done = subprocess.run(words, env=shared, capture_output=True, text=True, timeout=RUN_TIMEOUT, check=False)
    if done.returncode != 0:
        raise Failure(f"{words} ended with {done.returncode}:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    true("patched: True" in done.stdout and "patched: False" not in done.stdout, done.stdout[-3000:])


def test_a_folder_is_no_script(venv, scratch):
    """In the working directory a folder has the name of the command."""
    (scratch / "python").mkdir()
    (scratch / "script").mkdir()
    (scratch / "script/__main__.py").write_text("print('as Python runs a folder')")
    shared = dict(environment(), PATH=f"{os.path.dirname(python())}:{os.environ['PATH']}")
    for words, told in ((["python", "-c", "print('as a shell does')"], "as a shell does"),
                        (["script"], "as Python runs a folder")):
        done = subprocess.run([python(), "-m", "ckptfs.patch", *words], env=shared, cwd=scratch, capture_output=True,
                              text=True, timeout=RUN_TIMEOUT, check=False)
        true(done.returncode == 0 and told in done.stdout, f"{words}: {done}")
