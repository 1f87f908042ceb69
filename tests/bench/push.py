"""Pushing steps to a real S3-compatible store on this machine, against curl, which PUTs as many bytes, in objects of a
piece's size, as many at a time; what is sent again of a step that hardly changed; and training beside it, on one core,
with all else on another."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import sys
import threading
import time

import checking
import child
import machine
import measure
import memory
import mounting
import plan

TESTS = mounting.REPOSITORY / "tests"
sys.path += [str(TESTS / "remote"), str(TESTS / "deepspeed")]

import harness
import seaweed

SECTION = "Pushing a step"
PIECE = 64 * plan.MIB  # of a larger file
PARALLEL = 4  # files or pieces on their way at a time
OF_A_STEP = 5  # PUTs beside its files: that the push begins, the part, the commit, and 2 to see what the server checks
FILES = 10  # of a step; a tenth of them changes
URL = f"s3://{seaweed.BUCKET}/series"
STEPS = 6  # of a training between two saves


def section(context):
    if not seaweed.WEED.exists():
        context.add(SECTION, measure.Missing("a step", f"there is no {seaweed.WEED.name}: {child.INSTALL}"))
        return
    harness.install()
    os.environ.update(seaweed.environment())  # of the daemons
    throughput(context)
    requests_and_bytes(context)
    training(context)


@contextlib.contextmanager
def server(context):
    """A new one. It has its data where the mount has its own."""
    folder = context.disk / "seaweed"
    folder.mkdir()
    try:
        with seaweed.seaweed(folder) as made:
            made.make_bucket()
            yield made
    finally:
        shutil.rmtree(folder)
        machine.sync_filesystem(context.disk)


def add(series, remote):
    mounting.run(mounting.CKPTFS, "remote", "add", URL, series, "--endpoint", remote.endpoint)


def write_step(step, size, changed=0, seed=0):
    for at in range(FILES):
        piece = checking.noise(size // FILES, 1000 * (seed if at < changed else 0) + at)
        step.mkdir(parents=True, exist_ok=True)
        checking.write(step / f"weights_{at}.bin", piece)


def throughput(context):
    size, extra = context.sizes.moved, []
    source = context.disk / "pieces"
    source.mkdir()
    for at in range(size // PIECE):
        checking.write(source / str(at), checking.noise(PIECE, at))
    with context.mounted("pushing a step", "passthrough", "safe", options=("quiet=0s",)) as mount:
        series, numbers = mount.path / "steps", iter(range(1, 1000))

        def ours():
            with server(context) as remote:
                add(series, remote)
                mount.control("steps", "push", "manual")
                step = series / f"global_step{next(numbers)}"
                write_step(step, size)
                machine.settle(context.disk)
                memory.drop_caches()
                before = rss_from_now_on(mount.pid)
                began = time.monotonic()
                mounting.run(mounting.CKPTFS, "push", "--wait", step, timeout=600)
                took = time.monotonic() - began
                extra.append(machine.daemon_memory(mount.pid)[1] - before)
                mounting.run(mounting.CKPTFS, "remote", "remove", series)
                shutil.rmtree(step)
            return size / took

        def curl():
            with server(context) as remote:
                memory.drop_caches()
                return size / remote.put_by_curl(source.iterdir(), PARALLEL)

        figures = context.rounds({"ours": ours, "curl": curl})
    shutil.rmtree(source)
    title = f"{size // plan.MIB} MiB"
    row = (title, f"curl, {PIECE // plan.MIB} MiB objects, {PARALLEL} at a time", measure.RATE)
    context.add(SECTION, measure.Row(*row, figures["ours"], figures["curl"], plan.PUSH_BAR))
    context.add(SECTION, measure.Limit(f"{title}: memory of the daemon at the peak beside its own", max(extra) / plan.MIB,
                                       plan.PUSH_MEMORY / plan.MIB, "MiB"))


def rss_from_now_on(pid):
    """The resident memory. The peak counts from here."""
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
    return machine.daemon_memory(pid)[0]


def requests_and_bytes(context):
    """As the server counts them."""
    size = context.sizes.moved
    with context.mounted("steps that hardly change", "passthrough", "safe", options=("quiet=0s",)) as mount, \
            server(context) as remote:
        series = mount.path / "steps"
        add(series, remote)
        mount.control("steps", "push", "manual")
        counted = []
        for number in (1, 2):
            write_step(series / f"global_step{number}", size, changed=1, seed=number)
            before = remote.counted()
            mounting.run(mounting.CKPTFS, "push", "--wait", series / f"global_step{number}", timeout=600)
            counted.append({name: value - before[name] for name, value in remote.counted().items()})
    allowed = FILES * -(-(size // FILES) // PIECE) + OF_A_STEP
    context.add(SECTION, measure.Limit(f"{size // plan.MIB} MiB: PUTs", counted[0]["puts"], allowed, ""))
    context.add(SECTION, measure.Limit("of a step of which 90 % stands in the step before: what goes out",
                                       100 * counted[1]["bytes"] / size, 100 * plan.CHANGED_LIMIT, "%"))


def training(context):
    """DeepSpeed that swaps to the mount and saves there, and the steps are pushed or not while it goes on."""
    if machine.cores() < 2:
        context.add(SECTION, measure.Missing("a training", "it needs two cores"))
        return
    trainers, others = sorted(os.sched_getaffinity(0))[:2]
    with context.mounted("training beside a push", "passthrough", "safe", options=("quiet=1s",)) as mount, \
            server(context) as remote, machine.kernel_workers_on(others):
        series = {name: mount.path / name for name in ("pushed", "kept")}
        for folder in series.values():
            folder.mkdir()
        add(series["pushed"], remote)
        for pid in (mount.pid, remote.process.pid):
            mounting.run("taskset", "-a", "-c", "-p", others, pid)
        # In use the server is another machine, so it must not delay the daemon.
        mounting.run("chrt", "-a", "--idle", "-p", 0, remote.process.pid)

        def seconds(name, beside=contextlib.nullcontext):
            def measured():
                with beside():
                    took = trained(context, mount.path, series[name], trainers)
                mounting.wait_until(f"{name} is pushed", lambda: name == "kept" or all_pushed(series[name]), 600, 0.2)
                for step in series[name].glob("global_step*"):
                    shutil.rmtree(step)
                (series[name] / "latest").unlink()
                return took

            return measured

        bare = seconds("kept", lambda: put_by_curl_beside(remote, series["kept"], others))
        figures = context.rounds({name: seconds(name) for name in series} | {"curl": bare})
    title = f"DeepSpeed, {STEPS} steps after each save, the push beside it"
    row = (title, "without a remote", measure.SECONDS, figures["pushed"], figures["kept"], plan.BESIDE_PUSH_BAR)
    context.add(SECTION, measure.Row(*row))
    row = (title, "curl, which PUTs the files of each step beside it", measure.SECONDS, figures["pushed"], figures["curl"])
    context.add(SECTION, measure.Row(*row))


@contextlib.contextmanager
def put_by_curl_beside(remote, series, core):
    """What a bare client costs the training: each step is put once `latest` names it, by curl on that core."""
    ended, done, latest = threading.Event(), set(), series / "latest"

    def put():
        os.sched_setaffinity(0, {core})  # of this thread, and of the curl that it starts
        while not ended.wait(0.05):
            tag = latest.read_text() if latest.exists() else ""
            if not tag or tag in done:
                continue
            done.add(tag)
            remote.put_by_curl([file for file in (series / tag).rglob("*") if file.is_file()], PARALLEL)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        putting = pool.submit(put)
        try:
            yield
        finally:
            ended.set()
        putting.result()
    if not done:
        raise RuntimeError("curl has put no step")


def all_pushed(series):
    return all(os.getxattr(step, "user.ckptfs.remote.state").startswith(b"committed") for step in series.glob("global_step*"))


def trained(context, root, series, core):
    """Returns the seconds of the steps alone, without the saves between them."""
    out, log = context.work / "pushing", context.work / "pushing.log"
    words = ["--nvme", root, "--width", context.sizes.offloaded_width // 2, "--layers", 9, "--steps", STEPS,
             "--save", series, "--repeat", 3, "--out", out]
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        with open(log, "wb") as output, harness.ranks_running(1, [str(word) for word in words], output, forked=()) as processes:
            harness.wait_for_ranks(processes, log)
    finally:
        os.sched_setaffinity(0, everywhere)
    # The first steps have no save before them.
    return sum(json.loads(out.with_name("pushing.0").read_text())["train_seconds"][1:])
