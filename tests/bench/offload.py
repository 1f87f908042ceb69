"""The cost of DeepSpeed's own copies of the offloaded tensors: the copytree in save_checkpoint, and the one in
load_checkpoint; and of a load by the parameters' names beside the exact one."""

import contextlib
import json
import shutil
import statistics
import subprocess
import sys

import child
import machine
import measure
import memory
import mounting
import plan

sys.path.append(str(mounting.REPOSITORY / "tests" / "deepspeed"))

import harness

TIMES = "DeepSpeed's copies"
COSTS = "DeepSpeed's copies: what they write to the device"
ELASTIC = "DeepSpeed: a load into other ranks or sub-groups"
TAG = "global_step1"
PATCH_BAR = measure.Bar(0.1, at_least=False)
PLAIN_BAR = measure.Bar(1.0, at_least=False)
WRITTEN_BAR = 0.01  # of the bytes that are copied
SIDES = {"native": "native XFS", "ours": "ckptfs", "patched": "ckptfs, ckptfs.patch"}
ELASTIC_BAR = measure.Bar(1.3, at_least=False)
ELASTIC_MEMORY = 256 + 64  # MiB: the ring, and what else is allowed
PASSES = 3  # the sides alternate, because the cost of memory changes within minutes on a virtual machine


def section(context):
    if reason := child.lacks("torch", "deepspeed"):
        context.add(TIMES, measure.Missing("copytree in save_checkpoint", reason))
        return
    harness.install()
    for ranks in (1, 2):
        against_native(context, ranks)
    against_exact(context, 2)


def against_native(context, ranks):
    found = {side: {"save": [], "load": [], "write_back": []} for side in SIDES}
    with context.mounted(f"DeepSpeed, {ranks} ranks", "passthrough", "safe") as mount:
        for side in list(SIDES) * PASSES:
            root = context.disk / "native" if side == "native" else mount.path
            root.mkdir(exist_ok=True)
            found[side]["bytes"] = trained(context, ranks, root, side, found[side])
            for name in ("zero_stage_3", "steps"):
                mounting.run("bash", "-c", f"rm -rf {root / name}/*")
        shutil.rmtree(context.disk / "native")
    for what in ("save", "load"):
        title = f"copytree in {what}_checkpoint, {ranks} ranks"
        times = {side: [copy["synced"] for copy in found[side][what]] for side in SIDES}
        for side, bar in (("ours", PLAIN_BAR), ("patched", PATCH_BAR)):
            label = "" if side == "ours" else ", ckptfs.patch"
            row = measure.Row(title + label, "native XFS", measure.SECONDS, times[side], times["native"], bar)
            context.add(TIMES, row)
        if what == "load":
            for cold, state in ((False, ""), (True, ", and the source to be read from the disk")):
                least = floor(context, ranks, found["ours"]["bytes"], cold)
                label = f"{title}, had the daemon nothing to do{state}"
                context.add(TIMES, measure.Row(label, "native XFS", measure.SECONDS, least, times["native"]))
        for side in SIDES:
            copied = found[side]["bytes"]
            written = statistics.median(copy["bytes"] for copy in found[side][what])
            if side == "native":
                context.add(COSTS, measure.Note(f"{title}, {SIDES[side]}", f"{written / plan.MIB:.1f} MiB"))
                continue
            limit = WRITTEN_BAR * copied / plan.MIB
            context.add(COSTS, measure.Limit(f"{title}, {SIDES[side]}", written / plan.MIB, limit, "MiB"))
    for side in SIDES:
        back = statistics.median(found[side]["write_back"]) / plan.MIB
        title = f"the rest of load_checkpoint, {ranks} ranks, {SIDES[side]}"
        context.add(COSTS, measure.Note(title, f"{back:.1f} MiB of {found[side]['bytes'] / plan.MIB:.0f} MiB copied"))


