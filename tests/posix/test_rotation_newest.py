"""Rotation by xattrs: which steps are the newest, of whom, and what takes their place."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from checking import equal, opened, read, true, write
from hugging import safetensors
from mounting import CKPTFS, CKPTFS_DEBUG, run, wait_until
from rotating_series import SERIES, WEIGHTS, date, decisions, make_series, never, policy, stays, steps, write_step


@contextlib.contextmanager
def training(mount, step, act=""):
    """A process that has run too long to be a command, saves the step, and carries `act` out when it gets a line."""
    program = f"import shutil, sys, time; time.sleep(2.2); shutil.copytree(*sys.argv[1:3])\n{act}\nsys.stdin.read()"
    words = (sys.executable, "-c", program, write_step(mount, 1, series="elsewhere"), step)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def act_of(process):
    """Lets a training act. Returns the line that it prints."""
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.one_mode
def test_each_run_keeps_its_newest_step(mount):
    """Two trainings in one series: what one saves takes nothing from the other while that runs."""
    make_series(mount, keep_last=1)
    write_step(mount, 500)
    with training(mount, mount.path / SERIES / "checkpoint-1") as other:
        stays(mount, {1, 500})
        for number in (600, 700):
            write_step(mount, number)
            stays(mount, {1, number})
        equal(decisions(policy(mount))[1], (True, ["newest of its run"]), "why it stays")
        other.stdin.close()
    stays(mount, {700}, "once the other has ended")


@pytest.mark.builds("faults")
@pytest.mark.one_mode
def test_a_save_that_goes_on_after_it_was_looked_at(mount):
    """A second save has begun with a file that tells nothing; while the mount notes the step as whole, it writes more."""
    make_series(mount, keep_last=9)
    step = write_step(mount, 10)
    act = f"""
for name in ("config.json", "model.safetensors"):
    sys.stdin.readline()
    shutil.copyfile(f"{{sys.argv[1]}}/{{name}}", f"{step}/{{name}}")
    print(name, flush=True)
