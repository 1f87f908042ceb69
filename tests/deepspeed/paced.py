"""Trains the model of variety.py with the optimizer on NVMe. For each line on stdin it takes a step, saves it by the
engine's own function, and answers by a line. It begins with the step that `latest` names, if there is one.

One process, which is the only rank.
"""

import argparse
import json
import os
import sys
import time

import variety


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvme", required=True)
    parser.add_argument("--series", required=True, help="where to save")
    parser.add_argument("--plain", action="store_true", help="load by the engine's own function")
    parser.set_defaults(**variety.DEFAULTS | {"width": 1024})
    return parser.parse_args()


def main():
    options = parse_arguments()
    import deepspeed
    import torch

    import ckptfs.deepspeed

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(20_240_229)
    deepspeed.init_distributed(dist_backend="gloo")
    engine = variety.build(torch, deepspeed, options)
    if os.path.exists(os.path.join(options.series, "latest")):
        if options.plain:
            engine.load_checkpoint(options.series)
        else:
            ckptfs.deepspeed.load_checkpoint(engine, options.series)
    print(json.dumps("ready"), flush=True)
    while sys.stdin.readline():
        [loss] = variety.train(torch, engine, 1, 0, engine.global_steps)
        began = time.monotonic()
        engine.save_checkpoint(options.series)
        told = {"step": engine.global_steps, "loss": loss, "returned": time.monotonic() - began}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    sys.exit(main())
