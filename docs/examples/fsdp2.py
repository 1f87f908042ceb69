"""Saves and loads a model under FSDP2 with the states of its optimizer.

    torchrun --nproc-per-node 2 fsdp2.py SERIES      SERIES is a folder on the mount: /ckpt/steps

It does not save optimizers["param_groups"], such as the learning rate: these are no tensors (docs/groups.md). A second run
into the same folder fails with PermissionError, because the steps of the first one are sealed.
"""

import sys

import ckptfs
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
saver = ckptfs.Saver(sys.argv[1], group=True)


def state():
    """The tensors of the model and of the optimizer, by their names."""
    weights, optimizers = get_state_dict(model, optimizer)
    return weights, optimizers, {"model": weights, "optimizer": optimizers["state"]}


for step in range(3):
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    save = saver.save(f"step_{step}", state()[2])
    save.finish_behind()  # returns when the tensors may change; the step appears later
save.wait()

wanted = model(torch.ones(1, 64))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
weights, optimizers, tensors = state()
ckptfs.load(f"{sys.argv[1]}/step_2", into=tensors, group=True)
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=optimizers)
assert torch.equal(model(torch.ones(1, 64)), wanted)
print("loaded")
saver.close()
dist.barrier()
dist.destroy_process_group()
