"""A flat buffer that is cut over the ranks without regard to the tensors in it, as ZeRO does.

    torchrun --nproc-per-node 3 zero_pieces.py SERIES
"""

import sys

import ckptfs
import torch
import torch.distributed as dist

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()
shapes = {"embedding": (100, 7), "layer.weight": (31, 31), "layer.bias": (31,)}
torch.manual_seed(1)
whole = torch.cat([torch.randn(shape).view(-1) for shape in shapes.values()])
begin, end = (len(whole) * number // ranks for number in (rank, rank + 1))
mine = whole[begin:end].clone()


def slices(buffer):
    """What this rank's part of the flat buffer is of each tensor."""
    found, at = [], 0
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        first, last = max(begin, at), min(end, at + count)
        if first < last:
            found.append(ckptfs.Slice(name, shape, (first - at, last - at), buffer[first - begin:last - begin]))
        at += count
    return found


saver = ckptfs.Saver(sys.argv[1], group=True)
saver.save("step_1", slices(mine)).wait()

loaded = torch.zeros_like(mine)
ckptfs.load(f"{sys.argv[1]}/step_1", into=slices(loaded), group=True)
assert torch.equal(loaded, mine)
one = ckptfs.load(f"{sys.argv[1]}/step_1", names=["layer.weight"])["layer.weight"]  # whole, and without a group
assert torch.equal(one.view(-1), whole[700:700 + 31 * 31])
print("loaded")
saver.close()
dist.barrier()
dist.destroy_process_group()
