"""Trains the model of variety.py in one run, up to a save, or on from one; reports the whole state.

One process is one rank. Each rank writes its losses, and digests of the optimizer's state, as JSON.
"""

import argparse
import functools
import json
import os
import sys
import time

import variety
from ending import end_rank
from past import Peak


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvme", required=True, help="the folder to swap to, or 'none'")
    parser.add_argument("--no-offload", action="store_true", help="with --nvme none: not to the processor's memory, either")
    parser.add_argument("--offload", action="store_true", help="with ZeRO 1 and 2: to the processor's memory")
    parser.add_argument("--round-robin", action="store_true", help="with ZeRO 2: deal the parameters out to the ranks")
    parser.add_argument("--layers-a-group", type=float, help="the size of a sub-group of the optimizer")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--stage", type=int)
    parser.add_argument("--pipeline", action="store_true")
    parser.add_argument("--width", type=int)
    parser.add_argument("--threshold", type=int, help="parameters up to this size are on every rank")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save", metavar="DIR", help="save here after the last step")
    parser.add_argument("--resume", metavar="DIR", help="go on from here")
    parser.add_argument("--tag", type=lambda text: int(text) if text.isdigit() else text, help="the step to go on from, if no `latest` names it")
    parser.add_argument("--plain", action="store_true", help="save and resume by the engine's own functions")
    parser.add_argument("--pretend", metavar="VERSION", help="of DeepSpeed")
    parser.add_argument("--universal", metavar="DIR", help="go on from DeepSpeed's universal checkpoint there")
    parser.add_argument("--small-decay", type=float, help="the weight decay of small parameters")
    parser.add_argument("--warm", action="store_true", help="train a step before the load")
    parser.add_argument("--no-state", action="store_true", help="leave it out of the result: it is not right with --round-robin")
    parser.add_argument("--without-scheduler", action="store_true", help="as Lightning loads")
    parser.add_argument("--out", required=True, help="the result, .RANK is appended")
    parser.set_defaults(**variety.DEFAULTS)
    return parser.parse_args()


def state_of(torch, deepspeed, engine):
    """Returns the digest of every parameter and its states, gathered, and the optimizer's settings."""
    found = {name: {state: one["sha256"] for state, one in states.items()}
             for name, states in variety.truth(torch, deepspeed, engine, engine.zero_optimization_stage()).items()}
    found["settings"] = [{key: repr(value) for key, value in sorted(group.items()) if key != "params"}
                         for group in engine.optimizer.optimizer.param_groups]
    found["loss scale"] = repr(engine.optimizer.cur_scale if hasattr(engine.optimizer, "cur_scale") else None)
    found["scheduler"] = repr(engine.lr_scheduler.state_dict()) if engine.lr_scheduler else None
    found["counters"] = [engine.global_steps, engine.global_samples, engine.skipped_steps]
    found["steps"] = sorted(int(state["step"]) for state in engine.optimizer.optimizer.state.values())
    return found


def note_reads(noted):
    """The bytes that each ckptfs.Checkpoint.load_boxes reads."""
    from ckptfs.loading import Checkpoint
    plain = Checkpoint.load_boxes

    def load_boxes(*given):
        report = plain(*given)
        noted.append(report.read)
        return report

    Checkpoint.load_boxes = load_boxes


def part_of(engine):
    """Bytes of this rank's part of all that is loaded by names: three times fp32 of what is trained, the frozen as they are."""
    if engine.zero_optimization_stage() < 3:
        own = sum(flat.numel() - padding for flat, padding in zip(engine.optimizer.single_partition_of_fp32_groups,
                                                                  engine.optimizer.groups_padding, strict=True))
        return 12 * own + sum(parameter.numel() * parameter.element_size() for parameter in engine.module.parameters()
                              if not parameter.requires_grad)
    return sum(12 * parameter.partition_numel() if parameter.requires_grad else parameter.partition_numel() *
               parameter.element_size() for parameter in engine.module.parameters())


def main():
    options = parse_arguments()
    rank = int(os.environ["RANK"])
    import deepspeed
    import torch

    import ckptfs.deepspeed

    deepspeed.__version__ = options.pretend or deepspeed.__version__
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(20_240_229 + (1 if options.resume else 0))  # a resume must not profit from the same random start
    deepspeed.init_distributed(dist_backend="gloo")
    engine = variety.build(torch, deepspeed, options, scheduler=True)
    first = 0
    if options.warm:
        variety.train(torch, engine, 1, rank)
    read, cost = [], {}
    note_reads(read)
    if options.universal:
        engine.load_checkpoint(options.universal)
        first = engine.global_steps
    if options.resume:
        load = engine.load_checkpoint if options.plain else functools.partial(ckptfs.deepspeed.load_checkpoint, engine)
        torch.distributed.barrier()
        peak, start = Peak(), time.monotonic()
        load(options.resume, options.tag, load_lr_scheduler_states=not options.without_scheduler)
        cost = {"seconds": time.monotonic() - start, "peak": peak()}
        first = engine.global_steps
    losses = variety.train(torch, engine, options.steps, rank, first)
    if options.save:
        save = engine.save_checkpoint if options.plain else functools.partial(ckptfs.deepspeed.save_checkpoint, engine)
        save(options.save)
    result = {"losses": losses, "first": first, "cost": cost, "read": sum(read), "part": part_of(engine) if read else 0,
              "state": {} if options.no_state else state_of(torch, deepspeed, engine)}
    with open(f"{options.out}.{rank}", "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1, sort_keys=True)
    end_rank()


if __name__ == "__main__":
    sys.exit(main())
