"""A step goes into a ZeRO engine of any number of ranks, another stage, other sub-groups and another kind of offload, bit for
bit."""

import json
import pathlib
import shutil
import subprocess

import pytest

from harness import Ckptfs, environment, equal, install, python, ranks_running, true, wait_for_ranks
from mounting import CKPTFS, run
from reading import remote_mount

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(1800)]

BEFORE, AFTER = 3, 3
IN_MEMORY = ("--nvme", "none")
FP32 = ("--dtype", "fp32")
OTHER_GROUPS = ("--layers-a-group", "0.6")
ZERO1, ZERO2 = (*IN_MEMORY, "--stage", "1"), (*IN_MEMORY, "--stage", "2")
# As from 2 ranks with the optimizer on NVMe: ranks, and the words for goes_on.py.
TARGETS = ((3, ("--pipeline",)), (1, IN_MEMORY), (2, (*IN_MEMORY, "--no-offload")), (3, ZERO2))
# 0.16.9 and 0.17.6 hang with this torch: their thread that writes needs Python's lock, which the one that waits for it holds.
OLDER = ("0.18.9",)
OF_OLDER = ((3, ()), (1, IN_MEMORY), (3, ZERO2))
# Of other ranks, types and devices, each into several.
LONG = {
    (2, ()): ((1, ("--warm",)), (2, OTHER_GROUPS), (4, ()), (3, (*IN_MEMORY, "--warm")), (3, (*IN_MEMORY, "--no-offload", "--warm")),
              (3, ("--warm", "--pipeline")), (1, ZERO1), (2, (*ZERO2, "--offload")), (3, (*ZERO2, "--warm"))),
    (1, ("--dtype", "fp16")): ((2, ("--dtype", "fp16")), (3, ("--dtype", "fp16", *IN_MEMORY))),
    (4, FP32): ((2, FP32), (3, (*FP32, *IN_MEMORY)), (1, (*FP32, "--pipeline"))),
    (3, IN_MEMORY): ((2, ()), (2, IN_MEMORY), (3, ("--pipeline",)), (3, (*IN_MEMORY, *OTHER_GROUPS)),
                     (3, (*IN_MEMORY, "--no-offload"))),
    (2, (*IN_MEMORY, "--no-offload")): ((1, ("--pipeline",)), (3, (*IN_MEMORY, "--no-offload")), (4, IN_MEMORY), (2, IN_MEMORY)),
    (2, ZERO2): ((3, ()), (2, IN_MEMORY), (3, ZERO2), (2, (*ZERO2, "--offload")), (1, (*ZERO1, "--warm"))),
    (3, (*ZERO1, "--dtype", "fp16")): ((2, (*ZERO2, "--dtype", "fp16")), (1, ("--dtype", "fp16"))),
    (2, (*ZERO2, *FP32, "--offload")): ((4, (*ZERO1, *FP32, "--offload")), (2, (*ZERO2, *FP32))),
    (2, ZERO1): ((1, ()), (3, ZERO1)),
    (2, ("--pipeline",)): ((3, ()), (2, IN_MEMORY)),
}


def train(scene, ranks, name, *words, script="goes_on.py", deepspeed=None):
    """The results of the ranks, and what they printed."""
    scene.number += 1
    out = scene.work / f"{scene.number}-{name}"
    log = out.with_suffix(".log")
    given = [*([] if "--nvme" in words else ["--nvme", str(scene.point)]), "--out", str(out), *map(str, words)]
    with open(log, "wb") as output, ranks_running(ranks, given, output, script=script, deepspeed=deepspeed) as processes:
        wait_for_ranks(processes, log)
    return [json.loads(pathlib.Path(f"{out}.{rank}").read_text()) for rank in range(ranks)], log.read_text(errors="replace")


def judge(loaded, saved, what):
    """All that the step holds is in the engine: of the settings those that both optimizers have."""
    for name, wanted in saved.items():
        got = loaded[name]
        if name == "settings":
            wanted = [{key: group[key] for key in ("lr", "betas", "eps", "weight_decay")} for group in wanted]
            got = [{key: group[key] for key in wanted[0]} for group in got]
        elif name == "steps":
            wanted, got = set(wanted), set(got)
        equal(got, wanted, f"{what}: {name}")


