"""What a user may choose: the file system under the store, the kernel (with passthrough or without), the options."""

import contextlib
import dataclasses
import pathlib
import shutil

import copies
import data
import machine
import measure
import mounting
import names
import plan
import saves

FILESYSTEM = "Which file system under the store"
KERNEL = "Which kernel"
OPTIONS = "Which options"
OVERWRITE = ("overwrite", 4)
MEBIBYTES = (1 / plan.MIB, "MiB", 0)


@dataclasses.dataclass(frozen=True)
class Choice:
    """What the user has chosen, and the context whose disk its store goes to."""

    text: str
    context: object
    mode: str = "passthrough"
    odirect: str = "safe"
    options: tuple = ()

    def mounted(self, name):
        return self.context.mounted(f"choices: {self.text}", self.mode, self.odirect, name, self.options)


def section(context):
    every = (save, copytree, overwrite, open_close, create_unlink)
    if reason := lacks("btrfs"):
        context.add(FILESYSTEM, measure.Missing("on btrfs", reason))
    else:
        with other_disk(context, "btrfs") as btrfs:
            compare(FILESYSTEM, Choice("on btrfs", btrfs), Choice("on XFS", context), every)
    without_reflink(context)
    default = Choice("passthrough", context)
    compare(KERNEL, Choice("passthrough=off", context, mode="direct"), default, every)
    off = Choice("adopt=off", context, options=("adopt=off",))
    compare(OPTIONS, Choice("adopt=on", context), off, (copytree, space_of_copytree))
    compare(OPTIONS, Choice("odirect=safe", context), Choice("odirect=raw", context, odirect="raw"), (overwrite,))


def lacks(kind):
    """Returns why the machine cannot make and mount such a file system, or None if it can."""
    if shutil.which(f"mkfs.{kind}") is None:
        return f"there is no mkfs.{kind}: run scripts/setup --bench"
    mounting.run("modprobe", kind, check=False)
    there = f"\t{kind}\n" in pathlib.Path("/proc/filesystems").read_text()
    return None if there else f"the kernel has no {kind}"


@contextlib.contextmanager
def other_disk(context, kind):
    """Yields a context like this one, on a disk with another file system. The results go to the same report."""
    with machine.disk(context.work, context.sizes.other_image, kind) as (disk, _):
        yield dataclasses.replace(context, disk=disk)


def without_reflink(context):
    """Reports what `ckptfs mount` says about a folder whose file system cannot share blocks."""
    if reason := lacks("ext4"):
        context.add(FILESYSTEM, measure.Missing("on ext4", reason))
        return
    with other_disk(context, "ext4") as ext4:
        point = context.work / "mnt-ext4"
        point.mkdir()
        done = mounting.run(mounting.CKPTFS, "mount", ext4.disk / "store", point, check=False)
        if done.returncode == 0:
            raise mounting.Failure("a store on ext4 was mounted")
        said = " ".join((done.stdout + done.stderr).split()).replace(str(ext4.disk), "/data").replace(str(point), "/ckpt")
        text = f"has no reflink, so it holds no store. `ckptfs mount` says `{said}`"
        context.add(FILESYSTEM, measure.Note("ext4", text))


def compare(title, ours, theirs, operations):
    """Adds a row for each operation, each with fresh stores."""
    for operation in operations:
        with ours.mounted("store-ours") as our_mount, theirs.mounted("store-theirs") as their_mount:
            text, unit, our_figure = operation(ours.context, our_mount)
            _, _, their_figure = operation(theirs.context, their_mount)
            figures = ours.context.rounds({"ours": our_figure, "theirs": their_figure})
        row = measure.Row(f"{text}: {ours.text}", theirs.text, unit, figures["ours"], figures["theirs"])
        ours.context.add(title, row)


# Each operation prepares its files, and returns its title, its unit, and a function that measures it once.


def save(context, mount):
    count, size = context.sizes.copied_files, context.sizes.copied_size
    live = mount.path / data.SWAP
    saves.fill(live, count, size)
    return f"save of {count} files of {size // plan.MIB} MiB", measure.MILLISECONDS, saves.saver(context, mount, live)


def copytree(context, mount):
    copied, text = copier(context, mount)
    return text, measure.SECONDS, lambda: copied()[0]


def space_of_copytree(context, mount):
    copied, text = copier(context, mount)
    return f"disk space of that {text}", MEBIBYTES, lambda: copied()[1]


def copier(context, mount):
    """Returns a function that returns the seconds of one copytree and the bytes that it takes, and the copy's title."""
    count, size = context.sizes.copied_files, context.sizes.copied_size
    source, target = mount.path / "copies" / "from", mount.path / "copies" / "to"
    copies.fill(source, count, size)
    machine.settle(context.disk)
    live = mount.store.filled_blobs()

    def copied():
        used = mounting.used_bytes(context.disk)
        took = copies.seconds(context, lambda: copies.copy(copies.COPYTREE, source, target))
        grown = max(mounting.used_bytes(context.disk) - used, 0)
        copies.remove(mount, live, target)
        machine.settle(context.disk)
        return took, grown

    return copied, f"copytree of {count} files of {size // plan.MIB} MiB"


def overwrite(context, mount):
    data.make_files(mount.path / data.SWAP, context.sizes)
    text = f"{data.describe(OVERWRITE)} of {context.sizes.four_files // plan.MIB} MiB, after a save"
    return text, measure.RATE, data.after_save(context, mount, OVERWRITE)


def open_close(context, mount):
    return on_names(context, mount, "open and close", names.open_close)


def create_unlink(context, mount):
    return on_names(context, mount, "create and unlink", names.create_unlink)


def on_names(context, mount, title, operation):
    folder = mount.path / "names"
    names.fill(context, folder)
    return title, measure.MICROSECONDS, names.timed(operation, context, folder)
