"""Data rows: libaio, O_DIRECT, 1 MiB, depth 8 per file; reads, and overwrites with a final fsync."""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import time

import machine
import measure
import mounting
import plan

SWAP = "zero_stage_3/optimizer/rank0"
PASSTHROUGH_HP = mounting.REPOSITORY / "build" / "deps" / "bin" / "passthrough_hp"
CASES = (("read", 1), ("overwrite", 1), ("read", 4), ("overwrite", 4))

# Alignment: the offset of fio's buffers in a page, and of its requests in the file.
ALIGNED = {"memory": 0, "offset": 0}
BUFFERS = {"memory": 52, "offset": 0}
OFFSETS = {"memory": 52, "offset": 52}
KINDS = {(0, 0): "aligned", (52, 0): "buffers 52 bytes off", (52, 52): "buffers and offsets 52 bytes off"}


def section(context):
    native = context.disk / "native"
    make_files(native, context.sizes)
    in_passthrough(context, native)
    through_daemon(context, native, "passthrough", "passthrough, odirect=safe")
    through_daemon(context, native, "direct", "passthrough=off")
    mounting.run("rm", "-r", native)


def in_passthrough(context, native):
    title = "passthrough, odirect=raw"
    with context.mounted(f"data: {title}", "passthrough", "raw") as mount, passthrough_hp(context, native) as other:
        files = mount.path / SWAP
        make_files(files, context.sizes)
        before_saves(context, {"native": native, "ours": files, "hp": other}, title)
        for case in CASES:
            if case[0] == "overwrite":
                right_after_a_save(context, mount, native, title, case)
        later(context, mount, native, title)


def before_saves(context, folders, title):
    for case in CASES:
        figures = context.rounds({name: runner(context, folder, case) for name, folder in folders.items() if folder})
        add(context, "before", title, case, figures["ours"], figures["native"], plan.data_bar())
        if "hp" in figures:
            add(context, "before", title, case, figures["ours"], figures["hp"], alternative="passthrough_hp")
    if not folders["hp"]:
        context.add(SECTIONS["before"], measure.Missing(f"{title} against passthrough_hp", "scripts/setup built none"))


def right_after_a_save(context, mount, native, title, case):
    """Overwrites that find every block shared (natively after cp --reflink=always), and overwrites that do not."""
    files = mount.path / SWAP

    def after_copy():
        copy = context.disk / "copy"
        mounting.run("cp", "-r", "--reflink=always", native, copy)
        machine.sync_filesystem(context.disk)
        rate = transfer(native, context.sizes, case, ALIGNED)
        shutil.rmtree(copy)
        machine.sync_filesystem(context.disk)
        return rate

    figures = context.rounds(
        {
            "native": runner(context, native, case),
            "after copy": after_copy,
            "plain": runner(context, files, case),
            "after save": after_save(context, mount, case),
        }
    )
    ours = figures["after save"]
    add(context, "right after", title, case, ours, figures["native"], plan.data_bar())
    add(context, "right after", title, case, ours, figures["after copy"], alternative="native, after cp --reflink")
    add(context, "right after", title, case, ours, figures["plain"], alternative="ckptfs, without a save")


def after_save(context, mount, case):
    """Returns the bytes per second of an overwrite that finds every block shared with a step."""

    def measured():
        mount.save("shared")
        rate = transfer(mount.path / SWAP, context.sizes, case, ALIGNED)
        remove_steps(mount)
        return rate

    return measured


def later(context, mount, native, title):
    """The files have been saved, the step still exists, and every block was overwritten once since."""
    files = mount.path / SWAP
    mount.save("kept")
    for case in CASES:
        if case[0] == "overwrite":
            transfer(files, context.sizes, case, ALIGNED)
    for case in CASES:
        contestants = {"native": runner(context, native, case), "ours": runner(context, files, case)}
        figures = context.rounds(contestants)
        add(context, "later", title, case, figures["ours"], figures["native"], plan.data_bar())


def through_daemon(context, native, mode, title):
    """The daemon serves every O_DIRECT open. Natively the same file accepts aligned requests only."""
    kinds = {KINDS[kind["memory"], kind["offset"]]: kind for kind in (ALIGNED, BUFFERS, OFFSETS)}
    with context.mounted(f"data: {title}", mode, "safe") as mount:
        files = mount.path / SWAP
        make_files(files, context.sizes)
        for case in CASES:
            contestants = {"native": runner(context, native, case)}
            for name, kind in kinds.items():
                contestants[name] = runner(context, files, case, kind)
            if case[0] == "overwrite":
                contestants["by hand"] = by_hand(context, native, case)
            figures = context.rounds(contestants)
            for name in kinds:
                add(context, "daemon", f"{title}, {name}", case, figures[name], figures["native"], plan.DAEMON_BAR)
            if "by hand" in figures:
                unaligned = KINDS[OFFSETS["memory"], OFFSETS["offset"]]
                ours, theirs = figures[unaligned], figures["by hand"]
                add(context, "daemon", f"{title}, {unaligned}", case, ours, theirs, alternative="native, the same way")
            if mode == "direct":
                rate = statistics.median(figures["native"])
                costs = {"native": processor_seconds(context, native, case, ALIGNED)}
                costs |= {name: processor_seconds(context, files, case, kind) for name, kind in kinds.items()}
                add_costs(context, case, rate, costs)


