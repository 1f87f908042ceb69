"""Makes the plan of a simulated group for each line of input, by libckptfs or by torch DCP; child.py starts it.

{"how": "ours" or "dcp", "case", "ranks", "tensors"} -> {"anew", "cached": seconds; "extra": bytes of memory at the
peak, beyond the descriptions; "most": bytes of the most loaded rank over the mean; "written": bytes over different ones}
"""

import gc
import json
import os
import sys
import time

from mover import status

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "gpu", "python"))

WIDTH, ELEMENT = 8192, 2
A_HOST = 8  # ranks


def shapes(tensors):
    """{name: shape}: of each eight tensors six are matrices, and two are vectors."""
    return {f"layers.{number // 8}.{number % 8}.weight": (WIDTH, WIDTH) if number % 8 < 6 else (WIDTH,)
            for number in range(tensors)}


def shard(shape, dimension, number, count):
    """(offsets, sizes) of one of `count` parts along a dimension."""
    most = -(-shape[dimension] // count)
    begin = min(shape[dimension], number * most)
    offsets, sizes = [0] * len(shape), list(shape)
    offsets[dimension], sizes[dimension] = begin, min(most, shape[dimension] - begin)
    return tuple(offsets), tuple(sizes)


def whole(shape):
    return (0,) * len(shape), shape


def fsdp(shape, rank, ranks):
    return shard(shape, 0, rank, ranks)


def hsdp(shape, rank, ranks):
    return shard(shape, 0, rank % (ranks // 8), ranks // 8)


def tensor_parallel(shape, rank, _ranks):
    """Eight shards of the columns; vectors are replicated, and so are the shards."""
    return shard(shape, 1, rank % 8, 8) if len(shape) == 2 else whole(shape)


# A group of each kind: the box that a rank holds, and how many ranks differ in what they hold.
CASES = {
    "replicated": (lambda shape, _rank, _ranks: whole(shape), lambda _ranks: 1),
    "FSDP": (fsdp, lambda ranks: ranks),
    "HSDP, 8 replicas": (hsdp, lambda ranks: ranks // 8),
    "TP 8, replicated": (tensor_parallel, lambda _ranks: 8),
}


def boxes(case, rank, ranks, tensors):
    """(name, shape, offsets, sizes) for each tensor."""
    box_of = CASES[case][0]
    return [(name, shape, *box_of(shape, rank, ranks)) for name, shape in shapes(tensors).items()]


def unique_bytes(tensors):
    return sum(ELEMENT * shape[0] * (shape[1] if len(shape) == 2 else 1) for shape in shapes(tensors).values())


class Memory:
    """The peak of this process's memory, beyond what is resident now."""

    def __init__(self):
        gc.collect()
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # the peak is that from now on
        self.before = status("VmRSS")

    def peak(self):
        return status("VmHWM") - self.before


def ours(case, ranks, tensors):
    from ckptfs import plans

    def held(rank):
        return [(name, "BF16", *rest) for name, *rest in boxes(case, rank, ranks, tensors)]

    distinct = CASES[case][1](ranks)
    described = [plans.describe(held(rank)) for rank in range(distinct)]
    # Bytes of its own for each rank, as if they had been received.
    descriptions = [bytes(bytearray(described[rank % distinct])) for rank in range(ranks)]
    digests = [plans.digest(one) for one in descriptions]
    hosts, cache = [rank // A_HOST for rank in range(ranks)], plans.PlanCache()
    memory, began = Memory(), time.monotonic()
    plan = cache.make(descriptions, digests, hosts, 0)
    anew, extra, own = time.monotonic() - began, memory.peak(), held(0)
    began = time.monotonic()
    digests[0] = plans.digest(plans.describe(own))
    if cache.find(digests, hosts, 0) is not plan:
        raise AssertionError("the plan is not in the cache")
    cached = time.monotonic() - began
    return answer(anew, cached, extra, plan.loads, tensors)


def dcp(case, ranks, tensors):
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
    properties = TensorProperties(dtype=torch.bfloat16)

    def item(name, shape, offsets, sizes):
        kind = WriteItemType.TENSOR if sizes == shape else WriteItemType.SHARD
        chunk = ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
        return WriteItem(index=MetadataIndex(name, torch.Size(offsets)), type=kind,
                         tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=torch.Size(shape)))

    local = [SavePlan([item(*box) for box in boxes(case, rank, ranks, tensors)]) for rank in range(ranks)]
    memory, began = Memory(), time.monotonic()
    planner = DefaultSavePlanner(flatten_state_dict=False)
    found, _ = planner.create_global_plan(local)
    anew, extra = time.monotonic() - began, memory.peak()
    loads = [sum(ELEMENT * one.tensor_data.chunk.sizes.numel() for one in plan.items) for plan in found]
    return answer(anew, None, extra, loads, tensors)


def answer(anew, cached, extra, loads, tensors):
    return {"anew": anew, "cached": cached, "extra": extra, "most": max(loads) * len(loads) / sum(loads),
            "written": sum(loads) / unique_bytes(tensors)}


def main():
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        how = {"ours": ours, "dcp": dcp}[question.pop("how")]
        print(json.dumps(how(**question)), flush=True)


if __name__ == "__main__":
    main()
