"""Writes DeepSpeed's universal checkpoint out of a step, so that a run can resume on another number of ranks.

    python -m ckptfs.universal /ckpt/steps/global_step4 /ckpt/steps/global_step4_universal

    "checkpoint": {"load_universal": true}        # in the DeepSpeed configuration of the run that resumes

Reads ZeRO stages 1 to 3, also with the optimizer on NVMe, which DeepSpeed's own ds_to_universal.py cannot. The tensors
come from the step's view; of the step's small state (step number, hyperparameters, loss scaler) nothing is made but what
DeepSpeed itself writes, and nothing in it is run. One tensor at a time is in memory. What is written loads in every stage;
`latest_universal` is set last, when all the rest is durable.

Of DeepSpeed's own loading (0.19.8): an engine whose optimizer is on NVMe refuses universal checkpoints; frozen parameters
and buffers stay as they were made; in stage 3 all groups get the hyperparameters of the first. Switch load_universal off
again after the first save: a restart without a tag goes back to `latest_universal`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import pickle
import shutil
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from ckptfs import durable, states

__all__ = ["Refused", "convert"]

_Entries = dict[str, dict[str, Any]]  # by state: the manifest's entry

MOMENTS = ("exp_avg", "exp_avg_sq")
_KEPT = ("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad", "zero_stage", "partition_count")


class Refused(RuntimeError):
    """The step cannot be converted. Nothing was written."""


def convert(step: str | os.PathLike[str], out: str | os.PathLike[str],
            progress: Callable[[int, int, str], object] = lambda done, of, name: None) -> None:
    """Writes the universal checkpoint of `step`, a folder of a ckptfs mount, to `out`, which does not exist yet. It calls
    progress(done, of, name) for each parameter."""
    import torch

    step, out = pathlib.Path(os.path.abspath(step)), pathlib.Path(os.path.abspath(out))
    view = _view_of(step)
    if out.exists() or out.is_relative_to(step):
        raise Refused(f"{out} exists, or lies in the step: choose another name")
    manifest = json.loads((view / "manifest.json").read_text(encoding="utf-8"))
    if manifest["problems"]:
        told = "; ".join(f"{one['file']}: {one['reason']}" for one in manifest["problems"])
        raise Refused(f"not all of {step} can be read: {told}")
    try:
        model_file, optimizer_file = states.small_files(step)
    except ValueError as problem:
        raise Refused(str(problem)) from None
    small = _SmallState(torch, optimizer_file)
    tensors = _by_parameter(manifest)
    unfinished = _folder_of_our_own(out.with_name(f".{out.name}.unfinished"))
    try:
        for number, (name, entries) in enumerate(sorted(tensors.items())):
            progress(number, len(tensors), name)
            _write_parameter(torch, view, unfinished / "zero", name, entries, small.step)
        torch.save(small.universal(), unfinished / "zero" / "optimizer_state.pt")
        for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
            shutil.copyfile(model_file, unfinished / name)
        durable.sync(unfinished)
        os.rename(unfinished, out)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    durable.replace(out.parent / "latest_universal", out.name)


def _folder_of_our_own(path: pathlib.Path) -> pathlib.Path:
    """Made anew, without what an earlier run left there. Where somebody else put something, Refused: it may lead anywhere."""
    if path.is_dir() and not path.is_symlink() and path.lstat().st_uid == os.geteuid():
        shutil.rmtree(path)
    try:
        path.mkdir()
    except FileExistsError:
        raise Refused(f"{path} is there, and not from an earlier run of this: look who made it, and remove it") from None
    return path


def _view_of(step: pathlib.Path) -> pathlib.Path:
    """/ckpt/views/steps/TAG of /ckpt/steps/TAG."""
    for root in step.parents:
        view = root / "views" / step.relative_to(root)
        if (view / "manifest.json").exists():
            return view
    raise Refused(f"{step} has no view: it is no step of a ckptfs mount")


def _by_parameter(manifest: Mapping[str, Any]) -> dict[str, _Entries]:
    """name -> state -> its entry, of the parameters that are trained."""
    found: dict[str, _Entries] = {}
    for entry in manifest["tensors"]:
        found.setdefault(entry["name"], {})[entry["state"]] = entry
    trained = {name: entries for name, entries in found.items() if "fp32" in entries}
    if not trained:
        raise Refused("the step has no master weights")
    for name, entries in trained.items():
        lacking = [state for state in MOMENTS if state not in entries]
        if lacking:
            raise Refused(f"{name} has no {lacking[0]}: only Adam's state, after its first step, can be converted")
        extra = set(entries) - {"fp32", "param", *MOMENTS}
        if extra:
            raise Refused(f"{name} has {sorted(extra)}, which DeepSpeed's universal checkpoint would lose")
        if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
            raise Refused(f"{name!r} cannot be the name of a folder")
    return trained


class _SmallState:
    """What rank 0's optim_states.pt knows beside tensors."""

    def __init__(self, torch: types.ModuleType, path: pathlib.Path) -> None:
        self.file = states.load(path)
        self.inner = self.file["optimizer_state_dict"]
        base = self.inner.get("optimizer_state_dict", self.inner.get("base_optimizer_state"))
        if not isinstance(base, dict) or not base.get("state"):
            raise Refused(f"{path} has no state of an optimizer that has made a step")
        self.groups, self.states = base["param_groups"], base["state"]
        steps = {float(state["step"]) for state in self.states.values()}
        if len(steps) != 1:
            raise Refused(f"its parameters have made different numbers of steps: {sorted(steps)}")
        step = next(iter(self.states.values()))["step"]
        self.step = step.clone() if torch.is_tensor(step) else step

    def universal(self) -> dict[str, Any]:
        """optimizer_state.pt as the loaders of all stages read it."""
        state = {number: {"step": self.step} for number in {*self.states, 0}}
        version = self.inner.get("ds_version", self.file.get("ds_version"))
        return {**{key: self.inner[key] for key in _KEPT if key in self.inner}, "ds_version": version,
                "param_groups": self.groups,
                "optimizer_state_dict": {"state": state, "param_groups": self.groups}}