def by_hand(context, folder, case):
    """Returns the bytes per second of overwrites at offsets that O_DIRECT does not accept, done natively as the
    daemon does."""
    length = file_size(context.sizes, case) - plan.MIB
    command = [mounting.helper("unaligned_writer"), OFFSETS["offset"], length, *(folder / name for name in names(case[1]))]
    return lambda: float(mounting.run(*command).stdout)


def processor_seconds(context, folder, case, kind):
    """Returns the seconds of all processors per GiB. It takes the difference of many loops and one, to exclude fio's
    start."""
    loops = 8

    def busy(count):
        before = machine.busy_seconds()
        transfer(folder, context.sizes, case, kind, count)
        return machine.busy_seconds() - before

    size = context.sizes.one_file if case[1] == 1 else 4 * context.sizes.four_files
    return (busy(1 + loops) - busy(1)) / (loops * size / plan.GIB)


def add_costs(context, case, native_rate, costs):
    for name, seconds in costs.items():
        most = machine.cores() / seconds
        text = f"{seconds:.2f} s a GiB: {machine.cores()} cores carry at most {most:.1f} GiB/s"
        if name != "native":
            text += f", {most * plan.GIB / native_rate:.2f} of what native reached"
        context.add(SECTIONS["processors"], measure.Note(f"{describe(case)}: {name}", text))


SECTIONS = {
    "before": "Data in passthrough, before any save",
    "right after": "Data in passthrough, the first overwrite after a save",
    "later": "Data in passthrough, later, the step kept",
    "daemon": "Data through the daemon",
    "processors": "Data through the daemon: what the processors allow",
}


def add(context, part, title, case, ours, theirs, bar=None, alternative="native XFS"):
    text = f"{describe(case)}: {title}"
    context.add(SECTIONS[part], measure.Row(text, alternative, measure.RATE, ours, theirs, bar))


def describe(case):
    what, count = case
    return f"{what}, {count} file{'s' if count > 1 else ''}"


def names(count):
    return ["0_0.tensor.swp"] if count == 1 else [f"0_{number}.tensor.swp" for number in range(1, count + 1)]


def runner(context, folder, case, kind=ALIGNED):
    return lambda: transfer(folder, context.sizes, case, kind)


def file_size(sizes, case):
    return sizes.one_file if case[1] == 1 else sizes.four_files


def make_files(folder, sizes):
    """Makes one file, and four, by O_DIRECT."""
    folder.mkdir(parents=True)
    for count in (1, 4):
        transfer(folder, sizes, ("overwrite", count), ALIGNED)


def transfer(folder, sizes, case, kind, loops=1):
    """Reads or overwrites the files, each by a thread of its own. Returns bytes per second, including the final
    fsync."""
    what, count = case
    size = file_size(sizes, case)
    # The last request of an unaligned run must not exceed the file, so the length is shorter.
    length = size - (plan.MIB if kind["offset"] else 0)
    words = ["fio", "--output-format=json", "--thread", "--group_reporting", "--ioengine=libaio", "--direct=1"]
    words += ["--bs=1M", "--iodepth=8", "--fallocate=none", "--invalidate=0", "--scramble_buffers=0", "--gtod_reduce=1"]
    words += [f"--rw={'read' if what == 'read' else 'write'}", f"--size={length}", f"--offset={kind['offset']}"]
    words.append(f"--loops={loops}")
    if what == "overwrite":
        words.append("--end_fsync=1")
    if kind["memory"]:
        words.append(f"--iomem_align={kind['memory']}")  # added to the start of the page that fio's buffers are in
    for name in names(count):
        words += [f"--name={name}", f"--filename={folder / name}"]
    done = mounting.run(*words)
    (job,) = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    if job["error"]:
        raise mounting.Failure(f"{' '.join(words)}: error {job['error']}: {done.stderr}")
    side = job["read" if what == "read" else "write"]
    if side["io_bytes"] != length * count * loops:
        raise mounting.Failure(f"{' '.join(words)}: {side['io_bytes']} bytes instead of {length * count * loops}")
    return side["io_bytes"] * 1000 / side["runtime"]


def remove_steps(mount):
    """Removes all steps, and waits until the reaper has deleted their blobs, so that the next round has the space."""
    for step in list((mount.path / "steps").iterdir()):
        shutil.rmtree(step)
    live = sum(len(found) for _, _, found in os.walk(mount.path))
    mounting.wait_until(
        f"the blobs of removed steps are deleted ({live} are live)",
        lambda: mount.store.filled_blobs() <= live,
        60,
        0.05,
    )
    machine.sync_filesystem(mount.store.folder)


@contextlib.contextmanager
def passthrough_hp(context, source):
    """Mounts libfuse's own example over the native files. Yields None if it was not built."""
    if not PASSTHROUGH_HP.exists():
        yield None
        return
    point = context.work / "hp"
    point.mkdir()
    process = subprocess.Popen(
        [PASSTHROUGH_HP, "--foreground", source, point], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        mounting.wait_until(
            "passthrough_hp is mounted", lambda: process.poll() is not None or mounting.is_mountpoint(point)
        )
        if process.poll() is not None:
            raise mounting.Failure(f"passthrough_hp ended with status {process.returncode}")
        yield point
    finally:
        if mounting.is_mountpoint(point):
            mounting.unmount(point)
        end = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        process.kill()
        process.wait()
