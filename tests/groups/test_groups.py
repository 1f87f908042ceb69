"""Groups of ranks with torch.distributed: what n ranks save, m ranks load; what one rank's failure is to the others."""

import json
import os
import pathlib
import random
import re
import socket
import time
import urllib.request

import pytest

from acting import SECONDS_TO_AN_ERROR, Ranks, said
from checking import equal, true
from harness import ranks_running, wait_for_ranks
from mounting import CKPTFS, LEVEL, REPOSITORY, mounted, run, wait_until

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(600),
              pytest.mark.usefixtures("venv"), pytest.mark.one_mode]

RANKS = (1, 2, 3, 4, 8)
EACH_BOUND, BROADCAST_BOUND = 1.1, 1.02  # of the bytes that have to be read

GROUP = Ranks("group_ranks.py")


def judge(series, scratch, saved, loaded):
    """Bit for bit, by either way to load."""
    name = f"step_{saved}"
    if not (series / name).exists():
        truth = GROUP.do(saved, [{"act": "save", "to": str(series / name), "seed": saved}], scratch / f"saved-{saved}")[0]
        (scratch / f"truth-{saved}").write_text(json.dumps(truth))
    truth = json.loads((scratch / f"truth-{saved}").read_text())
    acts = [{"act": "load", "of": str(series / name), "mode": mode, "little": little}
            for mode, little in (("each", False), ("broadcast", False), ("auto", False), ("broadcast", True), ("auto", True))]
    for act, got in zip(acts, GROUP.do(loaded, acts, scratch / f"loaded-{saved}-{loaded}"), strict=True):
        wrong = [name for name in truth if got.get(name) != truth[name]]
        equal(wrong, [], f"{saved} ranks to {loaded}, {act}: tensors that differ")


def test_saved_by_some_and_loaded_by_others(mount, scratch):
    series = mount.path / "steps"
    series.mkdir(exist_ok=True)
    for saved, loaded in ((4, 2), (2, 3)):
        judge(series, scratch, saved, loaded)
    listed = json.loads(run(CKPTFS, "ls", "--json", mount.path).stdout)["steps"]
    equal({row["tag"]: (row["state"], row["ranks"]) for row in listed},
          {"step_4": ("sealed", 4), "step_2": ("sealed", 2)}, "steps")


@pytest.mark.long
def test_the_page_tells_of_a_load(store, work, scratch):
    with mounted(store, work / "page", options=("http=127.0.0.1:0",)) as mount:
        series = mount.path / "steps"
        GROUP.do(2, [{"act": "save", "to": str(series / "step_1"), "seed": 1}], scratch / "saved")
        GROUP.do(2, [{"act": "load", "of": str(series / "step_1"), "mode": "broadcast"}], scratch / "loaded")
        with urllib.request.urlopen(f"http://{mount.status()['http']}/api/state", timeout=30) as answer:
            told = json.load(answer)["loaded_by_ranks"]
    equal((told["step"], told["host"]), ("/steps/step_1", socket.gethostname()), "the load")
    equal(sorted(told["stages"]), ["broadcast", "collective", "open", "plan", "read"], "stages")
    true(told["slowest"] in (0, 1) and told["seconds"] >= told["stages"]["read"] > 0, f"times: {told}")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_any_number_of_ranks(mount, scratch):
    series = mount.path / "steps"
    series.mkdir(exist_ok=True)
    for saved in RANKS:
        for loaded in RANKS:
            judge(series, scratch, saved, loaded)


@pytest.mark.long
def test_in_any_folder(scratch):
    """Where there is no mount. The plan of the first save serves the second, and not the third, which is cut otherwise."""
    series = scratch / "steps"
    series.mkdir()
    saves = [{"act": "save", "to": str(series / f"step_{seed}"), "seed": seed, "uneven": seed == 3} for seed in (1, 2, 3)]
    truth = GROUP.do(2, saves, scratch / "saved")
    acts = [{"act": "load", "of": act["to"], "mode": "auto"} for act in saves]
    equal(GROUP.do(3, acts, scratch / "loaded"), truth, "what was loaded")


