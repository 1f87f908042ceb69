"""Trains a small model that has one of everything with the real DeepSpeed, saves it, and tells what each tensor is.

Odd sizes, parameters too small to swap, two groups of parameters, one that is frozen, two that are tied, buffers of two
types. One process is one rank, as in train.py. Rank 0 writes the truth: for each parameter the digest and the length of
each of its states, as the engine itself tells them at the save (safe_get_full_fp32_param and the like).
"""

import argparse
import hashlib
import json
import os
import sys

from ending import end_rank

WIDTH = 901  # odd, and large enough that three ranks swap
STATES = ("exp_avg", "exp_avg_sq")
DEFAULTS = {"stage": 3, "dtype": "bf16", "pipeline": False, "width": WIDTH, "threshold": 4096, "layers_a_group": 1.5,
            "no_offload": False, "offload": False, "round_robin": False, "small_decay": 0.0, "universal": None}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", type=int)
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--nvme", required=True, help="the folder to swap to, or 'none' to keep all in memory")
    parser.add_argument("--pipeline", action="store_true", help="pipelined swapping of the optimizer")
    parser.add_argument("--width", type=int)
    parser.add_argument("--steps", type=int, default=2)
    parser.set_defaults(**DEFAULTS)
    parser.add_argument("--save", metavar="DIR")
    parser.add_argument("--tag")
    parser.add_argument("--universal", metavar="DIR", help="begin with DeepSpeed's universal checkpoint there")
    parser.add_argument("--out", required=True, help="the truth, as JSON")
    return parser.parse_args()


def deepspeed_config(options, scheduler=False):
    zero = {"stage": options.stage, "overlap_comm": False, "contiguous_gradients": True,
            "round_robin_gradients": options.round_robin}
    if options.stage == 3:
        zero.update(sub_group_size=int(options.width * options.width * options.layers_a_group),
                    stage3_param_persistence_threshold=options.threshold)
    if options.nvme != "none":
        count = 12 if options.pipeline else 4
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": options.nvme, "pin_memory": False,
                                     "buffer_count": count, "pipeline_read": options.pipeline,
                                     "pipeline_write": options.pipeline}
    elif options.offload or options.stage == 3 and not options.no_offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "steps_per_print": 1 << 30,
        # Where it is not offloaded DeepSpeed would compile an Adam of its own.
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": "offload_optimizer" not in zero}},
        "zero_optimization": zero,
        "aio": {"block_size": 1 << 20, "queue_depth": 8, "intra_op_parallelism": 1, "single_submit": False,
                "overlap_events": True},
    }
    if options.dtype != "fp32":
        config[options.dtype] = {"enabled": True}
        if options.dtype == "fp16":
            config["fp16"]["initial_scale_power"] = 4
    if options.universal:
        config["checkpoint"] = {"load_universal": True}
    if scheduler:
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-3,
                                                              "warmup_num_steps": 7, "warmup_type": "linear"}}
    return config


def model_class(torch, width):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(97, width)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
            self.norm = torch.nn.LayerNorm(width)
            self.frozen = torch.nn.Linear(width, 77, bias=False)
            self.head = torch.nn.Linear(width, 97, bias=False)
            self.head.weight = self.embedding.weight
            self.scalar = torch.nn.Parameter(torch.ones(1))
            self.register_buffer("seen", torch.tensor(3, dtype=torch.int64))
            self.register_buffer("mean", torch.arange(5, dtype=torch.float32) / 3)
            self.register_buffer("scratch", torch.zeros(4), persistent=False)
            self.frozen.weight.requires_grad_(False)

        def forward(self, tokens, target):
            x = self.embedding(tokens)
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
            x = self.norm(x) * self.scalar
            x = x + self.frozen(x).sum(-1, keepdim=True)
            return torch.nn.functional.cross_entropy(self.head(x).float().view(-1, 97), target.view(-1))

    return Model


def pretend_to_pin(accelerator):
    """Version 0.18 swaps pinned memory only, and pins none on the CPU. So what it asks to pin counts as pinned, as on a GPU."""
    pinned = []

    def pin(tensor, align_bytes=1):
        pinned.append(tensor)
        return tensor

    accelerator.pin_memory = pin
    accelerator.is_pinned = lambda tensor: any(0 <= tensor.data_ptr() - one.data_ptr() < one.nbytes for one in pinned)


def build(torch, deepspeed, options, scheduler=False):
    if options.dtype == "fp16":  # torch computes it on any processor; DeepSpeed wants instructions for it
        deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
    if deepspeed.__version__.startswith("0.18."):
        pretend_to_pin(deepspeed.accelerator.get_accelerator())
    config = deepspeed_config(options, scheduler)
    make = model_class(torch, options.width)
    if options.stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = make()
    else:
        model = make()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    large = [getattr(parameter, "ds_shape", parameter.shape).numel() > options.width for parameter in trained]
    groups = [{"params": [p for p, is_large in zip(trained, large) if is_large], "weight_decay": 0.01},
              {"params": [p for p, is_large in zip(trained, large) if not is_large], "weight_decay": options.small_decay}]
    return deepspeed.initialize(model=model, model_parameters=groups, config=config)[0]


def train(torch, engine, steps, rank, first=0):
    """The losses, as hexadecimal floats."""
    losses = []
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(1_000_003 * step + rank)
        tokens = torch.randint(97, (2, 7), generator=generator)
        target = torch.randint(97, (2, 7), generator=generator)
        loss = engine(tokens, target)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()).hex())
    return losses


def described(torch, tensor):
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape),
            "sha256": hashlib.sha256(data).hexdigest()}


def truth(torch, deepspeed, engine, stage):
    """name -> state -> what it is; collective."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    if stage < 3:  # DeepSpeed links the states when the first group has stepped, and the others have none yet
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    found = {}
    for name, parameter in engine.module.named_parameters():
        states = {}
        with deepspeed.zero.GatheredParameters([parameter], enabled=stage == 3):
            states["param"] = described(torch, parameter.data)
        if parameter.requires_grad:
            states["fp32"] = described(torch, safe_get_full_fp32_param(parameter))
            for state in STATES:
                states[state] = described(torch, safe_get_full_optimizer_state(parameter, state))
        found[name] = states
    for name in engine.module.state_dict().keys() & dict(engine.module.named_buffers()).keys():
        found[name] = {"param": described(torch, engine.module.get_buffer(name))}
    return found


def main():
    options = parse_arguments()
    rank = int(os.environ["RANK"])
    import torch
    import deepspeed

    torch.set_num_threads(1)
    torch.manual_seed(20_240_229)
    deepspeed.init_distributed(dist_backend="gloo")
    engine = build(torch, deepspeed, options)
    if options.universal:
        engine.load_checkpoint(options.universal)
    train(torch, engine, options.steps, rank)
    if options.save:
        engine.save_checkpoint(options.save, tag=options.tag)
    found = truth(torch, deepspeed, engine, options.stage)
    if rank == 0:
        with open(options.out, "w", encoding="utf-8") as out:
            json.dump(found, out, indent=1, sort_keys=True)
    end_rank()


if __name__ == "__main__":
    sys.exit(main())
