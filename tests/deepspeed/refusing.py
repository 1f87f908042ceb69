"""Offers an engine steps that it must not take, or takes from it what is needed, one after the other; then trains on.

One process is one rank. Each rank writes, as JSON: what was said of each offer, whether the engine's state changed, and the
losses afterwards. With --untouched nothing is offered.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import shutil
import sys

import variety
from ending import end_rank
from goes_on import state_of

TAG = "global_step2"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--series", required=True, help="has TAG, of other ranks")
    parser.add_argument("--stage", type=int)
    parser.add_argument("--untouched", action="store_true")
    parser.add_argument("--out", required=True, help="the result, .RANK is appended")
    parser.set_defaults(**variety.DEFAULTS)
    return parser.parse_args()


@contextlib.contextmanager
def having(thing, **attributes):
    """With other attributes for a while."""
    missing = object()
    before = {name: thing.__dict__.get(name, missing) for name in attributes}
    thing.__dict__.update(attributes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                del thing.__dict__[name]
            else:
                thing.__dict__[name] = value


@contextlib.contextmanager
def set_to(settings, name, value):
    """With another setting of the optimizer's groups for a while."""
    before = [dict(group) for group in settings]
    for group in settings:
        group[name] = value
    try:
        yield
    finally:
        for group, kept in zip(settings, before, strict=True):
            group.clear()
            group.update(kept)


@contextlib.contextmanager
def unfrozen(parameter):
    """As a parameter that is trained, and that the optimizer was not given."""
    parameter.requires_grad_(True)
    try:
        yield
    finally:
        parameter.requires_grad_(False)


@contextlib.contextmanager
def of_class(thing, name):
    kind = type(thing)
    thing.__class__ = type(name, (kind,), {})
    try:
        yield
    finally:
        thing.__class__ = kind


def files_of(step):
    (model,) = step.glob("zero_pp_rank_0_mp_rank_00_model_states.pt")
    (optimizer,) = step.glob("*zero_pp_rank_0_mp_rank_00_optim_states.pt")
    return model, optimizer


def changed(torch, series, name, of_model=None, of_optimizer=None, of_folder=None):
    """A copy of the step, with something else in it."""
    step = series / f"{name}_step2"
    shutil.copytree(series / TAG, step)
    for path, change in zip(files_of(step), (of_model, of_optimizer), strict=True):
        if change:
            content = torch.load(path, weights_only=False)
            change(content)
            torch.save(content, path)
    if of_folder:
        of_folder(step)
    return step.name


def base_of(content):
    return content["optimizer_state_dict"]["optimizer_state_dict"]


def renamed(content):
    names = content["param_shapes"][0]
    names["layers.9.weight"] = names.pop(next(iter(names)))


def without_state(content):
    base_of(content)["state"] = {}


def without_bias_correction(content):
    for group in base_of(content)["param_groups"]:
        group["bias_correction"] = False


def make_steps(torch, series, of_torch):
    """name -> (tag, what has to be said); by one rank. `of_torch`: the engine's Adam is torch's."""
    def make(name, words, **changes):
        return changed(torch, series, name, **changes), words
    more_of_adam = lambda content: next(iter(base_of(content)["state"].values())).update(max_exp_avg_sq=torch.zeros(1))
    other_count = lambda content: next(iter(base_of(content)["state"].values())).update(step=1)
    return [
        make("amsgrad", "only Adam's states", of_optimizer=more_of_adam),
        make("counts", "neighbours have made [1, 2] steps", of_optimizer=other_count),
        make("no_state", "before the optimizer's first step", of_optimizer=without_state),
        make("names", "has no optimizer state of it", of_model=renamed),
        make("no_names", "nothing tells the parameters", of_model=lambda content: content.update(param_shapes=None)),
        make("frozen", "has no frozen.weight", of_model=lambda content: content["frozen_param_fragments"].clear()),
        make("buffer", "no such buffer mean", of_model=lambda content: content["module"].update(mean=torch.zeros(7))),
        make("more", "not here, but in", of_model=lambda content: content["module"].update(other=torch.zeros(7))),
        make("counter", "does not tell its global_samples", of_model=lambda content: content.pop("global_samples")),
        make("twice", "not one", of_folder=lambda step: shutil.copy(files_of(step)[0], step / "mp_rank_00_model_states.pt")),
        make("scheduler", "load_lr_scheduler_states=False", of_model=lambda content: content.update(lr_scheduler=None)),
        make("sampler", "the state of a data_sampler", of_model=lambda content: content.update(data_sampler={"consumed": 1})),
        make("swap_file", "has no ", of_folder=lambda step: next(step.rglob("exp_avg-*.tensor.swp")).unlink()),
        make("cut", "has no ", of_folder=lambda step: os.truncate(next(step.rglob("exp_avg-*.tensor.swp")), 1 << 20)),
        make("parallel", "model parallel", of_folder=lambda step: (step / "mp_rank_01_model_states.pt").touch()),
        make("experts", "expert checkpoints",
             of_folder=lambda step: (step / "layer_0_expert_0_mp_rank_00_model_states.pt").touch()),
        make("empty", "has 0 files like", of_folder=lambda step: [file.unlink() for file in files_of(step)]),
        *([make("no_bias", "torch's Adam has none", of_optimizer=without_bias_correction)] if of_torch else []),
        ("global_step99", "global_step99"),
    ]


