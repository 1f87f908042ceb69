"""A tensor that several ranks saved in pieces: its view, its thinning, loading it, and the times of the ranks."""

import json
import struct

import saving
from checking import equal, read, true
from hugging import parse
from mounting import CKPTFS, run

ROWS, COLUMNS = 60, 96
NAME = "layer.weight"


def save(steps, tag, world):
    for rank in range(world):
        words = [saving.program(), "columns", str(steps), tag, "a1", str(rank), str(world), str(ROWS), str(COLUMNS)]
        last = run(*words).stdout.split()[-1]
        equal(last, "committed" if rank == world - 1 else "waiting", f"rank {rank}")
    return steps / tag


def content():
    return struct.pack(f"<{ROWS * COLUMNS}f", *(number % 251 for number in range(ROWS * COLUMNS)))


def test_views_and_loads_have_the_whole(mount):
    for world in (1, 2, 4):
        step = save(mount.path / "steps", f"step_{world}", world)
        view = mount.path / "views/steps" / step.name
        equal(parse(read(view / "model.safetensors")), {NAME: ("F32", [ROWS, COLUMNS], content())}, f"{world} ranks")
        equal(read(view / "by_name" / NAME / "param"), content(), f"{world} ranks, one tensor")
        [(name, (size, _, through))] = saving.loaded(step).items()
        equal((name, size, through), (NAME, len(content()), 0), f"{world} ranks, loaded")
    sums = {saving.loaded(mount.path / "steps" / f"step_{world}")[NAME][1] for world in (1, 2, 4)}
    equal(len(sums), 1, "what is loaded is the same, whoever saved it")
    problem = json.loads(read(mount.path / "views/steps/step_2/manifest.json"))["problems"]
    equal(problem, [], "problems")


def test_thinned_it_has_the_whole(mount):
    step = save(mount.path / "steps", "step_1", 2)
    save(mount.path / "steps", "step_2", 2)
    wanted = read(mount.path / "views/steps/step_1/model.bf16.safetensors")
    run(CKPTFS, "thin", "--to", "bf16", step)
    equal(sorted(path.name for path in step.iterdir()), ["ckptfs-thinned.json", "model.safetensors"], "files")
    equal(read(step / "model.safetensors"), wanted, "the weights")


def test_a_lost_rank_is_a_gap(mount):
    step = save(mount.path / "steps", "step_1", 2)
    (step / "rank01.safetensors").unlink()
    told = json.loads(read(mount.path / "views/steps/step_1/manifest.json"))
    true(f"{NAME}: its pieces leave a gap" in told["problems"][0]["reason"], f"the problem: {told['problems']}")
    equal(told["tensors"], [], "tensors")


def test_the_times_of_its_ranks(mount):
    step = save(mount.path / "steps", "step_1", 2)
    told = json.loads(run(CKPTFS, "show", "--timing", "--json", step).stdout)
    equal([rank["rank"] for rank in told["ranks"]], [0, 1], "ranks")
    equal(told["slowest"], 1, "the one that was durable last")
    for rank in told["ranks"]:
        equal(sorted(rank["stages"]), ["copy", "plan", "sync", "write"], "stages")
        equal(rank["stages"]["plan"], 0.25, "what was noted")
    true(told["ranks"][0]["waited"] > 0 and told["ranks"][1]["waited"] == 0, f"who waited: {told}")
    plain = mount.path.parent / "plain"
    run("cp", "-r", step, plain)
    text = run(CKPTFS, "show", "--timing", plain).stdout
    for words in ("RANK", "HOST", "PLAN", "COPY", "WRITE", "SYNC", "WAITED"):
        true(words in text, f"it lacks {words}: {text}")
    true(text.splitlines()[2].rstrip().endswith("slowest"), f"the slowest rank is marked: {text}")
    manifest = plain / "ckptfs.rank01.json"
    manifest.write_text(json.dumps({key: value for key, value in json.loads(manifest.read_text()).items() if key != "timing"}))
    done = run(CKPTFS, "show", "--timing", plain)
    true("rank 1 left no times" in done.stderr, done.stderr)
    (plain / "ckptfs.rank00.json").unlink()
    done = run(CKPTFS, "show", "--timing", plain, check=False)
    equal(done.returncode, 1, "status")
    true("no rank left its times" in done.stderr, done.stderr)
    run("rm", "-rf", plain)
