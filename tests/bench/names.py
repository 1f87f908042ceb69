"""Operations on names, by one thread of Python, whose own cost is on both sides. They are reported without a bar."""

import os
import shutil
import time

import data
import measure

SECTION = "Operations on names"


def section(context):
    native, under_hp = context.disk / "native", context.disk / "under-hp"
    under_hp.mkdir()
    with context.mounted("names", "passthrough", "safe") as mount, data.passthrough_hp(context, under_hp) as hp:
        folders = {"ours": mount.path / "names", "native XFS": native}
        if hp:
            folders["passthrough_hp"] = hp / "names"
        else:
            context.add(SECTION, measure.Missing("passthrough_hp", "scripts/setup built none"))
        for folder in folders.values():
            fill(context, folder)
        for title, operation in operations(context):
            figures = context.rounds({name: timed(operation, context, folder) for name, folder in folders.items()})
            for name in list(folders)[1:]:
                row = measure.Row(title, name, measure.MICROSECONDS, figures["ours"], figures[name])
                context.add(SECTION, row)
    shutil.rmtree(native)
    shutil.rmtree(under_hp)


def operations(context):
    return (("open and close", open_close), ("stat", stat), ("create and unlink", create_unlink),
            (f"readdir of {context.sizes.names} (each entry)", readdir))


def fill(context, folder):
    folder.mkdir()
    for name in all_names(context):
        os.close(os.open(folder / name, os.O_CREAT | os.O_WRONLY))


def all_names(context):
    return [f"{number:06d}" for number in range(context.sizes.names)]


def timed(operation, context, folder):
    """Returns a function that measures the seconds per operation."""

    def measured():
        paths = [f"{folder}/{name}" for name in all_names(context)]
        began = time.monotonic()
        number = operation(str(folder), paths)
        return (time.monotonic() - began) / number

    return measured


def open_close(_folder, paths):
    for path in paths:
        os.close(os.open(path, os.O_RDONLY))
    return len(paths)


def stat(_folder, paths):
    for path in paths:
        os.stat(path)
    return len(paths)


def create_unlink(_folder, paths):
    paths = paths[: max(len(paths) // 10, 1)]
    for path in paths:
        os.close(os.open(path + ".new", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(path + ".new")
    return len(paths)


def readdir(folder, paths):
    if len(os.listdir(folder)) != len(paths):
        raise AssertionError(f"{folder} does not list {len(paths)} names")
    return len(paths)
