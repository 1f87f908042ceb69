"""Reading views: whole models in each type, against the same bytes in the step, and against zero_to_fp32.py."""

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import time

import child
import machine
import measure
import memory
import mounting
import plan

sys.path.append(str(mounting.REPOSITORY / "tests" / "deepspeed"))

import harness

RATES = "Reading views"
CONVERSION = "A model out of a DeepSpeed checkpoint"
TENSORS = 32
TAG = "global_step1"


def section(context):
    # The quiet time is long, because digests would disturb the measurement.
    with context.mounted("views", "passthrough", "safe", options=("quiet=1h",)) as mount:
        reading(context, mount)
    conversion(context)


def reading(context, mount):
    step = mount.path / "runs" / "checkpoint-1"
    write_checkpoint(step, context.sizes.viewed)
    view = mount.path / "views" / "runs" / "checkpoint-1"
    plain, size = step / "model.safetensors", context.sizes.viewed
    machine.sync_filesystem(context.disk)
    files = {"plain": plain, "fp32": view / "model.fp32.safetensors", "bf16": view / "model.bf16.safetensors"}
    native, reflink = context.disk / "model.safetensors", context.disk / "reflink.safetensors"
    shutil.copyfile(plain, native)
    machine.sync_filesystem(context.disk)
    subprocess.run(["cp", "--reflink=always", native, reflink], check=True)
    files["reflink"] = reflink

    def made_anew(path):
        """Brings the source into memory, and nothing of a view or a copy."""
        if path != plain:
            memory.drop_caches()
        cat(native if path == reflink else plain)

    def rates(names, before, busy=None):
        def rate(name):
            def measured():
                before(files[name])
                took, processor = cat(files[name])
                if busy is not None:
                    busy.setdefault(name, []).append(size / processor)
                return size / took

            return measured

        return context.rounds({name: rate(name) for name in names})

    busy = {}
    figures = rates(files, made_anew, busy)
    title = f"{size // plan.MIB} MiB of fp32, in memory: "
    row = (title + "the bf16 view, by bytes read from the blobs", "cat of the file", measure.RATE)
    context.add(RATES, measure.Row(*row, figures["bf16"], figures["plain"], plan.VIEW_BAR))
    # The view shares blocks like a reflink, and like a reflink it has its own pages: its first read comes from the
    # disk.
    row = (title + "the fp32 view, for the first time", "native, the first read of a cp --reflink", measure.RATE)
    context.add(RATES, measure.Row(*row, figures["fp32"], figures["reflink"]))
    row = (title + "the fp32 view, for the first time", "cat of the file", measure.RATE)
    context.add(RATES, measure.Row(*row, figures["fp32"], figures["plain"]))
    # No daemon can speed up cat's own work: allocating pages of the kernel's cache, and copying out of them.
    row = (title + "the bf16 view, had cat never to wait", "cat of the file", measure.RATE)
    context.add(RATES, measure.Row(*row, busy["bf16"][-len(figures["plain"]):], figures["plain"]))
    again = rates(("plain", "fp32"), cat)
    row = (title + "the fp32 view, warm", "cat of the file", measure.RATE, again["fp32"], again["plain"])
    context.add(RATES, measure.Row(*row, plan.VIEW_BAR))
    cold = rates(("plain", "fp32"), lambda _path: memory.drop_caches())
    # A view cannot be faster cold than warm.
    limit = [min(pair) for pair in zip(cold["plain"], again["fp32"], strict=True)]
    row = (f"{size // plan.MIB} MiB of fp32, from the disk: the fp32 view", "the lower of cat and warm", measure.RATE)
    context.add(RATES, measure.Row(*row, cold["fp32"], limit, plan.COLD_VIEW_BAR))
    native.unlink()
    reflink.unlink()


def write_checkpoint(step, size):
    """Writes a checkpoint of fp32 weights, as the Trainer does."""
    step.mkdir(parents=True)
    each = size // TENSORS
    header = {f"layers.{number}.weight": {"dtype": "F32", "shape": [each // 4],
                                          "data_offsets": [number * each, (number + 1) * each]}
              for number in range(TENSORS)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(step / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(TENSORS):
            file.write(os.urandom(each))
    for name in ("config.json", "trainer_state.json"):
        (step / name).write_text("{}")


def cat(path):
    """Returns the seconds that `cat FILE` takes, and the seconds of processor time in it."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with open(os.devnull, "wb") as nowhere:
        subprocess.run(["cat", path], stdout=nowhere, check=True)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def conversion(context):
    """DeepSpeed's own tool needs the optimizer in memory (cpu/cpu); it cannot read NVMe checkpoints."""
    title = "the fp32 weights of a ZeRO-3 checkpoint"
    if reason := child.lacks("torch", "deepspeed"):
        context.add(CONVERSION, measure.Missing(title, reason))
        return
    with context.mounted("conversion", "passthrough", "safe") as mount:
        series = mount.path / "steps"
        train(context, series)
        costs = {"ours": [], "theirs": []}
        model = mount.path / "views" / "steps" / TAG / "model.fp32.safetensors"
        out = context.disk / "out"
        copying = ["cp", model, out / "model.safetensors"]
        converting = [child.PYTHON, series / "zero_to_fp32.py", series, out, "-t", TAG]
        figures = context.rounds({
            "ours": converted(context, copying, out, costs["ours"]),
            "theirs": converted(context, converting, out, costs["theirs"]),
        })
        row = (title, "zero_to_fp32.py", measure.SECONDS, figures["ours"], figures["theirs"])
        context.add(CONVERSION, measure.Row(*row))
        for side, name in (("ours", "cp of the view"), ("theirs", "zero_to_fp32.py")):
            written, peak = costs[side][-1]
            text = f"{written / plan.MIB:.0f} MiB written, {peak / plan.MIB:.0f} MiB of memory at most"
            context.add(CONVERSION, measure.Note(f"{title}, {name}", text))


def train(context, series):
    words = ["--stage", "3", "--nvme", "none", "--width", context.sizes.offloaded_width, "--steps", "1", "--save", series,
             "--tag", TAG, "--out", context.work / "truth.json"]
    series.mkdir(exist_ok=True)
    log = context.work / "conversion.log"
    with open(log, "wb") as output:
        with harness.ranks_running(1, list(map(str, words)), output, script="variety.py", forked=()) as processes:
            harness.wait_for_ranks(processes, log)


def converted(context, command, out, costs):
    """Returns the seconds until the model is on the disk. Notes the bytes written and the program's peak of memory."""

    def measured():
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        machine.sync_filesystem(context.disk)
        memory.drop_caches()
        written, began = mounting.written_bytes(context.disk), time.monotonic()
        peak = peak_memory(command)
        machine.sync_filesystem(context.disk)
        took = time.monotonic() - began
        costs.append((mounting.written_bytes(context.disk) - written, peak))
        return took

    return measured


# A small process forks the command, because a child's peak of memory includes that of the process that forked it.
LAUNCHER = """
import os, sys
child = os.fork()
if child == 0:
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    os.execvp(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss)
"""


def peak_memory(command):
    """Runs the command. Returns the bytes of its largest resident set."""
    told = subprocess.run([sys.executable, "-S", "-c", LAUNCHER, *map(str, command)], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, env=dict(os.environ, CUDA_VISIBLE_DEVICES=""), check=True).stdout
    status, peak = map(int, told.split())
    if status != 0:
        raise mounting.Failure(f"{' '.join(map(str, command))}: status {status}")
    return peak * plan.KIB
