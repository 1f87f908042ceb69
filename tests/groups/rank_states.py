"""What the ranks of both kinds of groups have: a model under FSDP2, the digests of a state, and the loop over the acts."""

import hashlib
import json
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(97, 12)
        self.layers = nn.Sequential(nn.Linear(12, 331), nn.ReLU(), nn.Linear(331, 5))
        self.narrow = nn.Linear(5, 3, bias=False, dtype=torch.bfloat16)
        self.register_buffer("seen", torch.arange(7))

    def forward(self, tokens):
        return self.narrow(self.layers(self.embedding(tokens)).to(torch.bfloat16)).float()


def trained(mesh, seed):
    """The state dicts of the model and of its AdamW after a step under FSDP2. The seed decides what is in them."""
    torch.manual_seed(seed)
    model = Model()
    for part in (model.narrow, model.layers, model):
        fully_shard(part, mesh=mesh)  # on a mesh of two dimensions: replicated over the first
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model((torch.arange(12).view(3, 4) + seed) % 97).square().mean().backward()
    optimizer.step()
    return get_state_dict(model, optimizer)


def flattened(value, name=""):
    """{name: leaf} of dicts and lists in each other."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if children is None:
        return {name: value}
    return {inner: one for key, part in children
            for inner, one in flattened(part, f"{name}/{key}" if name else str(key)).items()}


def digest(tensor):
    """Of the whole tensor."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    data = whole.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return f"{whole.dtype} {list(whole.shape)} {hashlib.sha256(data).hexdigest()}"


def act_all(known, out, acts):
    """Does the acts, functions by their names, and writes after each what all so far had to say."""
    said = []
    for act in json.loads(acts):
        said.append(known[act.pop("act")](**act))
        pathlib.Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(said))
