"""One rank that saves and loads in one way for each line of input; groups.py starts all ranks of a group.

    group_mover.py RANK RANKS PORT BYTES

save: {"how", "series", "tag"} -> {"stall", "durable": seconds, "extra": bytes of memory at the peak beside the state}
load: {"how", "path"} -> {"seconds", "extra"}

The state has BYTES in all: three quarters are cut by rows over the ranks, the rest is the same on all of them.
"""

import datetime
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "gpu", "python"))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from mover import status
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import ckptfs

SHARDED, SHARED = 48, 16  # tensors


class Rank:
    def __init__(self, size):
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        rows, columns = 64 * dist.get_world_size(), size // 64 // 4 // (64 * dist.get_world_size())
        torch.manual_seed(dist.get_rank())
        self.state = {f"sharded.{number}": DTensor.from_local(torch.randn(64, columns), self.mesh, [Shard(0)],
                                                              run_check=False) for number in range(SHARDED)}
        torch.manual_seed(99)
        self.state |= {f"shared.{number}": torch.randn(rows, columns) for number in range(SHARED)}
        self.savers = {}
        self.planner = dcp.DefaultSavePlanner(enable_plan_caching=True)

    def saver(self, how, series):
        if (how, series) not in self.savers:
            self.savers[how, series] = ckptfs.Saver(series, group=True, copies=how == "ckptfs, copies")
        return self.savers[how, series]

    def save(self, how, series, tag):
        dist.barrier()
        watch = Watch()
        if how.startswith("ckptfs"):
            save = self.saver(how, series).save(tag, self.state)
            save.wait_copied()
            stall = watch.seconds()
            save.wait()
        elif how == "dcp.async_save":
            future = dcp.async_save(self.state, checkpoint_id=f"{series}/{tag}")
            stall = watch.seconds()
            future.result()
        else:
            planner = self.planner if "cached" in how else None
            dcp.save(self.state, checkpoint_id=f"{series}/{tag}", planner=planner)
            stall = watch.seconds()
        return {"stall": stall, "durable": watch.seconds(), "extra": watch.extra()}

    def load(self, how, path):
        dist.barrier()
        watch = Watch()
        if how == "dcp.load":
            dcp.load(self.state, checkpoint_id=path)
        else:
            ckptfs.load(path, into=self.state, group=True, mode=how.partition(", ")[2])
        return {"seconds": watch.seconds(), "extra": watch.extra()}


class Watch:
    def __init__(self):
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self.before, self.begun = status("VmRSS"), time.monotonic()

    def seconds(self):
        return time.monotonic() - self.begun

    def extra(self):
        return status("VmHWM") - self.before


def main(rank, ranks, port, size):
    os.environ.update(RANK=rank, WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    answers, sys.stdout = sys.stdout, sys.stderr
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=5))
    torch.set_num_threads(1)
    one = Rank(int(size))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(getattr(one, question.pop("do"))(**question)), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