"""
    with training(mount, mount.path / SERIES / "checkpoint-20", act) as other:
        wait_until("both are complete", lambda: states(mount) == ["complete", "complete"])
        mount.wait_for_rounds(3)
        mount.stop()
        mount.binary, mount.faults = CKPTFS_DEBUG, "writers.before_whole=1:sleep:3000"
        mount.start()
        equal(act_of(other), "config.json", "what the second save writes")
        time.sleep(1)  # the mount has looked at the step, and is about to note it
        equal(act_of(other), "model.safetensors", "what it writes then")
        mount.wait_for_rounds(3)
        equal(mount.ask(f"{SERIES}/checkpoint-10", "state"), "unknown", "a step of two saves")


@pytest.mark.builds("faults")
@pytest.mark.one_mode
def test_a_metric_of_a_second_save_pushes_out_no_best_step(mount):
    """A second save writes its metric while the mount, which has seen the step as whole, is about to read that."""
    make_series(mount, keep_last=1, keep_every=20, keep_best="eval_loss:min:1")
    better = write_step(mount, 20, loss=0.5, series="other")
    act = f"sys.stdin.readline(); shutil.copyfile('{better}/trainer_state.json', '{mount.path / SERIES}/checkpoint-20/trainer_state.json')"
    with training(mount, mount.path / "spare" / "checkpoint-1", f"{act}; print('saved', flush=True)") as other:
        for number, loss in ((10, 1.0), (20, 5.0), (30, 6.0)):
            write_step(mount, number, loss=loss)
        stays(mount, {10, 20, 30}, "with the best one")
        mount.wait_for_rounds(3)
        mount.stop()
        mount.binary, mount.faults = CKPTFS_DEBUG, "facts.before_metric=2:sleep:3000"
        mount.start()
        time.sleep(1)
        equal(act_of(other), "saved", "what the second save does")
        mount.wait_for_rounds(3)
        stays(mount, {10, 20, 30}, "the best one still")
        reason = policy(mount)["steps"][1]["reason"]
        true("another run has written trainer_state.json" in reason, f"why its metric does not count: {reason}")
        mount.control(f"{SERIES}/checkpoint-20", "metric.eval_loss", "0.5")
        stays(mount, {20, 30}, "once the user has said what counts")


@pytest.mark.one_mode
def test_a_second_save_to_its_end_has_a_metric(mount):
    make_series(mount, keep_last=1, keep_best="eval_loss:min:1")
    better = write_step(mount, 10, loss=0.5, series="other")
    act = f"sys.stdin.readline(); shutil.copytree('{better}', '{mount.path / SERIES}/checkpoint-10', dirs_exist_ok=True)"
    with training(mount, mount.path / "spare" / "checkpoint-1", f"{act}; print('saved', flush=True)") as other:
        for number, loss in ((10, 5.0), (20, 1.0)):
            write_step(mount, number, loss=loss)
        stays(mount, {20})
        write_step(mount, 10, loss=5.0)
        mount.control(f"{SERIES}/checkpoint-10", "pin", "1")
        mount.wait_for_rounds(3)
        equal(act_of(other), "saved", "what the second save does")
        mount.wait_for_rounds(3)
        equal([(step["metric"], step["reason"]) for step in policy(mount)["steps"]], [(0.5, ""), (1.0, "")], "metrics")


@pytest.mark.one_mode
def test_a_run_that_evaluates_a_step_of_another_keeps_its_own(mount):
    """A training begins anew, so that its numbers are lower than those of the one before, and evaluates a step of that."""
    make_series(mount, keep_last=1)
    series = mount.path / SERIES
    before = series / "checkpoint-7"
    act = f"sys.stdin.readline(); open('{before}/eval_results.json', 'w').write('{{}}'); print('evaluated', flush=True)"
    with training(mount, series / "checkpoint-3", act) as other:
        stays(mount, {3})
        write_step(mount, 7)
        stays(mount, {3, 7})
        time.sleep(1.2)  # the kernel's times of files lag behind
        equal(act_of(other), "evaluated", "what the training does")
        stays(mount, {3, 7})
        for number in (17, 20):
            shutil.copytree(before, series / f"checkpoint-{number}")
        mount.wait_for_rounds(5)
        true(3 in steps(mount), f"what the training saved last: {decisions(policy(mount))}")
        other.stdin.close()
    wait_until("its own goes once it has ended", lambda: 3 not in steps(mount), 20, 0.05)


@pytest.mark.one_mode
def test_an_evaluation_makes_no_step_newer(mount):
    """A training that began anew has saved step 3 last. Results of step 7, which has the highest number, change nothing."""
    make_series(mount, keep_last=1)
    for number in (7, 3):
        write_step(mount, number)
    stays(mount, {3, 7})
    for name in ("eval_results.json", "README.md"):
        write(mount.path / SERIES / "checkpoint-7" / name, b"{}")
        never(mount, {3, 7})


@pytest.mark.one_mode
def test_thinning_makes_no_evaluated_step_newer(mount):
    make_series(mount)
    step = write_step(mount, 10, extra=4096)
    write_step(mount, 20)

    def completed():
        listed = json.loads(run(CKPTFS, "ls", "--json", mount.path / SERIES).stdout)["steps"]
        return next(one["completed"] for one in listed if one["tag"] == step.name)

    saved = completed()
    time.sleep(2.1)
    write(step / "eval_results.json", b"{}")
    wait_until("it is thinned", lambda: run(CKPTFS, "thin", step, check=False).returncode == 0)
    equal((completed(), (step / "optimizer.pt").exists()), (saved, False), "when it was saved")


@pytest.mark.one_mode
def test_who_is_refused_has_written_nothing(mount):
    """A training that cannot write to a sealed step has saved no newer one."""
    make_series(mount, keep_last=1)
    series = mount.path / SERIES
    sealed = write_step(mount, 500)
    act = ("sys.stdin.readline()\n"
           f"try: open('{sealed}/config.json', 'w')\nexcept PermissionError: print('refused', flush=True)")
    with training(mount, series / "checkpoint-1", act) as other:
        stays(mount, {1, 500})
        mount.control(f"{SERIES}/checkpoint-500", "seal", "1")
        equal(act_of(other), "refused", "what the training gets")
        never(mount, {1, 500})
        other.stdin.close()


def test_what_happens_to_an_old_step_removes_no_newer_one(mount):
    """An evaluation writes its results, a hub client its cache, a user moves and copies: the step that training saved
    last stays."""
    make_series(mount, keep_last=1, keep_best="eval_loss:min:1")
    series = mount.path / SERIES
    for number, loss in ((10, 1.0), (20, 3.0), (30, 2.0)):
        write_step(mount, number, loss, extra=4096)
    stays(mount, {10, 30})
    best = series / "checkpoint-10"

    def cached():
        (best / ".cache/huggingface").mkdir(parents=True)
        write(best / ".cache/huggingface/lock", b"")

    def moved():
        os.rename(best, series / "x")
        os.rename(series / "x", best)

    for act in (lambda: write(best / "eval_results.json", b"{}"),
                cached,
                lambda: os.utime(best),
                lambda: os.utime(best / "config.json"),
                lambda: os.chmod(best / "config.json", 0o600),
                lambda: os.setxattr(best / "config.json", "user.note", b"1"),
                lambda: os.unlink(best / "optimizer.pt") if (best / "optimizer.pt").exists() else None,
                lambda: run("cp", "-al", best, mount.path / "kept"),
                lambda: mount.control(f"{SERIES}/checkpoint-10", "metric.acc", "0.5"),
                moved,
                lambda: write(best / "merged.safetensors", safetensors(WEIGHTS))):
        act()
        never(mount, {10, 30})
    run("cp", "-r", best, series / "checkpoint-15")
    never(mount, {10, 15, 30})  # this process, which runs, wrote to 10 last
    write_step(mount, 40, 4.0)
    stays(mount, {15, 40}, "what training saves later takes its place")
    true("keep_best" in decisions(policy(mount))[15][1], "the copy is as good as the best, and newer")


@pytest.mark.one_mode
@pytest.mark.parametrize("lack", ["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors", "optimizer.pt"])
def test_a_step_that_lacks_a_part_pushes_out_no_whole_one(mount, lack):
    """As an interrupted download or a killed rm leaves it."""
    make_series(mount, keep_last=1, keep_partial="1s")
    for number in (1, 2, 3):
        step = write_step(mount, number, extra=4096)
        shards = [f"model-0000{shard}-of-00002.safetensors" for shard in (1, 2)]
        for shard in shards:
            write(step / shard, safetensors(WEIGHTS))
        write(step / "model.safetensors.index.json", json.dumps({"weight_map": {"v": shards[0], "w": shards[1]}}).encode())
        write(step / "scheduler.pt", b"")
        os.unlink(step / "model.safetensors")
        os.unlink(step / "scheduler.pt" if number < 3 else step / lack)
    stays(mount, {2, 3})
    time.sleep(1.2)
    never(mount, {2, 3})
    true(policy(mount)["steps"][-1]["state"] != "complete", f"the torso: {policy(mount)}")


@pytest.mark.one_mode
def test_a_second_save_that_died_half_way_is_none_to_keep(mount):
    """A run that starts again from an older step saves it once more, over the whole one."""
    make_series(mount, keep_last=1)
    step = write_step(mount, 1)
    wait_until("the step is known to be whole", lambda: states(mount) == ["complete"], 30, 0.1)
    mount.wait_for_rounds(2)
    for note in ("trainer_state.json", "eval_results.json"):
        with opened(step / note, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
            os.write(file, b"\n")
    wait_until("notes make no second save", lambda: states(mount) == ["complete"], 30, 0.1)
    mount.wait_for_rounds(2)
    date(step, 0)
    mount.wait_for_rounds(2)
    begin_second_save(step)
    write_step(mount, 2)
    stays(mount, {1, 2})
    equal(states(mount), ["unknown", "complete"], "states")
    true("two saves" in policy(mount)["steps"][0]["reason"], f"the reason: {policy(mount)}")
    mount.remount()
    never(mount, {1, 2})
    for path in step.iterdir():
        write(path, read(path))
    wait_until("it is saved anew", lambda: states(mount) == ["complete", "complete"], 30, 0.1)
    mount.wait_for_rounds(2)
    begin_second_save(step, "if os.fork():\n    os._exit(os.wait()[1])\n")
    wait_until("it may be of two saves again", lambda: states(mount) == ["unknown", "complete"], 30, 0.1)
    mount.control(f"{SERIES}/checkpoint-1", "seal", "1")
    equal(states(mount), ["sealed", "complete"], "states after a seal, which says that it is whole")


def states(mount):
    return [step["state"] for step in policy(mount)["steps"]]


def begin_second_save(step, fork=""):
    """Another run does, which is no command any more (meta/steps/ledger.h), and dies. Its forks count as the run."""
    program = f"import os,sys,time\nbytes = open(sys.argv[1], 'rb').read()\ntime.sleep(2.2)\n{fork}open(sys.argv[1], 'wb').write(bytes)\n"
    run(sys.executable, "-c", program, step / "model.safetensors")


@pytest.mark.one_mode
def test_a_sealed_model_takes_no_checkpoints_place(mount):
    """No training resumes from it, whoever says that it is whole."""
    make_series(mount, keep_last=1)
    write_step(mount, 1)
    export = mount.path / SERIES / "checkpoint-2"
    export.mkdir()
    for name, data in (("config.json", b"{}"), ("model.safetensors", safetensors(WEIGHTS))):
        write(export / name, data)
    mount.control(f"{SERIES}/checkpoint-2", "seal", "1")
    stays(mount, {1, 2})
    equal(states(mount), ["complete", "weights"], "states")
    write_step(mount, 3)
    stays(mount, {3})


@pytest.mark.one_mode
def test_a_run_that_starts_again_keeps_its_steps(mount):
    """Beside them the highest numbers of the run before it stay: nobody can tell them from steps that it needs."""
    make_series(mount, keep_last=2)
    for number in (100, 200, 300, 10, 20, 30):
        write_step(mount, number)
    stays(mount, {200, 300, 20, 30})