def goes_into(scene, series, saved, source, targets, deepspeed=None):
    for ranks, words in targets:
        what = f"{ranks} ranks, {' '.join(words)}"
        one_stage = ("--stage" in words) == ("--stage" in source)  # ZeRO 1 and 2 make buffers bf16, and ZeRO-3 does not
        kept = {name: state for name, state in saved.items() if name != "mean" or one_stage}
        loaded, said = train(scene, ranks, "loaded", "--steps", 0, "--resume", series, *words, deepspeed=deepspeed)
        for result in loaded:
            equal(result["first"], BEFORE, f"{what}: the step that was resumed")
            judge(result["state"], kept, what)
            true(0.99 < result["read"] / result["part"] < 1.1, f"{what}: {result['read']} bytes read of {result['part']}")
        equal(said.count("loaded by the parameters' names"), 1, f"{what}: what is said")


def test_of_two_ranks_on_nvme(scene):
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        series.mkdir(exist_ok=True)
        whole, _ = train(scene, 2, "whole", "--steps", BEFORE + AFTER)
        saved, _ = train(scene, 2, "saved", "--steps", BEFORE, "--save", series)
        goes_into(scene, series, saved[0]["state"], (), TARGETS)
        later, said = train(scene, 2, "later", "--steps", AFTER, "--resume", series, *OTHER_GROUPS)
        true("parameters' names" in said, "other sub-groups")
        for rank in range(2):
            equal(saved[rank]["losses"] + later[rank]["losses"], whole[rank]["losses"], f"losses of rank {rank}")


@pytest.mark.long
@pytest.mark.alone  # ranks that wait for each other keep the processors busy
@pytest.mark.parametrize("source", LONG, ids=lambda source: " ".join(map(str, (source[0], *source[1]))))
def test_of_others(scene, source):
    ranks, words = source
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        series.mkdir(exist_ok=True)
        saved, _ = train(scene, ranks, "saved", "--steps", BEFORE, "--save", series, *words)
        goes_into(scene, series, saved[0]["state"], words, LONG[source])


@pytest.mark.long
@pytest.mark.alone  # ranks that wait for each other keep the processors busy
@pytest.mark.parametrize("version", OLDER)
def test_of_older_versions(scene, version):
    """Exactly and by names, and a step of the older version goes into the newest one, and the other way round."""
    install(version)
    with Ckptfs().place(scene) as mount:
        exact, pipelined, newer = (mount.path / name for name in ("steps", "pipelined", "newer"))  # 0.18 saves no tag twice
        for series in (pipelined, newer):
            series.mkdir()
        saved = goes_on_exactly(scene, exact, (), version)
        goes_into(scene, exact, saved, (), OF_OLDER, version)
        goes_into(scene, exact, saved, (), OF_OLDER)
        # It cannot tell the state of a pipelined engine. With this torch it does not train with ZeRO 1 or 2 on several ranks.
        goes_on_exactly(scene, pipelined, ("--pipeline", "--no-state"), version)
        train(scene, 3, "by-names", "--steps", 1, "--resume", pipelined, "--pipeline", "--no-state", deepspeed=version)
        saved, _ = train(scene, 2, "newer", "--steps", BEFORE, "--save", newer)
        goes_into(scene, newer, saved[0]["state"], (), OF_OLDER, version)


def goes_on_exactly(scene, series, words, version):
    """The state at the save, of the first rank."""
    whole, _ = train(scene, 2, "whole", "--steps", BEFORE + AFTER, *words, deepspeed=version)
    saved, _ = train(scene, 2, "saved", "--steps", BEFORE, "--save", series, *words, deepspeed=version)
    later, said = train(scene, 2, "later", "--steps", AFTER, "--resume", series, *words, deepspeed=version)
    true("parameters' names" not in said, f"{words}: by names")
    for rank in range(2):
        equal(saved[rank]["losses"] + later[rank]["losses"], whole[rank]["losses"], f"{words}: losses of rank {rank}")
    return saved[0]["state"]


@pytest.mark.long
@pytest.mark.alone  # ranks that wait for each other keep the processors busy
def test_from_a_remote(scene):
    """Each rank fetches its own part: three ranks fetch a model's state once, and not three times."""
    remote, point = f"file://{scene.work}/remote", scene.work / "remote-mount"
    (scene.work / "remote").mkdir()
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        series.mkdir(exist_ok=True)
        run(CKPTFS, "remote", "add", remote, series)
        saved, _ = train(scene, 2, "saved", "--steps", BEFORE, "--save", series)
        step = series / f"global_step{BEFORE}"
        run(CKPTFS, "push", "--wait", step, timeout=120)
        with remote_mount(remote, point) as there:
            size = sum(file.stat().st_size for file in (point / step.name).rglob("*") if file.is_file())
            loaded, said = train(scene, 3, "loaded", "--steps", 0, "--resume", point, "--tag", step.name)
            for result in loaded:
                judge(result["state"], saved[0]["state"], "from the remote")
            true("parameters' names" in said, "by names")
            true(there.fetched() < 1.3 * size, f"{there.fetched()} bytes fetched of {size}")


