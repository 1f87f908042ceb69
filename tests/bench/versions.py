"""This version of ckptfs and another, each with a store of its own, on the same disk in the same rounds."""

import contextlib
import itertools

import copies
import data
import machine
import measure
import memory
import names
import saves
import views

SECTION = "Against an older version"
MODES = {
    "passthrough, odirect=raw": ("passthrough", "raw", (data.ALIGNED,)),
    "passthrough=off": ("direct", "safe", (data.ALIGNED, data.BUFFERS, data.OFFSETS)),
}
COPIES = ("cp -r", "cp -r --reflink=never", "rsync -a -W", "shutil.copytree")


def section(context):
    if context.other is None:
        return
    for part in (data_rows, save_rows, copy_rows, view_rows, name_rows):
        part(context)


@contextlib.contextmanager
def both(context, title, mode="passthrough", odirect="safe", options=()):
    """Mounts a store by this version ("ours") and one by the other ("theirs")."""
    with (context.mounted(f"versions: {title}", mode, odirect, options=options) as ours,
          context.mounted(f"versions: {title}, the other", mode, odirect, "other", options, context.other) as theirs):
        yield {"ours": ours, "theirs": theirs}


def add(context, title, unit, contestants):
    figures = context.rounds(contestants)
    context.add(SECTION, measure.Row(title, "the other version", unit, figures["ours"], figures["theirs"]))


def data_rows(context):
    for title, (mode, odirect, kinds) in MODES.items():
        with both(context, f"data, {title}", mode, odirect) as mounts:
            folders = {side: mount.path / data.SWAP for side, mount in mounts.items()}
            for folder in folders.values():
                data.make_files(folder, context.sizes)
            for case, kind in itertools.product(data.CASES, kinds):
                row = f"{data.describe(case)}: {title}, {data.KINDS[kind['memory'], kind['offset']]}"
                add(context, row, measure.RATE,
                    {side: data.runner(context, folder, case, kind) for side, folder in folders.items()})


def save_rows(context):
    for shape, count, size in saves.shapes(context):
        with both(context, f"saves, {shape}") as mounts:
            folders = {side: mount.path / data.SWAP for side, mount in mounts.items()}
            for folder in folders.values():
                saves.fill(folder, count, size)
            add(context, f"save, {shape}", measure.MILLISECONDS,
                {side: saves.saver(context, mount, folders[side]) for side, mount in mounts.items()})


def copy_rows(context):
    with both(context, "copies") as mounts:
        for mount in mounts.values():
            copies.fill(mount.path / "copies" / "from", context.sizes.copied_files, context.sizes.copied_size)
        live = {side: mount.store.filled_blobs() for side, mount in mounts.items()}
        for title in COPIES:
            add(context, f"copy, {title}", measure.SECONDS,
                {side: copies.timed(context, mount, live[side], copies.METHODS[title], mount.path / "copies", {}, side)
                 for side, mount in mounts.items()})


def view_rows(context):
    # The quiet time is long, because digests would disturb the measurement.
    with both(context, "views", options=("quiet=1h",)) as mounts:
        for mount in mounts.values():
            views.write_checkpoint(mount.path / "runs" / "checkpoint-1", context.sizes.viewed // 2)
        machine.sync_filesystem(context.disk)
        for kind in ("fp32", "bf16"):
            add(context, f"view, {kind}, for the first time", measure.RATE,
                {side: read_anew(context, mount, kind) for side, mount in mounts.items()})


def read_anew(context, mount, kind):
    """Returns a function that measures the bytes per second of a view's first read, with its step in memory."""
    plain = mount.path / "runs" / "checkpoint-1" / "model.safetensors"
    view = mount.path / "views" / "runs" / "checkpoint-1" / f"model.{kind}.safetensors"

    def rate():
        memory.drop_caches()
        views.cat(plain)
        took, _ = views.cat(view)
        return context.sizes.viewed // 2 / took

    return rate


def name_rows(context):
    with both(context, "names") as mounts:
        folders = {side: mount.path / "names" for side, mount in mounts.items()}
        for folder in folders.values():
            names.fill(context, folder)
        for title, operation in names.operations(context):
            add(context, title, measure.MICROSECONDS,
                {side: names.timed(operation, context, folder) for side, folder in folders.items()})
