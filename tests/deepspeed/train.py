"""Trains a small ZeRO-3 model with the real, unmodified DeepSpeed on the CPU, and tells exactly what came out.

One process is one rank: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT come from the environment (harness.py
sets them). Everything is seeded and single-threaded, so that two runs that differ only in where DeepSpeed swaps to must
agree to the last bit. The result is one JSON file a rank: losses as hexadecimal floats, and a digest of each tensor.
"""

import argparse
import ctypes
import glob
import hashlib
import json
import os
import pathlib
import shutil
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import memory
from ending import end_rank

# Parameters a layer: "aligned" puts every tensor at a multiple of 128 elements in its sub-group, "odd" does not.
WIDTHS = {"aligned": 1024, "odd": 1100}
STATES = ("fp32", "exp_avg", "exp_avg_sq")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nvme", required=True, help="the folder to swap to, or 'none' to keep all in memory")
    parser.add_argument("--shape", choices=sorted(WIDTHS), default="aligned")
    parser.add_argument("--width", type=int, default=0, help="parameters a side of a layer, instead of the shape's")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--pipeline", action="store_true", help="pipelined swapping of the optimizer")
    parser.add_argument("--save", metavar="DIR", help="save_checkpoint here after the last step")
    parser.add_argument("--tag", help="the tag to save or to resume under")
    parser.add_argument("--resume", metavar="DIR", help="load_checkpoint from here before the first step")
    parser.add_argument("--xattr-save", nargs=2, metavar=("SERIES", "TAG"),
                        help="before save_checkpoint, at the same moment, rank 0 saves by setxattr under this tag")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "STAT"),
                        help="what each save costs: with a syncfs of FOLDER, as counted by the block device's STAT file")
    parser.add_argument("--touch", action="store_true", help="free memory, before each of these clocks starts")
    parser.add_argument("--repeat", type=int, default=1, help="resume, or train and save, so often; with a tag only the last one stays")
    parser.add_argument("--progress", metavar="FILE", help="append a line to this file at each step")
    parser.add_argument("--out", required=True, help="the result, .RANK is appended")
    return parser.parse_args()


def deepspeed_config(options, width):
    layer = width * width + width
    zero = {
        "stage": 3,
        "sub_group_size": layer * 3 // 2,  # two layers a sub-group, and a last one of another size
        "stage3_param_persistence_threshold": 4096,
        "overlap_comm": False,
        "contiguous_gradients": True,
    }
    if options.nvme == "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
        zero["offload_param"] = {"device": "cpu", "pin_memory": False}
    else:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": options.nvme, "pin_memory": False,
                                     "buffer_count": 12 if options.pipeline else 4,
                                     "pipeline_read": options.pipeline, "pipeline_write": options.pipeline}
        zero["offload_param"] = {"device": "nvme", "nvme_path": options.nvme, "pin_memory": False,
                                 "buffer_count": 8, "buffer_size": 2 * width * width}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "steps_per_print": 1 << 30,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 0.01}},
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "aio": {"block_size": 1 << 20, "queue_depth": 8, "intra_op_parallelism": 1, "single_submit": False,
                "overlap_events": True},
    }


def build(torch, deepspeed, config, width, layers):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

        def forward(self, x, target):
            for layer in self.layers:
                x = x + torch.tanh(layer(x))
            return torch.nn.functional.mse_loss(x.float(), target.float())

    with deepspeed.zero.Init(config_dict_or_path=config, enabled=config["zero_optimization"]["stage"] == 3):
        model = Model()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


class Cost:
    """Seconds, and bytes written to the device, until all of it is there."""

    def __init__(self, measure, touch=False):
        self.folder, self.stat = measure or (None, None)
        self.touch = touch

    def settle(self):
        if self.folder:
            folder = os.open(self.folder, os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).syncfs(folder) != 0:
                raise OSError(ctypes.get_errno(), "syncfs", self.folder)
            os.close(folder)

    def written(self):
        if not self.stat:
            return 0
        with open(self.stat, encoding="ascii") as file:
            return int(file.read().split()[6]) * 512

    def of(self, action, wait=lambda: None):
        """`wait`: for the others, before the clock starts."""
        self.settle()
        if self.touch:
            memory.touch_free()
        wait()
        before, start = self.written(), time.monotonic()
        action()
        returned = time.monotonic() - start
        self.settle()
        return {"returned": returned, "synced": time.monotonic() - start, "bytes": self.written() - before}


def note_copies(cost, dist, noted):
    """What DeepSpeed's copytrees cost, from when all ranks begin to when the last one is done."""
    plain = shutil.copytree

    def copytree(*arguments, **named):
        def copy():
            plain(*arguments, **named)
            dist.barrier()

        shutil.copytree = plain  # it calls itself
        noted.append(cost.of(copy, dist.barrier))
        dist.barrier()
        shutil.copytree = copytree

    shutil.copytree = copytree