def _write_parameter(torch: types.ModuleType, view: pathlib.Path, folder: pathlib.Path, name: str, states: _Entries,
                     step: object) -> None:
    target = folder / name
    target.mkdir(parents=True)
    for state in ("fp32", *MOMENTS):
        entry = states[state]
        shape = entry["shape"] or [1]
        count = 1
        for length in shape:
            count *= length
        tensor = torch.from_file(str(view / entry["path"]), shared=False, size=count, dtype=getattr(torch, entry["dtype"]))
        torch.save({"cat_dim": 0, "param": tensor.view(shape)}, target / f"{state}.pt")
    torch.save(step, target / "step.pt")


def main() -> int:
    description, _, epilog = str(__doc__).partition("\n\n")
    parser = argparse.ArgumentParser(prog="python -m ckptfs.universal", description=description, epilog=epilog,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", metavar="STEP", help="a step of a ckptfs mount, /ckpt/steps/global_step100")
    parser.add_argument("out", metavar="OUT", help="the folder to be made; latest_universal is written beside it")
    options = parser.parse_args()

    def progress(done: int, of: int, name: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{done}/{of}  {name[:60]}", end="", file=sys.stderr, flush=True)

    try:
        convert(options.step, options.out.rstrip("/"), progress)
    except ImportError as problem:
        print(f"ckptfs.universal: {problem}: run it by the Python that has torch and DeepSpeed", file=sys.stderr)
        return 1
    except (Refused, OSError, pickle.UnpicklingError) as problem:
        print(f"ckptfs.universal: {problem}", file=sys.stderr)
        return 1
    finally:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
