"""Steps of many ranks and tensors are judged, and shown where their map fits, within the daemon's memory."""

import dataclasses
import json
import pathlib
import shutil
import subprocess
import time

import pytest

from checking import equal, read, true
from harness import environment, python
from mounting import CKPTFS, run, wait_until

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.one_mode, pytest.mark.timeout(900)]

MOST_MEMORY = 256  # MiB
HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Large:
    tag: str
    kind: str
    ranks: int
    tensors: int
    shown: bool = True

    def __str__(self):
        return f"{self.kind}, {self.ranks} ranks, {self.tensors} tensors"


# Llama's 8B and 70B as FSDP2 saves them, with Adam: 55,872 and 69,408 chunks.
STEPS = (Large("step-1", "dcp", 64, 291), Large("step-1", "dcp", 32, 723), Large("global_step1", "zero", 512, 723),
         Large("global_step1", "zero", 64, 20000, shown=False))


def peak(mount):
    status = pathlib.Path(f"/proc/{mount.status()['pid']}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) >> 10


def state_of(step):
    return json.loads(run(CKPTFS, "state", "--json", step, check=False).stdout)["state"]


@pytest.mark.parametrize("large", STEPS, ids=str)
def test_is_judged(large, venv, mount, scratch):
    made = scratch / large.tag
    subprocess.run([python(), HERE / "large_steps.py", made, large.kind, str(large.ranks), str(large.tensors)],
                   env=environment(), check=True)
    step = mount.path / "runs" / large.tag
    shutil.copytree(made, step)
    begun = time.monotonic()
    state = state_of(step)
    print(f"{large}: {state} after {time.monotonic() - begun:.1f} s")
    wait_until("it is complete", lambda: state_of(step) == "complete", 120)
    view = mount.path / "views" / "runs" / large.tag
    name = "model.layers.7.self_attn.q_proj.weight"
    if large.shown:
        begun = time.monotonic()
        state = "param" if large.kind == "dcp" else "fp32"
        equal(len(read(view / "by_name" / name / state)), large.ranks * 4 * 4, "bytes of one tensor")
        print(f"its view: {time.monotonic() - begun:.1f} s")
        true((view / "model.bf16.safetensors").exists(), "it has no model")
    else:
        true("more tensors" in read(view / "manifest.json").decode(), "why it is not shown")
    print(f"peak of the daemon: {peak(mount)} MiB")
    true(peak(mount) <= MOST_MEMORY, f"the daemon took {peak(mount)} MiB")
