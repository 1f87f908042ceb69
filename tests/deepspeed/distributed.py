"""Trains a small model under FSDP2 on the CPU, saves it by DCP, and notes its true state.

    distributed.py FOLDER OUT       runs as one of WORLD_SIZE ranks, saves into FOLDER; rank 0 writes the truth to OUT

FSDP shards weights by rows. One weight is sharded by columns, as tensor parallelism does.
"""

import hashlib
import json
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from ending import end_rank

COLUMNS = "columns.weight"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(97, 12)
        self.layers = nn.Sequential(nn.Linear(12, 31), nn.ReLU(), nn.Linear(31, 5))
        self.narrow = nn.Linear(5, 3, bias=False, dtype=torch.bfloat16)
        self.register_buffer("seen", torch.arange(7))

    def forward(self, tokens):
        return self.narrow(self.layers(self.embedding(tokens)).to(torch.bfloat16)).float()


def described(tensor):
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    data = whole.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return {"dtype": str(whole.dtype).removeprefix("torch."), "shape": list(whole.shape),
            "sha256": hashlib.sha256(data).hexdigest()}


def main(folder, out):
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(7)
    model = Model()
    fully_shard(model.narrow, mesh=mesh)
    fully_shard(model.layers, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.arange(12).view(3, 4) + dist.get_rank()).square().mean().backward()
    optimizer.step()
    weights, states = get_state_dict(model, optimizer)
    weights[COLUMNS] = distribute_tensor(torch.randn(8, 31), mesh, [Shard(1)])
    dcp.save({"model": weights, "optim": states, "dice": torch.get_rng_state(), "epoch": 3}, checkpoint_id=folder)
    truth = {name: {"param": described(tensor)} for name, tensor in weights.items()}
    for name, of_parameter in states["state"].items():
        truth[name] |= {state: described(value) for state, value in of_parameter.items()}
    truth["dice"] = {"value": described(torch.get_rng_state())}
    if dist.get_rank() == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(truth, file)
    end_rank()


if __name__ == "__main__":
    main(*sys.argv[1:])
