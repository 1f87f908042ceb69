"""One rank of a group that saves and loads with ckptfs.Saver and ckptfs.load.

    group_ranks.py OUT ACTS     ACTS is JSON: a list of {"act": NAME, ...}, which all ranks do, in order

OUT.RANK gets what each act had to say, as JSON. An act is a function below. A state has FSDP2's model and its AdamW after
a step, DTensors on meshes of one and two dimensions, ragged slices, and tensors that all ranks have.
"""

import contextlib
import errno
import hashlib
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from unittest import mock

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "deepspeed"))

import ckptfs
import ckptfs.plans
from ckptfs import group_loading
from ckptfs.group import Group
from ending import end_rank
from rank_states import act_all, digest, flattened, trained

SAVERS = {}  # by series
LINES = []  # of ckptfs's log


def meshes():
    ranks = dist.get_world_size()
    flat = init_device_mesh("cpu", (ranks,))
    return flat, init_device_mesh("cpu", (2, ranks // 2)) if ranks % 2 == 0 else flat


def both_on_one_dimension(seed):
    """Tensor parallelism and FSDP2, which cut the same dimension: a strided shard. The ranks must be even."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(seed)
    model = two_layers()
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"], shard_placement_fn=lambda weight: Shard(int(weight.shape == (20, 48))))
    return dict(model.state_dict())


def two_layers():
    """They are cut on their first and on their second dimension. Nothing is computed by them."""
    return nn.Sequential(nn.Linear(16, 37, bias=False), nn.Linear(48, 20, bias=False))


def state_of(seed, uneven=False):
    """The seed decides all that is in it; how it is cut follows from the number of ranks, of the slices also from
    `uneven`."""
    flat, square = meshes()
    torch.manual_seed(seed + 1)
    cut = {"rows": (flat, [Shard(0)]), "columns": (flat, [Shard(1)])}
    if square.ndim == 2:
        cut |= {"tiles": (square, [Shard(0), Shard(1)]), "rows_twice": (square, [Replicate(), Shard(0)]),
                "twice": (square, [Shard(0), Shard(0)])}
    tensors = {}
    for name in ("rows", "columns", "tiles", "rows_twice", "twice"):
        mesh, placements = cut.get(name, (flat, [Replicate()]))
        tensors[name] = distribute_tensor(torch.randn(23, 331), mesh, placements)
    tensors["everywhere"] = torch.randn(64, 129)
    tensors["scalar"] = torch.tensor(float(seed))
    tensors["empty"] = torch.empty(0, 5)
    slices = [slice_of("ragged", torch.randn(7, 11, 13), number, uneven) for number in range(2)]
    weights, states = trained(flat, seed)
    state = {"model": weights, "optim": states["state"], "tensors": tensors, "slices": slices}
    if square.ndim == 2:
        state["both"] = both_on_one_dimension(seed)
    else:
        torch.manual_seed(seed)
        state["both"] = {name: weight.detach() for name, weight in two_layers().state_dict().items()}
    return state


def slice_of(name, whole, number, uneven=False):
    """Two slices a rank, at odd places: its share of either half."""
    rank, ranks, half = dist.get_rank(), dist.get_world_size(), whole.numel() // 2
    low, high = (0, half) if number == 0 else (half, whole.numel())
    power = 2 if uneven else 1
    begin, end = (low + (high - low) * at**power // ranks**power for at in (rank, rank + 1))
    return ckptfs.Slice(name, whole.shape, (begin, end), whole.view(-1)[begin:end].clone())


def digest_of(value):
    if not isinstance(value, ckptfs.Slice):
        return digest(value)
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (value.begin, value.tensor.tolist()))
    elements = [element for _, part in sorted(parts) for element in part]
    return hashlib.sha256(repr((min(parts)[0], elements)).encode()).hexdigest()


def digests(state):
    return {name: digest_of(value) for name, value in sorted(flattened(state).items())}


# --- acts


def saver_of(series):
    """One for all acts, so that a save comes after what failed before it. Rank 1 is late for it."""
    if series not in SAVERS:
        time.sleep(2.5 if dist.get_rank() == 1 else 0)
        SAVERS[series] = ckptfs.Saver(series, group=True)
    return SAVERS[series]


def save(to, seed, uneven=False):
    state = state_of(seed, uneven)
    wanted = digests(state)
    series, tag = os.path.split(to)
    save = saver_of(series).save(tag, state)
    save.wait_copied()
    for value in flattened(state).values():
        tensor = value.tensor if isinstance(value, ckptfs.Slice) else value
        with torch.no_grad():
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor).zero_()
    assert save.wait()
    return wanted


def load(of, mode, seed=99, little=False):
    """`little`: messages are cut, and "auto" takes samples, as if the tensors were large."""
    state = state_of(seed)
    LINES.clear()
    small = mock.patch.multiple(group_loading, _READ_AT_ONCE=10_007, _WORTH_SAMPLING=1)
    with small if little else contextlib.nullcontext():
        ckptfs.load(of, into=state, group=True, mode=mode)
    return digests(state)


def others(series):
    """What others saved, into DTensors and slices: model.safetensors, and torch's DCP."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(5)
    whole = {"rows": torch.randn(23, 331), "columns": torch.randn(23, 331), "ragged": torch.randn(7, 11, 13)}

    def cut(tensors):
        pieces = {name: distribute_tensor(tensors[name], mesh, [Shard(number)])
                  for number, name in enumerate(("rows", "columns"))}
        return pieces | {"slices": [slice_of("ragged", tensors["ragged"], number) for number in range(2)]}

    if dist.get_rank() == 0:
        os.makedirs(f"{series}/checkpoint-1")
        safetensors.torch.save_file(whole, f"{series}/checkpoint-1/model.safetensors")
    dcp.save({"model": whole}, checkpoint_id=f"{series}/checkpoint-2")
    wanted = digests(cut(whole))
    for step in ("checkpoint-1", "checkpoint-2"):
        for mode in ("each", "broadcast"):
            state = cut({name: torch.zeros_like(tensor) for name, tensor in whole.items()})
            ckptfs.load(f"{series}/{step}", into=state, group=True, mode=mode)
            assert digests(state) == wanted, f"{step}, {mode}"
    return "equal"


def flipped(to):
    """A byte of what rank 1 saved is flipped. Returns what this rank hears when it loads all, alone and with the group."""
    series, tag = os.path.split(to)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with contextlib.closing(ckptfs.Saver(series, group=True, digests=True)) as saver:
        assert saver.save(tag, {"rows": distribute_tensor(torch.randn(512, 4096), mesh, [Shard(0)])}).wait()
    into = {"rows": torch.zeros(512, 4096)}
    ckptfs.load(to, into=into, group=True)
    if dist.get_rank() == 0:
        with open(f"{to}/rank01.safetensors", "r+b") as file:
            file.seek(5 << 19)
            byte = file.read(1)[0]
            file.seek(5 << 19)
            file.write(bytes([byte ^ 1]))
    dist.barrier()
    heard = []
    for group in (None, True):
        try:
            ckptfs.load(to, into=into, group=group, mode="each")
        except (OSError, ckptfs.GroupError) as problem:
            heard.append([type(problem).__name__, str(problem)])
    return heard


def bytes_read(of, mode, columns=False):
    """Of big tensors: [bytes that this rank wants, bytes that it has read], of all ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = big(mesh, Shard(1) if columns else Shard(0), seed=7)
    LINES.clear()
    ckptfs.load(of, into=state, group=True, mode=mode)
    numbers = re.search(r"has loaded (\d+) bytes, by \w+, and read (\d+)", "\n".join(LINES))
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, [int(number) for number in numbers.groups()])
    return counts


def big(mesh, shard, seed):
    torch.manual_seed(seed)
    return {"sharded": distribute_tensor(torch.randn(512, 16384), mesh, [shard]), "shared": torch.randn(2048, 2048)}


def save_one(to):
    series, tag = os.path.split(to)
    saver_of(series).save(tag, {"w": torch.ones(3)}).wait()


def save_big(to):
    series, tag = os.path.split(to)
    state = big(init_device_mesh("cpu", (dist.get_world_size(),)), Shard(0), seed=7)
    saver = ckptfs.Saver(series, group=True)
    saver.save(tag, state).wait()
    saver.close()


def fails(to, how, rank=1):
    """A save or load in which one rank fails: returns what the others are told, and after how many seconds."""
    series, tag = os.path.split(to)
    mine, begun = dist.get_rank() == rank, time.monotonic()
    if how == "connecting" and mine:
        Group._connected = lambda *_: os._exit(3)
    try:
        saver = saver_of(series)
        if dist.get_rank() == 0:  # so late that rank 1 has its next failure by then
            saver._group.told = lambda key: time.sleep(0.2) or Group.told(saver._group, key)
        state = {"everywhere": torch.randn(64, 129), "w": torch.ones(3)}
        if how == "a value" and mine:
            state["w"] = "no tensor"
        if how == "shapes" and mine:
            state["w"] = torch.ones(4)
        if how == "names" and mine:
            state["w\udcff"] = torch.ones(3)
        if how == "memory" and mine:
            ckptfs.plans.PlanCache.make = no_memory
        save = saver.save(tag + ("x" if how == "tags" and mine else ""), state)
        if mine and how == "closed":
            save.close()
            return ["closed", 0.0]
        if mine and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if mine and how == "ended":
            os._exit(3)
        save.wait()
    except Exception as problem:  # noqa: BLE001 - it is what is asked for
        return [f"{type(problem).__name__}: {problem}", time.monotonic() - begun]
    return ["no error", time.monotonic() - begun]


def no_memory(*_):
    raise MemoryError("this rank has no memory left")


def different(of):
    """A load for which each rank takes another step."""
    try:
        ckptfs.load(of[dist.get_rank()], into={"w": torch.ones(3)}, group=True)
    except Exception as problem:  # noqa: BLE001 - it is what is asked for
        return f"{type(problem).__name__}: {problem}"
    return "no error"


def numbered(number, cut):
    """A state that its number decides; `cut` makes a DTensor of what is cut."""
    torch.manual_seed(number)
    return {"rows": cut(torch.randn(640, 331)), "everywhere": torch.randn(640, 129)}


def saves(series, first):
    """Saves steps until a save fails: [the last that was saved, what went wrong]."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    saver, number = ckptfs.Saver(series, group=True), first
    try:
        while True:
            saver.save(f"step_{number}", numbered(number, lambda whole: distribute_tensor(whole, mesh, [Shard(0)]))).wait()
            number += 1
    except Exception as problem:  # noqa: BLE001 - it is what is asked for
        return [number - 1, f"{type(problem).__name__}: {problem}"]


def check(series):
    """The steps that are there, and those of them that are not what their numbers say."""
    steps = sorted(name for name in os.listdir(series) if name.startswith("step_"))
    wrong = []
    for step in steps:
        wanted = numbered(int(step.partition("_")[2]), lambda whole: whole)
        try:
            loaded = ckptfs.load(f"{series}/{step}")
            if loaded.keys() != wanted.keys() or not all(torch.equal(loaded[name], wanted[name]) for name in wanted):
                wrong.append(f"{step}: other tensors")
        except Exception as problem:  # noqa: BLE001
            wrong.append(f"{step}: {problem}")
    return [steps, wrong]


def broken_read(of, mode):
    """A load in which rank 1 cannot read, and one of the same ranks after it."""
    working, heard = ckptfs.Checkpoint.load_parts, "no error"

    def broken(*_):
        raise OSError(errno.EIO, "broken")

    state = big(init_device_mesh("cpu", (dist.get_world_size(),)), Shard(0), seed=8)
    if dist.get_rank() == 1:
        ckptfs.Checkpoint.load_parts = broken
    try:
        ckptfs.load(of, into=state, group=True, mode=mode)
    except Exception as problem:  # noqa: BLE001 - it is what is asked for
        heard = f"{type(problem).__name__}: {problem}"
    ckptfs.Checkpoint.load_parts = working
    ckptfs.load(of, into=state, group=True, mode=mode)
    wanted = big(init_device_mesh("cpu", (dist.get_world_size(),)), Shard(0), seed=7)
    return [heard, digests(state) == digests(wanted)]


def pauses(to, seconds, rank):
    """A rank stands still for so long. Returns what came of a save meanwhile, and of one by a new Saver after it."""
    series, tag = os.path.split(to)
    if dist.get_rank() == rank:
        saver_of(series)
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    heard = []
    for number in range(2):
        begun = time.monotonic()
        try:
            saver_of(series).save(f"{tag}-{number}", {"w": torch.ones(3)}).wait()
            heard.append(["saved", 0.0])
        except ckptfs.GroupError as problem:
            heard.append([str(problem), time.monotonic() - begun])
            SAVERS.pop(series).close()
    return heard


def mistyped(of):
    """A load to which one rank gives no mode that there is, and one to which it gives another one than the others."""
    heard = []
    for mode in ("brodcast", "each"):
        try:
            ckptfs.load(of, into={"w": torch.ones(3)}, group=True, mode=mode if dist.get_rank() == 1 else "auto")
        except Exception as problem:  # noqa: BLE001 - it is what is asked for
            heard.append(f"{type(problem).__name__}: {problem}")
    return heard


def missing(of, mode="auto"):
    """A load of a step that one rank cannot see."""
    try:
        ckptfs.load(of if dist.get_rank() != 1 else of + "-not", into={"w": torch.ones(3)}, group=True, mode=mode)
    except Exception as problem:  # noqa: BLE001 - it is what is asked for
        return f"{type(problem).__name__}: {problem}"
    return "no error"


def main(out, acts):
    dist.init_process_group("gloo")
    handler = logging.Handler()
    handler.emit = lambda record: LINES.append(record.getMessage())
    logging.getLogger("ckptfs").addHandler(handler)
    logging.getLogger("ckptfs").setLevel(logging.INFO)
    act_all(globals(), out, acts)
    if '"killed"' in acts or '"ended"' in acts or '"saves"' in acts:
        os._exit(0)  # the process group may be broken
    for saver in SAVERS.values():
        saver.close()
    end_rank()


if __name__ == "__main__":
    main(*sys.argv[1:])
