"""Trains with the real DeepSpeed and saves a checkpoint after each step, into a series whose old steps go meanwhile.

One process is one rank. Each rank writes, as JSON, the digests of the files of each step as they were right after the
save, the metric that rank 0 set on it, and at which step a resume went on.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import train
from ending import end_rank


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--series", required=True)
    parser.add_argument("--saves", type=int, required=True)
    parser.add_argument("--resume", action="store_true", help="from what `latest` names, first")
    parser.add_argument("--out", required=True, help="the result, .RANK is appended")
    parser.set_defaults(pipeline=False)
    return parser.parse_args()


def digests(step):
    return {str(path.relative_to(step)): train.digest(path.read_bytes()) for path in sorted(step.rglob("*"))
            if path.is_file()}


def metric_of(number):
    """Neither rising nor falling: the best are somewhere in the middle."""
    return (number * 7) % 11


def main():
    options = parse_arguments()
    rank = int(os.environ["RANK"])

    import torch
    import deepspeed
    from deepspeed import comm as dist

    torch.set_num_threads(1)
    torch.manual_seed(20_240_229)
    deepspeed.init_distributed(dist_backend="gloo")
    width = train.WIDTHS["aligned"]
    engine = train.build(torch, deepspeed, train.deepspeed_config(options, width), width, 3)
    result = {"saves": {}}
    if options.resume:
        loaded, _ = engine.load_checkpoint(options.series)
        if not loaded:
            raise SystemExit("rotating: nothing to resume from")
        result["resumed_at"] = engine.global_steps
    for _ in range(options.saves):
        train.train(torch, engine, width, engine.global_steps, 1, rank, None)
        engine.save_checkpoint(options.series)
        dist.barrier()
        step = pathlib.Path(options.series) / f"global_step{engine.global_steps}"
        if rank == 0:
            os.setxattr(step, "user.ckptfs.metric.score", str(metric_of(engine.global_steps)).encode())
            result["saves"][engine.global_steps] = digests(step)
        dist.barrier()
        time.sleep(0.2)
    with open(f"{options.out}.{rank}", "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1)
    end_rank()


if __name__ == "__main__":
    sys.exit(main())