def test_a_flipped_byte_is_found(scratch):
    series = scratch / "steps"
    series.mkdir()
    GROUP.do(2, [{"act": "flipped", "to": str(series / "step_1")}], scratch / "flipped", alike=False)
    heard = [said(scratch / "flipped", rank)[0] for rank in range(2)]
    words = f"{series}/step_1/rank01.safetensors: bytes 2097152 to 3145728 (MiB 2) are not those that were saved"
    for rank, [(alone, text), (_, of_group)] in enumerate(heard):
        equal(alone, "OSError", f"rank {rank}, alone: {text}")
        for one in (text, of_group):
            true(words in one and one.endswith("Tensors: rows"), f"rank {rank}: {one}")
        true("rank 0: " in of_group or "rank 1: " in of_group, f"who has found it: {of_group}")
    true("OSError" in [of_group for _, (of_group, _) in heard], f"one at least has found it itself: {heard}")


@pytest.mark.long
def test_what_others_saved(mount, scratch):
    (mount.path / "runs").mkdir(exist_ok=True)
    equal(GROUP.do(3, [{"act": "others", "series": str(mount.path / "runs")}], scratch / "others"), ["equal"], "steps of others")


def run_example(name, ranks, log, *words):
    """Runs a script of docs/examples, which docs/groups.md shows. Returns what all ranks printed."""
    script = REPOSITORY / "docs" / "examples" / f"{name}.py"
    with open(log, "wb") as output, ranks_running(ranks, [str(word) for word in words], output, script=script) as processes:
        wait_for_ranks(processes, log)
    return log.read_text()


@pytest.mark.long
@pytest.mark.parametrize("name,ranks", [("tensor_parallel", 4), ("zero_pieces", 3)])
def test_examples(mount, scratch, name, ranks):
    series = mount.path / "steps"
    series.mkdir(exist_ok=True)
    equal(run_example(name, ranks, scratch / "example.log", series).count("loaded"), ranks, "ranks that have loaded")


@pytest.mark.long
@pytest.mark.parametrize("place", ["mount", "shared folder"])
def test_a_training_goes_on_with_other_ranks(mount, scratch, place):
    """docs/examples/fsdp2.py on 2, 3 and 1 ranks has the losses of a training that was never ended."""
    folder = mount.path if place == "mount" else scratch
    def losses(series, ranks, steps):
        series.mkdir(exist_ok=True)
        printed = run_example("fsdp2", ranks, scratch / "example.log", series, steps)
        found = re.findall(r"^(\d+) (\d+\.\d+)$", printed, re.MULTILINE)
        return {int(step): float(loss) for step, loss in found}, re.findall(r"goes on from (\S+)", printed)

    whole, began = losses(folder / "whole", 2, 6)
    equal((len(whole), began), (6, []), "a training that was never ended")
    parts = {}
    for ranks, steps, newest in ((2, 2, []), (3, 4, ["step_2"]), (1, 6, ["step_4"])):
        more, began = losses(folder / "steps", ranks, steps)
        equal(began, newest, f"{ranks} ranks")
        parts |= more
    equal(sorted(parts), sorted(whole), "steps")
    true(all(abs(parts[step] - whole[step]) < 1e-5 for step in whole), f"losses: {parts} and {whole}")
    if place == "mount":
        judge_the_model(mount, folder / "steps" / "step_6")


def judge_the_model(mount, step):
    """What calls itself the model has the model's names, and nothing of Adam's."""
    view, names = mount.path / "views" / "steps" / step.name, ["0.bias", "0.weight", "2.bias", "2.weight"]
    equal(names_in(view / "model.fp32.safetensors"), names, "the model in the view")
    equal(sorted(os.listdir(view / "by_name" / "0.weight")), ["exp_avg", "exp_avg_sq", "param", "step"], "a parameter")
    before = (view / "by_name" / "0.weight" / "param").read_bytes()
    run(CKPTFS, "thin", "--to", "fp32", step)
    equal(names_in(step / "model.safetensors"), names, "the thinned step")
    equal((view / "by_name" / "0.weight" / "param").read_bytes(), before, "a weight of the thinned step")


def names_in(file):
    with open(file, "rb") as opened:
        return sorted(json.loads(opened.read(int.from_bytes(opened.read(8), "little"))).keys() - {"__metadata__"})


