"""What libckptfs does with the memory of a GPU. test_cuda.py runs each act; so can anybody who has torch and a GPU:

    python3 tests/gpu/cuda_acts.py FOLDER [ACT ...] [--device cpu]

Each act has a process of its own, which ends with an exception if something is not as it must be. --device cpu tries the
acts themselves, without a GPU.
"""

import argparse
import contextlib
import logging
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "gpu", "python"))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import ckptfs
import ckptfs.dcp

MIB = 1 << 20
RING = 256 * MIB
RANKS = 2
SECONDS_OF_WORK = 0.3  # that lies before a load or a save on its stream
GUARD = 64  # bytes around each target
DEVICE = "cuda"  # --device


def true(condition, what):
    if not condition:
        raise AssertionError(what)


def equal(got, wanted, what):
    """Of dicts of tensors: bit for bit, wherever they lie."""
    true(set(got) == set(wanted), f"{what}: {sorted(got)} and not {sorted(wanted)}")
    for name, tensor in wanted.items():
        one, other = (value.detach().cpu().contiguous().view(-1).view(torch.uint8) for value in (got[name], tensor))
        true(got[name].shape == tensor.shape and torch.equal(one, other), f"{what}: {name} differs")


def noise(size, seed):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def state_of(seed, device):
    """Tensors of all kinds, most of them not aligned in the file, with any bits."""
    shapes = {"matrix": (torch.float32, (1000, 333)), "narrow": (torch.bfloat16, (77_777,)), "five": (torch.int8, (5,)),
              "odd": (torch.uint8, (3_000_001,)), "one": (torch.float64, ()), "none": (torch.float16, (0, 7)),
              "numbers": (torch.int64, (12_345,)), "large": (torch.float32, (9, MIB + 1))}
    made = {}
    for number, (name, (dtype, shape)) in enumerate(shapes.items()):
        size = torch.Size(shape).numel() * dtype.itemsize
        made[name] = noise(size, 100 * seed + number).view(dtype).view(shape).to(device)
    return made


def empty_like(state):
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


@contextlib.contextmanager
def busy_stream():
    """A stream that has work to do for a while before it comes to what is put on it; None where there is no GPU."""
    if DEVICE == "cpu":
        yield None
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(SECONDS_OF_WORK * 2e9))
        yield stream


def series_in(folder):
    series = folder / "steps"
    series.mkdir()
    return series


