"""Loads and saves of libckptfs past the mount, against fio on the same device, and against other loaders."""

import contextlib
import json
import pathlib
import statistics
import sys

import child
import copies
import machine
import measure
import memory
import mounting
import plan

SECTION = "Past the mount: loads and saves"
LOADERS = "Loaders"
MOVER = pathlib.Path(__file__).resolve().parent / "mover.py"
OTHERS = {"torch.load": "pt", "torch.load, mmap": "pt", "safetensors": "safetensors", "safetensors, pread": "safetensors",
          "fastsafetensors": "safetensors", "runai-model-streamer": "safetensors"}
PLAIN = "read(2)"
TENSORS = 64  # of the model that is loaded
RING = 256 * plan.MIB
SLOT, DEPTH = 8 * plan.MIB, 16  # for fio


def section(context):
    with context.mounted("past the mount", "passthrough", "safe", options=("quiet=1h",)) as mount:
        rates(context, mount)
        loaders(context, mount)


def fio(folder, what, size):
    """Returns fio's bytes per second by O_DIRECT on a file of that size. A write makes a new file and ends with an
    fsync."""
    file = folder / "fio"
    if what == "write":
        file.unlink(missing_ok=True)
    done = mounting.run("fio", "--name=past", f"--filename={file}", f"--rw={what}", "--direct=1", "--ioengine=io_uring",
                        "--fixedbufs", "--registerfiles", f"--bs={SLOT}", f"--iodepth={DEPTH}", f"--size={size}",
                        "--end_fsync=1", "--thread", "--output-format=json")
    return json.loads(done.stdout)["jobs"][0][what]["bw_bytes"]


def rates(context, mount):
    size = context.sizes.moved
    series = mount.path / "past"
    series.mkdir()
    with contextlib.ExitStack() as stack:
        movers = {how: stack.enter_context(ours(context, how, how)) for how in NAMES}
        extra = {how: movers[how].ask(do="save", series=str(series), tag=how, size=size)["extra"] for how in movers}
        live, numbers = mount.store.filled_blobs(), iter(range(1 << 30))

        def save(how):
            tag = f"{how}-{next(numbers)}"
            seconds = movers[how].ask(do="save", series=str(series), tag=tag, size=size)["seconds"]
            copies.remove(mount, live, series / tag)
            machine.sync_filesystem(context.disk)
            return size / seconds

        def load(how):
            return size / movers[how].ask(do="load", path=str(series / how / "rank00.safetensors"))["seconds"]

        for title, what, move in (("save", "write", save), ("load", "read", load)):
            contestants = {how: lambda how=how, move=move: move(how) for how in movers}
            figures = context.rounds({"fio": lambda what=what: fio(context.disk, what, size), **contestants})
            add(context, f"{title} of {size // plan.MIB} MiB", figures, f"fio, {what}")
    (context.disk / "fio").unlink()
    for how in extra:
        with ours(context, "fresh", how) as fresh:
            loaded = fresh.ask(do="load", path=str(series / how / "rank00.safetensors"))["extra"]
        for what, peak in (("save", extra[how]), ("load", loaded)):
            title = f"{what}, {NAMES[how]}: memory at the peak beside it"
            context.add(SECTION, measure.Limit(title, peak / plan.MIB, (RING + 64 * plan.MIB) / plan.MIB, "MiB"))


def ours(context, name, how):
    """Starts a mover by libckptfs, which needs no venv."""
    return child.running(context.work / f"{name}.log", MOVER, how, python=sys.executable)


NAMES = {"twin": "the twin's device memory", "host": "host memory"}


def add(context, title, figures, alternative):
    for how, name in NAMES.items():
        context.add(SECTION, measure.Row(f"{title}, {name}", alternative, measure.RATE, figures[how], figures["fio"],
                                         plan.PAST_BAR))


def loaders(context, mount):
    lacking = child.lacks("torch", "safetensors", "fastsafetensors", "runai_model_streamer")
    if lacking:
        context.add(LOADERS, measure.Missing("other loaders", lacking))
        return
    folder = mount.path / "models"
    folder.mkdir()
    make_models(context, folder)
    endings = {"ckptfs.load": "safetensors", PLAIN: "safetensors", **OTHERS}
    peaks, sums = {}, set()

    def load(how, make_ready):
        def measured():
            path = folder / f"model.{endings[how]}"
            with child.running(context.work / "loader.log", MOVER, how) as mover:
                mover.ask(do="prepare", tensors=TENSORS, values=values_of(context))
                make_ready(path)
                memory.touch_free()
                answer = mover.ask(do="load", path=str(path))
            peaks.setdefault(how, []).append((answer["extra"] + answer["bytes"]) / answer["bytes"])
            sums.add(answer["sum"])
            if len(sums) > 1:
                raise mounting.Failure(f"{how}: what it has loaded is not what others have loaded")
            return answer["seconds"]

        return measured

    size = f"{context.sizes.moved // plan.MIB} MiB"
    for title, make_ready, bars in (
        (f"{size} from the disk into host memory", forget, dict.fromkeys(OTHERS, plan.LOADER_BAR)),
        (f"{size} from the page cache into host memory", remember, {PLAIN: plan.COPY_BAR}),
    ):
        figures = context.rounds({how: load(how, make_ready) for how in endings})
        for how in (PLAIN, *OTHERS):
            ours, theirs = figures["ckptfs.load"], figures[how]
            context.add(LOADERS, measure.Row(title, how, measure.SECONDS, ours, theirs, bars.get(how)))
    text = ", ".join(f"{how} {statistics.median(found):.2f}" for how, found in peaks.items())
    context.add(LOADERS, measure.Note("memory at the peak, in sizes of the model", text))


def values_of(context):
    return context.sizes.moved // TENSORS // 2


def make_models(context, folder):
    program = ("import sys, torch, safetensors.torch as s; count, values = map(int, sys.argv[2:])\n"
               "t = {f'layers.{n}.weight': torch.randn(values).to(torch.bfloat16) for n in range(count)}\n"
               "torch.save(t, sys.argv[1] + '/model.pt'); s.save_file(t, sys.argv[1] + '/model.safetensors')")
    mounting.run(child.PYTHON, "-c", program, folder, TENSORS, values_of(context), timeout=600)
    machine.sync_filesystem(context.disk)


def forget(_path):
    memory.drop_caches()


def remember(path):
    """Reads the file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(plan.MIB):
            pass
