"""Trains under FSDP2, and saves the model with the states of its optimizer. Goes on from the newest complete step, on
any number of ranks.

    torchrun --nproc-per-node 2 fsdp2.py SERIES 3      SERIES: /ckpt/steps, or a shared folder
    torchrun --nproc-per-node 4 fsdp2.py SERIES 6      from step_3 on, on four ranks

It does not save optimizers["param_groups"], such as the learning rate: these are no tensors (docs/groups.md).
"""

import pathlib
import sys

import ckptfs
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

series, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group()
is_first = dist.get_rank() == 0
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
saver = ckptfs.Saver(series, group=True)


def state():
    """The tensors of the model and of the optimizer, by their names."""
    weights, optimizers = get_state_dict(model, optimizer)
    return weights, optimizers, {"model": weights, "optimizer": optimizers["state"]}


def newest():
    """The path of the newest complete step, or None. One rank looks, so that all hear the same."""
    found = [None]
    if is_first:
        try:
            step = ckptfs.latest(series)
            found = [step and step.path]
        except ValueError:  # a shared folder without a mount, where a step appears only when it is whole
            steps = [path for path in pathlib.Path(series).glob("step_*") if path.name[5:].isdigit()]
            found = [max(steps, key=lambda path: int(path.name[5:]), default=None)]
    dist.broadcast_object_list(found)
    return found[0]


done = 0
if path := newest():
    weights, optimizers, tensors = state()
    ckptfs.load(path, into=tensors, group=True)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=optimizers)
    done = int(path.name.removeprefix("step_"))
    if is_first:
        print(f"goes on from {path.name}")

save = None
for step in range(done + 1, steps + 1):
    batch = torch.randn(4, 64, generator=torch.Generator().manual_seed(step))
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if is_first:
        print(f"{step} {loss.item():.6f}")
    if save:
        save.wait()  # raises what went wrong in the save before; by now it has ended
    save = saver.save(f"step_{step}", state()[2])
    save.finish_behind()  # returns when the tensors may change; the step appears later
if save:
    save.wait()
saver.close()
dist.barrier()
dist.destroy_process_group()
