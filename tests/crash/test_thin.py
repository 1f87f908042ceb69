"""kill -9 of the daemon while it thins: the step is full or thin, nothing else, and nothing is lost.

Options: --seed, --rounds.
"""

import os
import random
import subprocess
import time

import pytest

from checking import equal, read, same_bytes, true
from mounting import MIB, by_level, run
from viewing import RESUME, SERIES, full_step

pytestmark = pytest.mark.timeout(1500)

MANIFEST = "ckptfs-thinned.json"


def one_round(mount, number, dice):
    """Kills the daemon at a random moment while it thins. Returns whether the step was thin afterwards."""
    step, _ = full_step(mount, number, number, MIB)
    full_step(mount, number + 1, number + 1, 4096)
    view = mount.path / "views" / SERIES / step.name
    kind = dice.choice(("bf16", "fp32"))  # with a cast, and with shared blocks
    names = set(os.listdir(step))
    files = {name: read(step / name) for name in names}
    weights = read(view / f"model.{kind}.safetensors")
    command = [mount.binary, "thin", "--to", kind, str(step)]
    thinning = subprocess.Popen(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(dice.random() * dice.choice((0.05, 0.1, 0.2)))
    mount.kill()
    returned = thinning.wait(timeout=60) == 0
    mount.start()
    thin = MANIFEST in os.listdir(step)
    true(thin or not returned, f"{step}: the command had returned, and the step is full")
    if not thin:
        equal(set(os.listdir(step)), names, f"{step}: names of a full step")
        for name, data in files.items():
            same_bytes(read(step / name), data, f"{step / name}")
        run(*command)
    equal(set(os.listdir(step)), (names - set(RESUME)) | {MANIFEST}, f"{step}: names of a thin step")
    for name in names - set(RESUME) - {"model.safetensors"}:
        same_bytes(read(step / name), files[name], f"{step / name}")
    same_bytes(read(step / "model.safetensors"), weights, f"{step}: weights")
    same_bytes(read(view / f"model.{kind}.safetensors"), weights, f"{view}: weights")
    equal(mount.ask(step, "state"), "weights", f"{step}: state")
    return thin


def test_killed_while_it_thins(crashing_mount, mode, seed, rounds):
    dice = random.Random(seed)
    mount = crashing_mount(mode=mode)
    thin = 0
    count = rounds or by_level(4, 50)
    for index in range(count):
        thin += one_round(mount, 10 * (index + 1), dice)
        mount.remount_after_fsck()
    print(f"      {mode}: after {count} kills {thin} steps were thin, {count - thin} full")
