"""Loads and saves of the memory of a real GPU, where there is one: the acts of cuda_acts.py."""

import functools
import subprocess

import pytest

from harness import python
from mounting import REPOSITORY, Failure, Skip

ACTS = REPOSITORY / "tests/gpu/cuda_acts.py"
NAMES = ("saved_and_loaded", "targets_anywhere", "host_and_device", "in_the_streams_order",
         "made_on_the_loads_stream", "into_pinned_memory", "changed_after_the_copy", "memory_is_the_ring", "a_flipped_byte", "dcp_alone", "groups")

pytestmark = [pytest.mark.builds("venv"), pytest.mark.usefixtures("venv"),
              pytest.mark.timeout(600)]


def run(*words):
    return subprocess.run([python(), *map(str, words)], capture_output=True, text=True, timeout=500)


@functools.cache
def has_gpu():
    return run("-c", "import torch; assert torch.cuda.is_available()").returncode == 0


def act(name, folder, device):
    done = run(ACTS, folder, name, "--device", device)
    if done.returncode != 0:
        raise Failure(f"{name}: {done.stdout}{done.stderr}")


@pytest.mark.parametrize("name", NAMES)
def test_on_the_gpu(scratch, name):
    if not has_gpu():
        raise Skip("gpu: torch sees no device")
    act(name, scratch, "cuda")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_acts_themselves(scratch, name):
    act(name, scratch, "cpu")