def forget(path):
    """Drops the files of a step from the page cache."""
    for file in pathlib.Path(path).iterdir():
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def status(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


# --- the acts


def saved_and_loaded(folder):
    """Bit for bit, from the GPU to a step and back, from the disk and from the page cache."""
    state, series = state_of(1, DEVICE), series_in(folder)
    ckptfs.Saver(series).save("step_1", state).wait()
    equal(ckptfs.load(series / "step_1"), state, "in host memory")
    for prepare in (forget, lambda path: None):
        prepare(series / "step_1")
        equal(ckptfs.load(series / "step_1", device=DEVICE), state, "on the device")
        into = empty_like(state)
        ckptfs.load(series / "step_1", into=into)
        equal(into, state, "in place")


def targets_anywhere(folder):
    """Any part of any tensor to any address; nothing around it changes."""
    series, state, at = series_in(folder), state_of(2, "cpu"), random.Random(7)
    ckptfs.Saver(series).save("step_1", state).wait()
    forget(series / "step_1")
    whole = state["odd"]
    with ckptfs.Checkpoint(series / "step_1") as checkpoint:
        for _ in range(50):
            begin = at.randrange(whole.numel())
            size = at.randrange(1, whole.numel() - begin + 1)
            before = at.randrange(GUARD)
            memory = torch.full((before + size + GUARD,), 0xA5, dtype=torch.uint8, device=DEVICE)
            ring = "twin" if DEVICE == "cpu" else "cuda:0"
            checkpoint.load_spans([("odd", begin, memory.data_ptr() + before, size)], ring)
            wanted = torch.full((before + size + GUARD,), 0xA5, dtype=torch.uint8)
            wanted[before:before + size] = whole[begin:begin + size]
            true(torch.equal(memory.cpu(), wanted), f"{size} bytes from {begin} on")


def host_and_device(folder):
    """Tensors of the GPU beside tensors in host memory, pinned and not, in one save and in one load."""
    series, state = series_in(folder), state_of(3, "cpu")
    mixed = {name: tensor.to(DEVICE) if number % 2 else tensor for number, (name, tensor) in enumerate(state.items())}
    if DEVICE != "cpu":
        mixed["large"] = mixed["large"].cpu().pin_memory()
    ckptfs.Saver(series).save("step_1", mixed).wait()
    into = {name: torch.zeros_like(tensor, pin_memory=tensor.is_pinned()) for name, tensor in mixed.items()}
    ckptfs.load(series / "step_1", into=into)
    equal(into, state, "where it was")


def in_the_streams_order(folder):
    """A save has what is on its stream before it, a load overwrites it."""
    series, wanted = series_in(folder), state_of(4, DEVICE)
    tensors = empty_like(wanted)
    with busy_stream() as stream:
        for name, tensor in tensors.items():
            tensor.copy_(wanted[name])
    begun = time.monotonic()
    save = ckptfs.Saver(series).save("step_1", tensors, stream=stream)
    true(time.monotonic() - begun < SECONDS_OF_WORK / 2 or stream is None, "save() waits for the stream")
    save.wait()
    equal(ckptfs.load(series / "step_1"), wanted, "saved")
    with busy_stream() as stream:
        for tensor in tensors.values():
            tensor.fill_(1)
    ckptfs.load(series / "step_1", into=tensors, stream=stream)
    if stream is not None:
        true(stream.query(), "the load has returned before what lies before it on the stream")
    equal(tensors, wanted, "loaded")


def made_on_the_loads_stream(folder):
    """What a load makes itself is not memory that another stream still works on; and it is there when the load returns."""
    series, wanted = series_in(folder), state_of(7, DEVICE)
    ckptfs.Saver(series).save("step_1", wanted).wait()
    stream = None if DEVICE == "cpu" else torch.cuda.Stream()
    for _ in range(5):
        with busy_stream():
            for tensor in empty_like(wanted).values():
                tensor.fill_(1)  # behind the work, into memory that is free again by then
        loaded = ckptfs.load(series / "step_1", device=DEVICE, stream=stream)
        turned = {"matrix": torch.zeros(333, 1000, device=DEVICE).t()}  # its elements do not lie in order
        ckptfs.load(series / "step_1", into=turned, stream=stream)
        turned = {"matrix": turned["matrix"].clone()}
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        equal(loaded, wanted, "made")
        equal(turned, {"matrix": wanted["matrix"]}, "copied to where it belongs")


def into_pinned_memory(folder):
    """Host memory that a stream still writes to is saved once it has done so."""
    series, wanted = series_in(folder), state_of(8, DEVICE)
    pinned = {name: torch.zeros_like(tensor, device="cpu", pin_memory=DEVICE != "cpu") for name, tensor in wanted.items()}
    with busy_stream() as stream:
        for name, tensor in pinned.items():
            tensor.copy_(wanted[name], non_blocking=True)
    ckptfs.Saver(series).save("step_1", pinned, stream=stream).wait()
    equal(ckptfs.load(series / "step_1"), wanted, "saved")


def changed_after_the_copy(folder):
    """As an optimizer does: once wait_copied() returns, tensors may change, and the step has what they were."""
    series, truth = series_in(folder), {}
    tensors = {f"{number}": torch.zeros(8 * MIB + number, device=DEVICE) for number in range(12)}
    savers = [ckptfs.Saver(series), ckptfs.Saver(series, copies=True)]
    saves = []
    for step in range(8):
        with busy_stream() as stream:
            for tensor in tensors.values():
                tensor.mul_(1.5).add_(step + 1)
            truth[step] = {name: tensor.clone() for name, tensor in tensors.items()}
        save = savers[step % 2].save(f"step_{step}", tensors, stream=stream)
        save.wait_copied()
        saves.append(save)
    for tensor in tensors.values():
        tensor.zero_()
    for step, save in enumerate(saves):
        save.wait()
        equal(ckptfs.load(series / f"step_{step}", device=DEVICE), truth[step], f"step {step}")


def memory_is_the_ring(folder):
    """Host memory at the peak of a save and of a load of eight times the ring."""
    series = series_in(folder)
    tensors = {f"{number}": torch.full((64 * MIB,), number, dtype=torch.float32, device=DEVICE) for number in range(8)}
    into = {name: torch.ones_like(tensor) for name, tensor in tensors.items()}
    before = status("VmRSS:")
    for what, function in (("save", lambda: ckptfs.Saver(series).save("step_1", tensors).wait()),
                           ("load", lambda: ckptfs.load(series / "step_1", into=into))):
        function()
        peak = status("VmHWM:") - before
        true(peak <= RING + 64 * MIB, f"{what}: {peak / MIB:.0f} MiB")
        print(f"memory_is_the_ring: {what} of 2048 MiB: {peak / MIB:.0f} MiB")
    equal(into, tensors, "loaded")


def a_flipped_byte(folder):
    series, state = series_in(folder), state_of(5, DEVICE)
    ckptfs.Saver(series, digests=True).save("step_1", state).wait()
    copy = shutil.copytree(series / "step_1", folder / "copy")  # what is saved on a mount cannot be changed
    with ckptfs.Checkpoint(copy) as checkpoint:
        into = empty_like(state)
        report = checkpoint.load(into)
        true(report.checked == report.bytes or report.checked >= 40 * MIB, f"checked: {report}")
        equal(into, state, "loaded")
    file = copy / "rank00.safetensors"
    for kind in ("flipped", "flipped in the page cache"):
        with open(file, "r+b") as opened:
            opened.seek(20 * MIB)
            byte = opened.read(1)[0]
            opened.seek(20 * MIB)
            opened.write(bytes([byte ^ (1 if kind == "flipped" else 3)]))
        if kind == "flipped":
            forget(copy)
        try:
            ckptfs.load(copy, into=into)
        except OSError as problem:
            true("MiB 20" in str(problem) and "large" in str(problem), str(problem))
        else:
            true(False, f"{kind}: it was loaded")


def dcp_alone(folder):
    """By DCP's interface, and by its own writer and reader beside ours."""
    state = state_of(6, DEVICE)
    writers = {"ours": lambda: ckptfs.dcp.Writer(), "torchs": lambda: dcp.FileSystemWriter(folder / "torchs")}
    readers = {"ours": lambda path: ckptfs.dcp.Reader(path), "torchs": lambda path: dcp.FileSystemReader(path)}
    for writer, make in writers.items():
        dcp.save(dict(state), checkpoint_id=str(folder / writer), storage_writer=make(), no_dist=True)
        for reader, read in readers.items():
            into = empty_like(state)
            dcp.load(into, storage_reader=read(str(folder / writer)), no_dist=True)
            equal(into, state, f"written by {writer}, read by {reader}")


def groups(folder):
    """Two ranks that share the GPU."""
    series_in(folder)
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(random.randrange(20_000, 30_000)),
                       WORLD_SIZE=str(RANKS))
    words = [sys.executable, __file__, str(folder), "rank", "--device", DEVICE]
    ranks = [subprocess.Popen(words, env=dict(environment, RANK=str(number), LOCAL_RANK="0")) for number in range(RANKS)]
    while any(process.poll() is None for process in ranks) and not any(process.poll() for process in ranks):
        time.sleep(0.05)
    for process in ranks:  # if one has failed, the others wait for it
        process.kill()
    codes = [process.wait() for process in ranks]
    true(codes == [0] * RANKS, f"the ranks ended with {codes}")


