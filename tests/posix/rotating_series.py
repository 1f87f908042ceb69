"""A series of steps as a Trainer leaves them, and what rotation makes of it."""

import json
import os
import time

from checking import equal, write
from hugging import safetensors
from mounting import CKPTFS, run, wait_until

SERIES = "runs/a"
WEIGHTS = {"w": ("F32", [4], bytes(16))}


def make_series(mount, **rules):
    (mount.path / SERIES).mkdir(parents=True)
    for rule, value in rules.items():
        mount.control(SERIES, rule, str(value))


def write_step(mount, number, loss=None, extra=0, series=SERIES, best=None):
    """As a Trainer leaves one; trainer_state.json comes last."""
    step = mount.path / series / f"checkpoint-{number}"
    step.mkdir(parents=True)
    write(step / "config.json", b"{}")
    write(step / "model.safetensors", safetensors(WEIGHTS))
    if extra:
        write(step / "optimizer.pt", os.urandom(extra))
    history = [] if loss is None else [{"step": number, "eval_loss": 9.0}, {"step": number, "eval_loss": loss}]
    state = {"global_step": number, "log_history": history} | ({"best_model_checkpoint": best} if best else {})
    write(step / "trainer_state.json", json.dumps(state).encode())
    return step


def steps(mount):
    names = (name.split("-") for name in os.listdir(mount.path / SERIES))
    return {int(parts[1]) for parts in names if parts[0] == "checkpoint" and parts[1].isdigit()}


def stays(mount, wanted, what="the steps that stay", seconds=20):
    wait_until(f"{what}: {wanted}", lambda: steps(mount) == wanted, seconds, 0.05)
    mount.wait_for_rounds(2)  # and no more go
    equal(steps(mount), wanted, what)


def never(mount, wanted):
    """The daemon looks again and again, and does nothing."""
    mount.wait_for_rounds(3)
    equal(steps(mount), wanted, "the steps")


def policy(mount, *arguments, series=None):
    return json.loads(run(CKPTFS, "policy", "--json", *arguments, mount.path / (series or SERIES)).stdout)


def decisions(found):
    return {step["number"]: (step["stays"], step["by"]) for step in found["steps"]}


def date(step, seconds):
    """As if its files had been written so many seconds from now."""
    when = time.time() + seconds
    for path in step.iterdir():
        os.utime(path, (when, when))
