"""One rank of a group that saves and loads by torch's DCP, through ckptfs.dcp or without it.

    dcp_ranks.py OUT ACTS     ACTS is JSON: a list of {"act": NAME, ...}, which all ranks do, in order

OUT.RANK gets what each act had to say, as JSON: after a save or a load the digests of all tensors, as wholes. An act is a
function below. A state has FSDP2's model and its AdamW after a step, tensors on a mesh of one or two dimensions, a tensor
that all ranks have, and values that are no tensors.
"""

import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import ckptfs.dcp
from rank_states import act_all, digest, flattened, trained

WRITERS = {"ours": ckptfs.dcp.Writer, "torch": dcp.FileSystemWriter}
READERS = {"ours": ckptfs.dcp.Reader, "torch": dcp.FileSystemReader}


def mesh_of(layout):
    ranks = dist.get_world_size()
    if layout == "flat" or ranks == 1:
        return init_device_mesh("cpu", (ranks,))
    return init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("outer", "inner"))


def state_of(layout, seed):
    """The seed decides all that is in it."""
    mesh = mesh_of(layout)
    weights, states = trained(mesh, seed)
    torch.manual_seed(seed + 1)
    everywhere = [Replicate()] * mesh.ndim
    placements = {"rows": [Shard(0)], "columns": [Shard(1)], "everywhere": [Replicate()]} if mesh.ndim == 1 else {
        "rows": [Replicate(), Shard(0)], "columns": [Shard(1), Replicate()], "tiles": [Shard(0), Shard(1)],
        "everywhere": everywhere}
    tensors = {name: distribute_tensor(torch.randn(23, 331), mesh, placements.get(name, everywhere))
               for name in ("rows", "columns", "tiles", "everywhere")}
    return {"model": {**weights, **tensors}, "optim": states, "dice": torch.get_rng_state(), "epoch": seed,
            "words": {"list": [seed, "x"]}}


def digests(state):
    return {name: digest(value) if torch.is_tensor(value) else repr(value)
            for name, value in sorted(flattened(state).items())}


# --- acts


def save(to, layout, seed, writer="ours", how="at once"):
    state = state_of(layout, seed)
    wanted = digests(state)
    given = {"checkpoint_id": to, "storage_writer": WRITERS[writer]("unused")}
    if how == "at once":
        dcp.save(state, **given)
    elif how == "with a cached plan":
        for path in (f"{to}-before", f"{to}-then"):
            dcp.save(state, checkpoint_id=path, storage_writer=given["storage_writer"],
                     planner=dcp.DefaultSavePlanner(enable_plan_caching=True))
        dcp.save(state, planner=dcp.DefaultSavePlanner(enable_plan_caching=True), **given)
    else:
        kind = {"thread": dcp.state_dict_saver.AsyncCheckpointerType.THREAD,
                "process": dcp.state_dict_saver.AsyncCheckpointerType.PROCESS}[how]
        future = dcp.async_save(state, async_checkpointer_type=kind, **given)
        with torch.no_grad():
            for value in flattened(state).values():
                if torch.is_tensor(value):
                    (value.to_local() if isinstance(value, DTensor) else value).zero_()
        future.result()
    return wanted


def save_one(to):
    """A single tensor, which all ranks have: one of them writes it."""
    dcp.save({"one": torch.ones(3)}, checkpoint_id=to, storage_writer=ckptfs.dcp.Writer())
    return sorted(os.listdir(to))


def load(of, layout, reader="ours"):
    state = state_of(layout, seed=99)
    dcp.load(state, checkpoint_id=of, storage_reader=READERS[reader]("unused"))
    return digests(state)


def load_alone(of):
    """ckptfs.load, by each rank."""
    return {name: digest(tensor) for name, tensor in ckptfs.load(of).items()}


class Failing(dcp.DefaultSavePlanner):
    """A rank of the group fails where it looks for its second tensor."""

    def __init__(self, rank):
        super().__init__()
        self.left = 1 if dist.get_rank() == rank else -1

    def resolve_data(self, item):
        self.left -= 1
        if self.left == 0:
            raise MemoryError("this rank has no memory left")
        return super().resolve_data(item)


class Dying(ckptfs.dcp.Writer):
    """A rank of the group is killed before or after one of its calls."""

    def __init__(self, rank, call, when):
        super().__init__()
        if dist.get_rank() == rank:
            self.call, self.when = call, when
            setattr(self, call, self.dying(getattr(self, call)))

    def dying(self, call):
        def called(*arguments, **named):
            if self.when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            call(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)
        return called


def fail(to, rank):
    return error_of(to, planner=Failing(rank), storage_writer=ckptfs.dcp.Writer())


def die(to, rank, call, when):
    return error_of(to, storage_writer=Dying(rank, call, when))


def error_of(to, **given):
    """What the rank is told, and what lies beside the step then."""
    state = state_of("flat", 5)
    try:
        dcp.save(state, checkpoint_id=to, **given)
    except BaseException as problem:  # noqa: BLE001 - DCP's CheckpointException is one
        return {"error": f"{type(problem).__name__}: {problem}", "listed": sorted(os.listdir(pathlib.Path(to).parent))}
    return {"error": None, "listed": sorted(os.listdir(pathlib.Path(to).parent))}


def refuse(to, **options):
    """A save that all ranks must be refused."""
    try:
        dcp.save(state_of("flat", 6), checkpoint_id=to, storage_writer=ckptfs.dcp.Writer(**options))
    except BaseException as problem:  # noqa: BLE001
        return str(problem)
    return None


def main(out, acts):
    dist.init_process_group("gloo")
    act_all(globals(), out, acts)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for gloo's threads, as tests/deepspeed/ending.py has it


if __name__ == "__main__":
    main(*sys.argv[1:])