def train(torch, engine, width, first, steps, rank, progress):
    losses = []
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(1_000_003 * (step % 2) + rank)
        x = torch.randn(4, width, generator=generator).to(torch.bfloat16)
        target = torch.randn(4, width, generator=generator).to(torch.bfloat16)
        loss = engine(x, target)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()).hex())
        if progress and rank == 0:
            with open(progress, "a", encoding="ascii") as file:
                file.write(f"step {step + 1}: loss {float(loss.detach()):.6f}\n")
    return losses


def digest(data):
    return hashlib.sha256(data).hexdigest()


def tensor_bytes(torch, tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def head(path, length):
    """The first `length` bytes of a file, as every program reads them: buffered."""
    with open(path, "rb") as file:
        data = file.read(length)
    if len(data) != length:
        raise SystemExit(f"train: {path} holds {len(data)} bytes of the {length} of its tensor")
    return data


def swap_folder(engine):
    swapper = getattr(engine.optimizer, "optimizer_swapper", None)
    return swapper.swap_folder if swapper else None


def group_tensors(torch, engine):
    """Digest of each sub-group's master weights and Adam moments: from its swap file where it has one, else memory."""
    optimizer, folder = engine.optimizer, swap_folder(engine)
    found, lengths = {}, {}
    for index, master in enumerate(optimizer.fp32_partitioned_groups_flat):
        name = master.ds_id
        length = int(optimizer.fp16_partitioned_groups_flat_numel[index]) * 4
        states = optimizer.optimizer.state.get(master, {})
        for kind in STATES:
            file = f"{name}.tensor.swp" if kind == "fp32" else f"{kind}-{name}.tensor.swp"
            if folder and os.path.exists(os.path.join(folder, file)):
                lengths[file] = length
                data = head(os.path.join(folder, file), length)
            else:
                data = tensor_bytes(torch, master if kind == "fp32" else states[kind])
            found[f"{name}/{kind}"] = digest(data)
    return found, lengths


def parameters(torch, deepspeed, engine):
    """Digest of each 16-bit parameter, gathered from all ranks."""
    found = {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            found[name] = digest(tensor_bytes(torch, parameter))
    return found


def param_files(nvme, engine, rank):
    """Each swapped 16-bit partition: name -> [length of the file, of the tensor, digest over the tensor]."""
    found = {}
    sizes = {parameter.ds_id: parameter.partition_numel() * 2 for parameter in engine.module.parameters()}
    for path in glob.glob(os.path.join(nvme, "zero_stage_3", "bfloat16params", f"rank{rank}", "*.tensor.swp")):
        length = sizes[int(os.path.basename(path).split("_")[0])]
        found[os.path.basename(path)] = [os.stat(path).st_size, length, digest(head(path, length))]
    return found


def resume(engine, options):
    loaded, _ = engine.load_checkpoint(options.resume, tag=options.tag)
    if not loaded:
        raise SystemExit(f"train: nothing to resume from in {options.resume}")


def checkpoint(engine, options, rank, dist, result):
    """The save by setxattr, and right after it, with nothing in between, DeepSpeed's own."""
    cost = Cost(options.measure if rank == 0 else None, options.touch and rank == 0)
    if options.xattr_save:
        series, tag = options.xattr_save
        dist.barrier()
        if rank == 0:
            result["xattr_cost"] = cost.of(lambda: os.setxattr(series, "user.ckptfs.save", tag.encode()))
        dist.barrier()
    if options.save:
        dist.barrier()
        result["save_cost"] = cost.of(lambda: engine.save_checkpoint(options.save, tag=options.tag))


def main():
    options = parse_arguments()
    rank = int(os.environ["RANK"])
    width = options.width or WIDTHS[options.shape]

    import torch
    import deepspeed
    from deepspeed import comm as dist

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(20_240_229)
    deepspeed.init_distributed(dist_backend="gloo")
    engine = build(torch, deepspeed, deepspeed_config(options, width), width, options.layers)

    result, first = {"rank": rank, "losses": [], "copies": [], "loads": [], "train_seconds": []}, 0
    cost = Cost(options.measure if rank == 0 else None, options.touch and rank == 0)
    if options.measure:
        note_copies(cost, dist, result["copies"])
    if options.resume:
        for _ in range(options.repeat):
            result["loads"].append(cost.of(lambda: resume(engine, options)))
        first = engine.global_steps
        result["resumed_at"] = first
    for number in range(options.repeat if options.save else 1):
        if number > 0 and rank == 0 and options.tag:
            shutil.rmtree(os.path.join(options.save, options.tag))
        start = time.monotonic()
        result["losses"] += train(torch, engine, width, first, options.steps, rank, options.progress)
        result["train_seconds"].append(time.monotonic() - start)
        first += options.steps
        checkpoint(engine, options, rank, dist, result)

    result["groups"], result["state_files"] = group_tensors(torch, engine)
    if options.nvme != "none":
        result["param_files"] = param_files(options.nvme, engine, rank)
    result["parameters"] = parameters(torch, deepspeed, engine)
    with open(f"{options.out}.{rank}", "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1, sort_keys=True)
    end_rank()


if __name__ == "__main__":
    sys.exit(main())