@pytest.mark.long
@pytest.mark.alone  # ranks that wait for each other keep the processors busy
def test_dealt_out_to_the_ranks(scene):
    """With round_robin_gradients ZeRO 2 lays the parameters in another order, and DeepSpeed's own load does not see it."""
    dealt = (*ZERO2, "--round-robin")
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        series.mkdir(exist_ok=True)
        whole, _ = train(scene, 2, "whole", "--steps", BEFORE + AFTER, *ZERO2)
        saved, _ = train(scene, 2, "dealt", "--steps", BEFORE, "--save", series, *dealt, "--no-state")
        for words in (dealt, ZERO2):
            later, said = train(scene, 2, "later", "--steps", AFTER, "--resume", series, *words, "--no-state")
            equal("in another order" in said, words == ZERO2, "what is said")
            for rank in range(2):
                equal(saved[rank]["losses"] + later[rank]["losses"], whole[rank]["losses"], f"{words}: losses of rank {rank}")
        shutil.copytree(series / f"global_step{BEFORE}", series / "7")
        goes_on, _ = train(scene, 3, "other-ranks", "--steps", 0, "--resume", series, "--tag", 7, *dealt, "--no-state")
        equal([result["first"] for result in goes_on], [BEFORE] * 3, "the step that was resumed")


@pytest.mark.long
@pytest.mark.alone  # ranks that wait for each other keep the processors busy
def test_later_losses(scene):
    """On other ranks they are those of a run that begins with DeepSpeed's universal checkpoint in memory: up to the last bits,
    since that one takes the powers of CPUAdam's betas anew, where a run that was never ended has multiplied them up.

    DeepSpeed leaves frozen weights as they are made there, and gives all groups the first one's weight decay; so the runs have
    the same ones."""
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        series.mkdir(exist_ok=True)
        common = ("--small-decay", "0.01")
        train(scene, 2, "saved", "--steps", BEFORE, "--save", series, *common)
        tag = f"global_step{BEFORE}"
        made = subprocess.run([python(), "-m", "ckptfs.universal", series / tag, series / f"{tag}_universal"], check=False,
                              capture_output=True, text=True,
                              env=environment())
        equal(made.returncode, 0, made.stderr[-500:])
        for ranks in (1, 3):
            right, _ = train(scene, ranks, "universal", "--steps", AFTER, "--universal", series, *IN_MEMORY, *common)
            for words in ((), IN_MEMORY):
                ours, _ = train(scene, ranks, "ours", "--steps", AFTER, "--resume", series, *words, *common)
                for rank in range(ranks):
                    for got, wanted in zip(ours[rank]["losses"], right[rank]["losses"], strict=True):
                        true(abs(float.fromhex(got) - float.fromhex(wanted)) < 1e-5 * float.fromhex(wanted),
                             f"{ranks} ranks, {words}: {ours[rank]['losses']} and {right[rank]['losses']}")


@pytest.mark.long
@pytest.mark.alone  # ranks that wait for each other keep the processors busy
@pytest.mark.parametrize("words", [(), ("--stage", 2, "--nvme", "none")], ids=["zero3", "zero2"])
def test_what_does_not_fit_is_refused(scene, words):
    """By name, on all ranks, and the engine trains on as if nothing had been."""
    with Ckptfs().place(scene) as mount:
        series = mount.path / "steps"
        series.mkdir(exist_ok=True)
        train(scene, 1, "saved", "--steps", 2, "--save", series)
        plain, _ = train(scene, 2, "untouched", "--series", series, "--untouched", *words, script="refusing.py")
        found, _ = train(scene, 2, "offered", "--series", series, *words, script="refusing.py")
        for rank, result in enumerate(found):
            equal([wrong for wrong in result["wrong"] if wrong], [], f"rank {rank}: not refused so")
            true(len(result["wrong"]) >= 25, f"{len(result['wrong'])} refusals")
            equal(result["changed"], [], f"rank {rank}: what changed the engine")
            equal(result["accumulations"][:2], [1, 2], "what keeps the global batch")
            for said, words in zip(result["accumulations"][2:], ("is 2, no multiple of 3 ranks", "at least one", "files like"),
                                   strict=True):
                true(words in said, f"{words}: {said}")
            equal(result["losses"], plain[rank]["losses"], f"rank {rank}: losses")
            equal(result["broken"], "", f"rank {rank}: a disk that fails in the middle")
