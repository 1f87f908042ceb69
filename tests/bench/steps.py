"""Many steps, and large ones: listing them, and removing one."""

import shutil
import subprocess
import time

import data
import machine
import measure
import mounting
import plan
import saves

LISTING = "Listing steps"
REMOVAL = "Removing a step"
SMALL = 4 * plan.KIB


def section(context):
    listing(context)
    removal(context)


def listing(context):
    count, files = context.sizes.listed_steps, context.sizes.files_a_step
    with context.mounted("many steps", "passthrough", "safe") as mount:
        saves.fill(mount.path / data.SWAP, files, SMALL)
        for number in range(count):
            mount.save(f"global_step{number}")
        series = mount.path / "steps"
        commands = {"ours": [mounting.CKPTFS, "ls", "--json", series], "theirs": ["ls", "-lR", series]}
        figures = context.rounds({name: timed(command) for name, command in commands.items()})
        title = f"ckptfs ls of {count:,} steps of {files} files"
        row = (title, "ls -lR of the same tree", measure.SECONDS, figures["ours"], figures["theirs"])
        context.add(LISTING, measure.Row(*row))


def timed(command):
    def measured():
        began = time.monotonic()
        subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, check=True)
        return time.monotonic() - began

    return measured


def removal(context):
    count = context.sizes.removed_files
    with context.mounted("a step removed", "passthrough", "safe") as mount:
        source, native = mount.path / data.SWAP, context.disk / "native"
        saves.fill(source, count, SMALL)
        saves.fill(native, count, SMALL)
        step, copy = mount.path / "steps" / "global_step1", context.disk / "copy"
        freed = []

        def ours():
            mount.save(step.name)
            machine.sync_filesystem(context.disk)
            took = timed([mounting.CKPTFS, "rm", step])()
            began = time.monotonic()
            mounting.wait_until("it is emptied", lambda: mount.status()["rotation"]["being_emptied"] == 0, 60, 0.02)
            freed.append(took + time.monotonic() - began)
            return took

        def theirs():
            subprocess.run(["cp", "-r", "--reflink=always", native, copy], check=True)
            machine.sync_filesystem(context.disk)
            return timed(["rm", "-rf", copy])()

        figures = context.rounds({"ours": ours, "theirs": theirs})
        title = f"ckptfs rm of a step of {count:,} files, until it returns"
        row = (title, "rm -rf on native XFS", measure.SECONDS, figures["ours"], figures["theirs"])
        context.add(REMOVAL, measure.Row(*row, plan.REMOVAL_BAR))
        row = ("the same, until all of it is emptied behind", "rm -rf on native XFS", measure.SECONDS)
        context.add(REMOVAL, measure.Row(*row, freed[-len(figures["theirs"]):], figures["theirs"]))
        shutil.rmtree(native)
