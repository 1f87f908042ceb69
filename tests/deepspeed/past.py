"""Trains a small model with ZeRO, in memory, and saves or loads it through a checkpoint engine; tells what came out.

One process is one rank, as in train.py. The result is one JSON file a rank: losses, a digest of each tensor of model
and optimizer, and the peak of the process's memory while it trained, saved and loaded.
"""

import argparse
import functools
import hashlib
import json
import os
import sys
import time

from ending import end_rank


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--engine", choices=("stock", "ckptfs"), default="stock")
    parser.add_argument("--offload", action="store_true", help="the optimizer's state in CPU memory, as DeepSpeed offloads it")
    parser.add_argument("--nvme", metavar="FOLDER", help="the optimizer's state in swap files there")
    parser.add_argument("--save", metavar="SERIES")
    parser.add_argument("--load", metavar="SERIES")
    parser.add_argument("--wait", action="store_true", help="for the step to be there, before the next")
    parser.add_argument("--after", type=int, default=0, help="steps after the save")
    parser.add_argument("--repeat", type=int, default=1, help="train and save so often")
    parser.add_argument("--ring", type=int, default=64, help="MiB of pinned memory")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def config(options):
    zero = {"stage": options.stage, "overlap_comm": False, "contiguous_gradients": True,
            "sub_group_size": options.width * options.width * 3, "stage3_param_persistence_threshold": 4096}
    if options.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    if options.nvme:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": options.nvme, "pin_memory": False, "buffer_count": 4}
    on_cpu = options.offload or options.nvme
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "steps_per_print": 1 << 30,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 0.01, "torch_adam": not on_cpu}},
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "aio": {"block_size": 1 << 20, "queue_depth": 8, "intra_op_parallelism": 1, "single_submit": False,
                "overlap_events": True},
    }


def build(torch, deepspeed, options):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(options.width, options.width) for _ in range(options.layers))
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x, target):
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
            return torch.nn.functional.mse_loss(x.float(), target.float())

    with deepspeed.zero.Init(config_dict_or_path=config(options), enabled=options.stage == 3):
        model = Model()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(options))[0]


class Peak:
    """Peak of the resident memory (VmHWM) since it was made, in bytes."""

    def __init__(self):
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")

    def __call__(self):
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def train(torch, engine, options, steps, rank):
    losses = []
    for step in range(engine.global_steps, engine.global_steps + steps):
        generator = torch.Generator().manual_seed(1_000_003 * step + rank)
        x = torch.randn(4, options.width, generator=generator).to(torch.bfloat16)
        loss = engine(x, x.flip(0))
        engine.backward(loss)
        engine.step()
        engine.module.seen += 1
        losses.append(float(loss.detach()).hex())
    return losses


def digest(torch, tensor):
    data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.sha256(memoryview(data)).hexdigest()


def state_of(torch, deepspeed, engine, swapped):
    """Digest of each tensor: parameters, buffers, masters, and what the optimizer keeps. What is swapped out shows in the
    losses of the steps that follow."""
    optimizer, found = engine.optimizer, {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=engine.zero_optimization_stage() == 3):
            found[f"parameter/{name}"] = digest(torch, parameter)
    for name, buffer in engine.module.named_buffers():
        found[f"buffer/{name}"] = digest(torch, buffer)
    if swapped:
        return found
    masters = getattr(optimizer, "fp32_partitioned_groups_flat", None) or optimizer.single_partition_of_fp32_groups
    for number, master in enumerate(masters):
        found[f"master/{number}"] = digest(torch, master)
        for kind, value in optimizer.optimizer.state.get(master, {}).items():
            found[f"{kind}/{number}"] = digest(torch, value) if torch.is_tensor(value) else str(value)
    return found


def main():
    options = parse_arguments()
    rank = int(os.environ["RANK"])

    import torch
    import deepspeed
    from deepspeed import comm as dist

    torch.set_num_threads(1)
    torch.manual_seed(20_240_229 if not options.load else 7)
    deepspeed.init_distributed(dist_backend="gloo")
    engine = build(torch, deepspeed, options)
    result = {"losses": [], "saves": []}
    save, load = engine.save_checkpoint, engine.load_checkpoint
    if options.engine == "ckptfs":
        import ckptfs.deepspeed
        ckptfs.configure(ring=options.ring << 20, slot=4 << 20)
        engine.checkpoint_engine = ckptfs.deepspeed.CheckpointEngine(engine)
        save, load = engine.save_checkpoint, engine.load_checkpoint
    if options.nvme:  # DeepSpeed's own leave out half of such an optimizer
        import ckptfs.deepspeed
        save, load = (functools.partial(function, engine) for function in
                      (ckptfs.deepspeed.save_checkpoint, ckptfs.deepspeed.load_checkpoint))
    if options.load:
        peak = Peak()
        path, _ = load(options.load)
        result["load_peak"] = peak()
        if path is None:
            raise SystemExit(f"past: nothing to load in {options.load}")
        result["loaded"] = state_of(torch, deepspeed, engine, options.nvme)
    for _ in range(options.repeat):
        peak = Peak()
        result["losses"] += train(torch, engine, options, options.steps, rank)
        result["train_peak"] = peak()
        if options.save:
            result["saved"] = state_of(torch, deepspeed, engine, options.nvme)
            dist.barrier()
            start = time.monotonic()
            save(options.save)
            result["saves"].append(time.monotonic() - start)
            if options.wait and options.engine == "ckptfs":
                result["waited"] = engine.checkpoint_engine.wait()
    result["losses"] += train(torch, engine, options, options.after, rank)
    if options.engine == "ckptfs":
        engine.checkpoint_engine.cleanup()
    with open(f"{options.out}.{rank}", "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1, sort_keys=True)
    end_rank()


if __name__ == "__main__":
    sys.exit(main())