@pytest.mark.long
def test_no_byte_is_written_or_read_twice(mount, scratch):
    series = mount.path / "steps"
    series.mkdir(exist_ok=True)
    step = series / "step_1"
    GROUP.do(2, [{"act": "save_big", "to": str(step)}], scratch / "saved")
    whole = (512 * 16384 + 2048 * 2048) * 4
    sizes = [os.stat(step / f"rank{rank:02d}.safetensors").st_size for rank in range(2)]
    true(sum(sizes) < 1.01 * whole, f"files of {sizes} bytes for {whole}")
    true(max(sizes) < 1.05 * whole / 2, f"files of {sizes} bytes")
    for ranks, columns in ((2, False), (4, True)):
        acts = [{"act": "bytes_read", "of": str(step), "mode": mode, "columns": columns} for mode in ("each", "broadcast")]
        each, broadcast = GROUP.do(ranks, acts, scratch / f"read-{ranks}")
        for wanted, read in each:
            true(read < EACH_BOUND * wanted, f"{ranks} ranks, each: read {read} for {wanted}")
        total = sum(read for _, read in broadcast)
        true(total < BROADCAST_BOUND * whole, f"{ranks} ranks, broadcast: read {total} of {whole}")


FAILURES = {"names": "rank 1 cannot take part: ValueError: 'w\\udcff': no name for a tensor",
            "a value": "rank 1 cannot take part: TypeError: w: a str is no tensor",
            "shapes": "w: rank 0 holds it as F32 [3], rank 1 as F32 [4]", "tags": "were told different steps",
            "closed": "rank 1: its save was closed before it was committed"}
DEATHS = ["killed", *(pytest.param(how, marks=pytest.mark.long) for how in ("ended", "connecting"))]


def judge_failures(series, scratch, failures, acts=()):
    """No step is there, and the others know it soon."""
    series.mkdir(exist_ok=True)
    acts = [{"act": "fails", "to": str(series / f"step_{how[0]}"), "how": how} for how in failures] + list(acts)
    with GROUP.running(3, acts, scratch / "failed") as processes:
        for rank in (0, 2):
            processes[rank].wait(timeout=2 * SECONDS_TO_AN_ERROR)
        for rank in (0, 2):
            heard = said(scratch / "failed", rank)
            equal(len(heard), len(acts), (scratch / "failed.log").read_text()[-2000:])
            for (how, told), (text, seconds) in zip(failures.items(), heard):
                true(told in text, f"{how}: rank {rank} was told: {text}")
                true(seconds < SECONDS_TO_AN_ERROR, f"{how}: rank {rank} waited {seconds} s")
    return [name for name in os.listdir(series) if not name.startswith("partial-")]


def test_one_rank_fails(mount, scratch):
    series = mount.path / "steps"
    after = {"act": "save", "to": str(series / "step_1"), "seed": 1}
    equal(judge_failures(series, scratch, FAILURES, [after]), ["step_1"], "steps: the one that did not fail")


@pytest.mark.parametrize("how", DEATHS)
def test_one_rank_dies(mount, scratch, how):
    equal(judge_failures(mount.path / "steps", scratch, {how: " has ended"}), [], "steps")


@pytest.mark.long
def test_one_rank_cannot_read(scratch):
    """All ranks are told, and can load together again."""
    series = scratch / "steps"
    series.mkdir()
    acts = [{"act": "save_big", "to": str(series / "step_1")},
            *({"act": "broken_read", "of": str(series / "step_1"), "mode": mode} for mode in ("broadcast", "each"))]
    GROUP.do(3, acts, scratch / "read", alike=False)
    for rank in range(3):
        for heard, loaded in said(scratch / "read", rank)[1:]:
            true("[Errno 5]" in heard and "broken" in heard and (rank == 1 or "rank 1 has not loaded" in heard), f"rank {rank}: {heard}")
            true(loaded, f"rank {rank}: the load after it")


def test_a_step_that_one_rank_does_not_see(mount, scratch):
    series = mount.path / "steps"
    series.mkdir(exist_ok=True)
    with GROUP.running(3, [{"act": "missing", "of": str(series / "step_1")}], scratch / "missing") as processes:
        wait_for_ranks(processes, scratch / "missing.log")
    words = [said(scratch / "missing", rank)[0] for rank in range(3)]
    true(all("step_1" in text for text in words), f"the ranks were told {words}")