def engines(torch, deepspeed, engine, rank):
    """What it may not be: (words, how to make it so)."""
    optimizer, adam = engine.optimizer, engine.optimizer.optimizer
    frozen = next(parameter for parameter in engine.module.parameters() if not parameter.requires_grad)
    other = having(deepspeed, __version__="0.99.0")
    if hasattr(frozen, "ds_tensor"):  # of ZeRO-3: such engines of ZeRO 1 and 2 get DeepSpeed's own load
        yield "experts are not supported", having(engine, has_moe_layers=True), {}
        yield "tensor parallelism is not supported", having(engine, mp_world_size=2), {}
        yield "does not go into a MiCS_Optimizer", of_class(optimizer, "MiCS_Optimizer"), {}
        yield "does not know this version", other, {}
        yield "is frozen and on NVMe", having(frozen.ds_tensor, status=type(frozen.ds_tensor.status)(2)), {}
    yield "zero_hpz_partition_size is not supported", having(optimizer, zero_hpz_partition_size=2), {}
    yield "partial_offload is not supported", having(optimizer, partial_offload=0.5), {}
    yield "zenflow is not supported", having(optimizer, zenflow=True), {}
    yield "use_muon is not supported", having(optimizer, use_muon=True), {}
    yield "master weights of another type", having(optimizer, master_weights_and_grads_dtype=torch.bfloat16), {}
    yield "offload_states() is not supported", having(optimizer, offloaded_states={"cpu"}), {}
    yield "Lion is not supported", of_class(adam, "Lion"), {}
    yield "custom_load_fn is not supported", contextlib.nullcontext(), {"custom_load_fn": lambda src, dst: None}
    yield "has no frozen.weight", unfrozen(frozen), {"tag": "frozen_step2"}
    yield "amsgrad is not supported", set_to(adam.param_groups, "amsgrad", True), {}
    yield "told different steps", contextlib.nullcontext(), {"tag": TAG if rank == 0 else "amsgrad_step2"}
    if rank == 1:  # the others hear of it
        yield "has no name", having(engine, param_names={}), {}
    else:
        yield "1 other ranks failed", contextlib.nullcontext(), {}


def refused(load, words):
    """What is wrong with the refusal; nothing, if it is one and says the words."""
    try:
        load()
    except (RuntimeError, ValueError, OSError) as problem:
        return "" if words in str(problem) or "other ranks failed" in str(problem) else f"{words}: {problem!r}"
    return f"{words}: it was loaded"


def breaks(load, rank):
    """In the middle of the load one rank cannot read."""
    from ckptfs.loading import Checkpoint
    plain, calls = Checkpoint.load_boxes, []

    def load_boxes(checkpoint, *arguments):
        calls.append(arguments)
        if rank == 1 and len(calls) == 3:
            raise OSError(5, "the disk")
        return plain(checkpoint, *arguments)

    Checkpoint.load_boxes = load_boxes
    wrong = refused(load, "the disk" if rank == 1 else "do not train with it")
    Checkpoint.load_boxes = plain
    return wrong


def accumulations(step):
    """The global batch was that of one rank with two samples."""
    from ckptfs.deepspeed import accumulation_steps
    found = [accumulation_steps(step, ranks=2, micro_batch=1), accumulation_steps(str(step), ranks=1, micro_batch=1)]
    for path, ranks in ((step, 3), (step, 0), (step.parent, 1)):
        try:
            accumulation_steps(path, ranks=ranks, micro_batch=1)
        except (ValueError, FileNotFoundError) as problem:
            found.append(str(problem))
    return found


def main():
    options = parse_arguments()
    rank, series = int(os.environ["RANK"]), pathlib.Path(options.series)
    import deepspeed
    import torch

    import ckptfs.deepspeed

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(20_240_230)
    deepspeed.init_distributed(dist_backend="gloo")
    engine = variety.build(torch, deepspeed, options, scheduler=True)
    variety.train(torch, engine, 1, rank)
    load = functools.partial(ckptfs.deepspeed.load_checkpoint, engine, series)
    result = {"wrong": [], "changed": []}
    if not options.untouched:
        offered = [make_steps(torch, series, options.stage < 3)] if rank == 0 else [None]
        torch.distributed.broadcast_object_list(offered)
        before = state_of(torch, deepspeed, engine)
        offers = [(words, contextlib.nullcontext(), {"tag": tag}) for tag, words in offered[0]]
        for words, state, arguments in [*offers, *engines(torch, deepspeed, engine, rank)]:
            with state:
                result["wrong"].append(refused(functools.partial(load, **{"tag": TAG, **arguments}), words))
            if state_of(torch, deepspeed, engine) != before:
                result["changed"].append(words)
        result["accumulations"] = accumulations(series / TAG)
    result["losses"] = variety.train(torch, engine, 2, rank, 1)
    if not options.untouched:
        result["broken"] = breaks(functools.partial(load, tag=TAG), rank)
    with open(f"{options.out}.{rank}", "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1, sort_keys=True)
    end_rank()


if __name__ == "__main__":
    sys.exit(main())
