"""The scripts that docs/trainer.md and docs/deepspeed.md show in full: run as they are, and again as a resume."""

import re
import shlex
import socket
import subprocess

import pytest

from checking import equal, true
from harness import REPOSITORY, RUN_TIMEOUT, Ckptfs, environment, python
from mounting import CKPTFS, Failure, run

pytestmark = [pytest.mark.long, pytest.mark.builds("venv"), pytest.mark.timeout(900)]


def script_of(page, mount):
    """The page's whole script, with the mount where it is."""
    text = (REPOSITORY / "docs" / page).read_text()
    script = re.search(r"^Save this as `train\.py`.*?^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    true('"/ckpt' in script, f"{page}: the script names the mount")
    return script.replace('"/ckpt', f'"{mount.path}')


def runs(scene, page, mount, *command):
    """The lines that the script prints, without those of the libraries' logs."""
    (scene.work / "train.py").write_text(script_of(page, mount))
    with socket.create_server(("127.0.0.1", 0)) as probe:  # torchrun takes 29500, which another test may have
        port = probe.getsockname()[1]
    shared = dict(environment(), PET_MASTER_PORT=str(port))
    done = subprocess.run([str(word) for word in command], cwd=scene.work, env=shared, capture_output=True, text=True,
                          timeout=RUN_TIMEOUT, check=False)
    if done.returncode != 0:
        raise Failure(f"the script of {page} ended with {done.returncode}:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return done.stdout.splitlines()


def states(series):
    """Tag -> state, as ckptfs ls has them in its table."""
    rows = [line.split() for line in run(CKPTFS, "ls", series).stdout.splitlines()[2:]]
    return {row[0]: row[2] for row in rows if not row[0].endswith(":")}


def test_trainer(scene):
    with Ckptfs().place(scene) as mount:
        output = mount.path / "runs" / "my-model"
        true("resume from: None" in runs(scene, "trainer.md", mount, python(), "train.py"), "a first run")
        equal(states(output), {f"checkpoint-{step}": "complete" for step in (10, 20, 30)}, "checkpoints")
        shown = run(CKPTFS, "du", output).stdout
        together = re.search(r"^\(together\) +(\d+) MiB +([\d.]+) MiB", shown, re.MULTILINE)
        true(float(together[2]) < 0.45 * float(together[1]), f"what is frozen is stored once: {shown}")
        run("truncate", "-s", "100", output / "checkpoint-30" / "model.safetensors")  # as a power cut may leave it
        lines = runs(scene, "trainer.md", mount, python(), "train.py")
        true(f"resume from: {output / 'checkpoint-20'}" in lines, f"it goes on from the newest complete one: {lines}")
        equal(states(output)["incomplete-checkpoint-30"], "incomplete", "the checkpoint that was cut off")
        equal(states(output)["checkpoint-30"], "complete", "the checkpoint that was saved again")


def test_deepspeed(scene):
    page = (REPOSITORY / "docs" / "deepspeed.md").read_text()
    commands = re.findall(r"^    ((?:python -m ckptfs.patch )?torchrun .*)$", page, re.MULTILINE)
    plain, patched = map(shlex.split, dict.fromkeys(commands))  # the second stands in two chapters
    with Ckptfs().place(scene) as mount:
        steps = mount.path / "steps"
        for first, command in ((0, plain), (4, plain), (8, patched)):
            lines = runs(scene, "deepspeed.md", mount, *command)
            true(f"begins at step {first}" in lines, f"it begins at step {first}: {lines}")
        equal(states(steps), {f"global_step{step}": "complete" for step in range(2, 14, 2)}, "steps")
        equal((steps / "latest").read_text(), "global_step12", "latest")
        for name in re.findall(r"^            (\S+_states\.pt|offloaded_tensors/rank00/|ckptfs\.ds_ids\.json)", page, re.MULTILINE):
            true((steps / "global_step4" / name).exists(), f"{name}, of the page's tree")
