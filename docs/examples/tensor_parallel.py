"""Tensor parallelism within pairs of ranks, data parallelism between them: what the pairs share is written once.

    torchrun --nproc-per-node 4 tensor_parallel.py SERIES
"""

import sys

import ckptfs
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group()
mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})

saver = ckptfs.Saver(sys.argv[1], group=True)
saver.save("step_1", model.state_dict()).wait()

before = {name: tensor.full_tensor().clone() for name, tensor in model.state_dict().items()}
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
ckptfs.load(f"{sys.argv[1]}/step_1", into=model, group=True, mode="broadcast")
assert all(torch.equal(tensor.full_tensor(), before[name]) for name, tensor in model.state_dict().items())
print("loaded")
saver.close()
dist.barrier()
dist.destroy_process_group()