def rank(folder):
    """One of the ranks of groups(): by rows it saves, by columns it loads; replicas, flat pieces, DCP."""
    dist.init_process_group("gloo")
    mine, series = dist.get_rank(), folder / "steps"
    mesh = init_device_mesh(DEVICE, (RANKS,))
    whole = {name: noise(512 * 768 * 4, 60 + number).view(torch.int32).view(512, 768)
             for number, name in enumerate(("first", "second", "third"))}
    flat = whole["first"].view(-1)

    def of_rank(make, dimension):
        """The same tensors, cut along a dimension; all of them `make` of what they are to hold."""
        part = {name: make(tensor.chunk(RANKS, dimension)[mine].contiguous()).to(DEVICE) for name, tensor in whole.items()}
        state = {name: DTensor.from_local(tensor, mesh, [Shard(dimension)], run_check=False) for name, tensor in part.items()}
        begin, end = (0, 1001) if mine == 0 else (1001, flat.numel())
        state["flat"] = ckptfs.Slice("flat", flat.shape, (begin, end), make(flat[begin:end].clone()).to(DEVICE))
        state["same"] = make(whole["third"]).to(DEVICE)
        return state

    def local(state):
        return {name: getattr(value, "_local_tensor", getattr(value, "tensor", value)) for name, value in state.items()}

    saver = ckptfs.Saver(series, group=True)
    for copies, tag in ((False, "step_1"), (True, "step_2")):
        saver = ckptfs.Saver(series, group=True, copies=copies)
        with busy_stream() as stream:
            state = of_rank(torch.clone, 0)
        save = saver.save(tag, state, stream=stream)
        save.wait_copied()
        for tensor in local(state).values():
            tensor.zero_()
        save.wait()
        saver.close()
        for mode in ("each", "broadcast", "auto"):
            for dimension in (0, 1):
                into = of_rank(torch.zeros_like, dimension)
                ckptfs.load(series / tag, into=into, group=True, mode=mode)
                equal(local(into), local(of_rank(torch.clone, dimension)), f"{tag}, {mode}, cut along {dimension}")
    state, path = {name: value for name, value in of_rank(torch.clone, 0).items() if name != "flat"}, str(series / "step_3")
    dcp.async_save(state, checkpoint_id=path, storage_writer=ckptfs.dcp.Writer()).result()
    into = {name: value for name, value in of_rank(torch.zeros_like, 1).items() if name != "flat"}
    dcp.load(into, checkpoint_id=path, storage_reader=ckptfs.dcp.Reader())
    wanted = {name: value for name, value in local(of_rank(torch.clone, 1)).items() if name != "flat"}
    equal(local(into), wanted, "by DCP")
    dist.barrier()
    dist.destroy_process_group()


ACTS = {act.__name__: act for act in (saved_and_loaded, targets_anywhere, host_and_device, in_the_streams_order,
                                      made_on_the_loads_stream, into_pinned_memory, changed_after_the_copy,
                                      memory_is_the_ring, a_flipped_byte, dcp_alone, groups, rank)}


def main():
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("acts", nargs="*", choices=[*ACTS, []])
    parser.add_argument("--device", default=DEVICE)
    options = parser.parse_args()
    DEVICE = options.device
    acts = options.acts or [name for name in ACTS if name != "rank"]
    if len(acts) > 1:
        sys.exit(sum(subprocess.call([sys.executable, __file__, options.folder, name, "--device", DEVICE]) for name in acts))
    logging.basicConfig(level=logging.WARNING)
    folder = options.folder if acts == ["rank"] else options.folder / acts[0]
    folder.mkdir(exist_ok=True)
    ACTS[acts[0]](folder)
    print(f"{acts[0]}: ok", flush=True)


if __name__ == "__main__":
    main()