def against_exact(context, ranks):
    """The same ranks load a step the exact way, and by names, since their sub-groups are others."""
    found = {"exact": [], "elastic": []}
    with context.mounted("DeepSpeed on other ranks", "passthrough", "safe") as mount:
        series = mount.path / "steps"
        series.mkdir()
        common = ["--nvme", mount.path, "--width", context.sizes.offloaded_width, "--no-state"]
        run(context, ranks, [*common, "--steps", 1, "--save", series], "ours", "goes_on.py")
        for side in list(found) * context.pairs:
            other = ["--layers-a-group", 0.6] if side == "elastic" else []
            memory.drop_caches()
            loaded = run(context, ranks, [*common, "--steps", 0, "--resume", series, *other], "ours", "goes_on.py")
            found[side].append(loaded["cost"])
    seconds = {side: [cost["seconds"] for cost in costs] for side, costs in found.items()}
    context.add(ELASTIC, measure.Row(f"load_checkpoint, {ranks} ranks, other sub-groups", "the exact way", measure.SECONDS,
                                     seconds["elastic"], seconds["exact"], ELASTIC_BAR))
    more = max(cost["peak"] for cost in found["elastic"]) - min(cost["peak"] for cost in found["exact"])
    context.add(ELASTIC, measure.Limit("peak of a rank's memory above that of the exact way", more / plan.MIB, ELASTIC_MEMORY, "MiB"))


COPY = """\
import shutil, sys, time
began = time.monotonic()
shutil.copyfile(sys.argv[1], sys.argv[2])
print(time.monotonic() - began)
"""


def floor(context, ranks, size, cold):
    """Returns the seconds that `ranks` parallel copies into FUSE file systems without content take, each of its
    share of the bytes. The source is in memory, as native XFS has what was just copied, or `cold`, as ckptfs has a
    copy that was shared."""
    source = context.disk / "floor"
    source.write_bytes(bytes(size // ranks))
    machine.sync_filesystem(context.disk)
    with contextlib.ExitStack() as stack:
        points = [stack.enter_context(null_fuse(context, number)) for number in range(ranks)]

        def measured():
            if cold:
                memory.drop_caches()
            memory.touch_free()
            commands = [[sys.executable, "-c", COPY, source, point / "f"] for point in points]
            copies = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
            taken = [copy.communicate()[0] for copy in copies]
            if any(copy.returncode for copy in copies):
                raise mounting.Failure("a copy into null_fuse failed")
            return max(map(float, taken))

        times = context.rounds({"floor": measured})["floor"]
    source.unlink()
    return times


@contextlib.contextmanager
def null_fuse(context, number):
    point = context.work / f"null-{number}"
    point.mkdir()
    process = subprocess.Popen([mounting.helper("null_fuse"), point])
    try:
        mounting.wait_until("null_fuse is mounted", lambda: mounting.is_mountpoint(point) or process.poll() is not None)
        if process.poll() is not None:
            raise mounting.Failure(f"null_fuse ended with {process.returncode}")
        yield point
    finally:
        if mounting.is_mountpoint(point):
            mounting.unmount(point)
        process.wait(10)
        point.rmdir()


def trained(context, ranks, root, side, found):
    """Measures each copytree in a run that saves and in one that loads, except the first. Returns what was copied."""
    width, rounds = context.sizes.offloaded_width, -(-context.pairs // PASSES)
    disk = (context.disk, mounting.device_stat(context.disk))
    common = ["--nvme", root, "--width", width, "--layers", 9, "--steps", 1, "--tag", TAG, "--repeat", rounds + 1]
    common += ["--measure", *disk, "--touch"]
    series = root / "steps"
    series.mkdir(exist_ok=True)
    first = run(context, ranks, [*common, "--save", series], side)
    copied = sum(path.stat().st_size for path in (series / TAG / "offloaded_tensors").rglob("*.swp"))
    second = run(context, ranks, [*common, "--resume", series], side)
    found["save"] += first["copies"][1:]
    found["load"] += second["copies"][1:]
    loads = zip(second["loads"], second["copies"], strict=True)
    found["write_back"] += [load["bytes"] - copy["bytes"] for load, copy in loads][1:]
    return copied


def run(context, ranks, arguments, side, script="train.py"):
    out, log = context.work / "offload", context.work / "offload.log"
    with open(log, "wb") as output:
        words = [str(word) for word in [*arguments, "--out", out]]
        with harness.ranks_running(ranks, words, output, patched=side == "patched", script=script, forked=()) as processes:
            harness.wait_for_ranks(processes, log)
    return json.loads(out.with_name("offload.0").read_text())