@pytest.mark.long
@pytest.mark.parametrize("still", (1, 0))
def test_one_rank_stands_still(scratch, still):
    """All ranks give up the group, that one, too. A new Saver works. Rank 0 has torch's store, so that does not answer."""
    series = scratch / "steps"
    series.mkdir()
    GROUP.do(3, [{"act": "pauses", "to": str(series / "step_1"), "seconds": 55, "rank": still}], scratch / "pause", alike=False)
    for rank in range(3):
        (text, seconds), after = said(scratch / "pause", rank)[0]
        words = ["rank 1 (process", "has not been heard of"] if still else ["torch's store" if rank else "has"]
        true(all(word in text for word in words), f"rank {rank}: {text}")
        true(seconds < SECONDS_TO_AN_ERROR, f"rank {rank}: an error after {seconds} s")
        equal(after, ["saved", 0.0], f"rank {rank}: the save after it")
    equal([name for name in os.listdir(series) if not name.startswith("partial-")], ["step_1-1"], "steps")


def test_each_rank_takes_another_step(scratch):
    series = scratch / "steps"
    series.mkdir()
    steps, links = [str(series / "step_1"), str(series / "step_2")], []
    for rank, step in enumerate(steps):  # as a link that moves between the opens of the ranks
        (scratch / str(rank)).mkdir()
        links.append(str(scratch / str(rank) / "current"))
        os.symlink(step, links[-1])
    GROUP.do(2, [*({"act": "save_one", "to": step} for step in steps), {"act": "different", "of": steps},
                 {"act": "different", "of": links}], scratch / "out")
    for text in said(scratch / "out", 1)[2:]:
        true("rank 1 has loaded step_2, and rank 0 step_1" in text, text)


def test_one_rank_has_no_memory_for_the_plan(scratch):
    """It has exchanged what the plan is made from, so the others would wait for it."""
    series = scratch / "steps"
    equal(judge_failures(series, scratch, {"memory": "this rank has no memory left"}), [], "steps")


def test_one_rank_is_told_another_mode(scratch):
    series = scratch / "steps"
    series.mkdir()
    acts = [{"act": "save_one", "to": str(series / "step_1")}, {"act": "mistyped", "of": str(series / "step_1")}]
    GROUP.do(2, acts, scratch / "mode", alike=False)
    for rank in range(2):
        unknown, different = said(scratch / "mode", rank)[1]
        true("mode 'brodcast': it is one of auto, broadcast, each" in unknown, f"rank {rank}: {unknown}")
        true("rank 1 and rank 0 were told different modes" in different, f"rank {rank}: {different}")


@pytest.mark.timeout(7200)
def test_killed_while_saving(mount, scratch, seed, rounds):
    """A rank, all of them, or the daemon: each step that is there is whole, none that was reported is missing, and who is
    left gets an error."""
    chance, count = random.Random(seed), rounds or {"normal": 3, "long": 100}[LEVEL]
    series = mount.path / "steps"
    series.mkdir(exist_ok=True)
    first, reported = 0, set()
    for number in range(count):
        victims = ("a rank", "all", "the daemon")[number % 3]
        out = scratch / f"round-{number}"
        with GROUP.running(3, [{"act": "saves", "series": str(series), "first": first}], out) as processes:
            wait_until("a step is there", lambda first=first: (series / f"step_{first}").exists(), seconds=60)
            time.sleep(chance.random() * 0.3)
            if victims == "the daemon":
                mount.kill()
            for process in {"a rank": [chance.choice(processes)], "all": processes}.get(victims, []):
                process.kill()
            begun = time.monotonic()
            for process in processes:
                process.wait(timeout=2 * SECONDS_TO_AN_ERROR)
            took = time.monotonic() - begun
            true(took < SECONDS_TO_AN_ERROR, f"round {number}, {victims} killed: an error after {took} s")
        if victims == "the daemon":
            mount.start()
        last = [said(out, rank)[0][0] for rank in range(3) if said(out, rank)]
        true(last or victims == "all", f"no rank has said anything: {pathlib.Path(f'{out}.log').read_text()[-2000:]}")
        reported.update(range(first, max(last, default=first - 1) + 1))
        first = max([*reported, *(int(name[5:]) for name in os.listdir(series) if name.startswith("step_"))]) + 1
    steps, wrong = GROUP.do(1, [{"act": "check", "series": str(series)}], scratch / "checked")[0]
    equal(wrong, [], "steps that are not whole")
    equal(sorted(reported - {int(name[5:]) for name in steps}), [], "steps that were reported, and are not there")
