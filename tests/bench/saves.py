"""Save rows. Since the last save every file was opened and a block of it rewritten, and all of it was synced."""

import os
import shutil
import time

import data
import machine
import measure
import mounting
import plan

SAVES = "Saves"
UNCHANGED = "Saves of an unchanged state"
BLOCK = 4096


def section(context):
    for shape, count, size in shapes(context):
        with context.mounted(f"saves: {shape}", "passthrough", "safe") as mount:
            native = context.disk / "native"
            live = mount.path / data.SWAP
            for folder in (native, live):
                fill(folder, count, size)
            against_copies(context, mount, native, live, shape)
            unchanged(context, mount, shape)
            shutil.rmtree(native)


def shapes(context):
    """Returns (title, number of files, bytes of each)."""
    for count, size in context.sizes.save_shapes:
        each = f"{size // plan.MIB} MiB" if size >= plan.MIB else f"{size // plan.KIB} KiB"
        yield f"{count:,} files of {each}", count, size


def fill(folder, count, size):
    folder.mkdir(parents=True)
    content = os.urandom(min(size, plan.MIB))
    for number in range(count):
        with open(folder / f"0_{number}.tensor.swp", "wb", buffering=0) as file:
            for _ in range(size // len(content)):
                file.write(content)


def touch(context, folder):
    """Opens every file and rewrites one block of it, at an offset that differs from round to round."""
    for name in os.listdir(folder):
        descriptor = os.open(folder / name, os.O_RDWR)
        try:
            blocks = os.fstat(descriptor).st_size // BLOCK
            block = int.from_bytes(os.urandom(4)) % blocks
            os.pwrite(descriptor, os.urandom(BLOCK), block * BLOCK)
        finally:
            os.close(descriptor)
    machine.sync_filesystem(context.disk)


def saver(context, mount, live):
    """Returns a function that measures the seconds of one save."""

    def save():
        touch(context, live)
        began = time.monotonic()
        mount.save("round")  # one os.setxattr
        took = time.monotonic() - began
        check_step(mount, live)
        data.remove_steps(mount)
        return took

    return save


def against_copies(context, mount, native, live, shape):
    copy = context.disk / "copy"

    def copied(by):
        touch(context, native)
        began = time.monotonic()
        by()
        machine.sync_filesystem(context.disk)
        took = time.monotonic() - began
        shutil.rmtree(copy)
        machine.sync_filesystem(context.disk)
        return took

    figures = context.rounds(
        {
            "save": saver(context, mount, live),
            "cp": lambda: copied(lambda: mounting.run("cp", "-r", "--reflink=always", native, copy)),
            "copytree": lambda: copied(lambda: shutil.copytree(native, copy)),
        }
    )
    for name, alternative, bar in (
        ("cp", "cp -r --reflink=always, then syncfs", plan.SAVE_BAR),
        ("copytree", "shutil.copytree, then syncfs", None),
    ):
        row = measure.Row(f"save, {shape}", alternative, measure.MILLISECONDS, figures["save"], figures[name], bar)
        context.add(SAVES, row)


def check_step(mount, live):
    saved = mount.path / "steps" / "round" / "offloaded_tensors" / "rank00"
    if sorted(os.listdir(saved)) != sorted(os.listdir(live)):
        raise mounting.Failure(f"{saved} does not hold the files of {live}")


def unchanged(context, mount, shape):
    """Returns the extents in blobs/ and the growth of df."""

    def figures():
        machine.sync_filesystem(context.disk)
        blobs = [os.path.join(folder, name) for folder, _, found in os.walk(mount.store.blobs) for name in found]
        return sum(mounting.extents(blob)[0] for blob in blobs), mounting.used_bytes(context.disk)

    mount.save("first")
    extents, used = figures()
    number = context.sizes.unchanged_saves
    took = []
    for tag in range(number):
        began = time.monotonic()
        mount.save(f"again{tag}")
        took.append(time.monotonic() - began)
    extents_after, used_after = figures()
    what = f"{number} saves, {shape}"
    context.add(UNCHANGED, measure.Limit(f"{what}: extents added in blobs/", extents_after - extents, 0, ""))
    growth = (used_after - used) / plan.MIB
    context.add(UNCHANGED, measure.Limit(f"{what}: growth of df", growth, plan.GROWTH_LIMIT / plan.MIB, "MiB"))
    slowest = max(took) * 1e3
    context.add(UNCHANGED, measure.Note(f"{what}: the slowest of them", f"{slowest:.1f} ms"))
