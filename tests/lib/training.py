"""DeepSpeed's swap files as the tests make them, and the step that a save must make of them."""

import os
import pathlib

from checking import equal, noise, read, same_bytes, write
from mounting import KIB, MIB

STAGE = "zero_stage_3"


def optimizer_file(rank, group="0_2", kind=""):
    return f"{STAGE}/optimizer/rank{rank}/{kind}{group}.tensor.swp"


def param_file(rank, ds_id=7):
    return f"{STAGE}/bfloat16params/rank{rank}/{ds_id}_param.tensor.swp"


def swap_names(ranks=2, groups=("0_2", "3_5")):
    for rank in range(ranks):
        for group in groups:
            for kind in ("", "exp_avg-", "exp_avg_sq-"):
                yield optimizer_file(rank, group, kind)
        yield param_file(rank)


def write_state(root, version=0, ranks=2, groups=("0_2", "3_5"), size=MIB + 3 * KIB):
    """Writes all swap files in place, like a step of training. Returns their contents by name."""
    state = {}
    for number, name in enumerate(swap_names(ranks, groups)):
        state[name] = noise(size, 1000 * version + number)
        path = pathlib.Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, state[name], os.O_WRONLY | os.O_CREAT, 0o600)
    return state


def name_in_step(name):
    """Returns the swap file's path in a step, or None if a save leaves it out."""
    folder, file = os.path.split(name)
    if "gradient" in file or not file.endswith(".tensor.swp"):
        return None
    kind, rank = folder.split("/")[-2:]
    to = "offloaded_tensors" if kind == "optimizer" else "offloaded_params"
    return f"{to}/rank{int(rank[4:]):02d}/{file}"


def step_of(state):
    """Returns the content of a step that is saved from the state, by path in the step."""
    return {name_in_step(name): data for name, data in state.items() if name_in_step(name)}


def names_below(folder):
    return sorted(
        os.path.relpath(os.path.join(where, name), folder) for where, _, files in os.walk(folder) for name in files
    )


def check_step(step, wanted, what="step"):
    """Checks that the folder has exactly these files with this content."""
    equal(names_below(step), sorted(wanted), f"{what}: names")
    for name, data in wanted.items():
        same_bytes(read(os.path.join(step, name)), data, f"{what}: {name}")
