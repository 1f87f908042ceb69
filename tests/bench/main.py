"""Measures ckptfs against its alternatives, and writes and draws docs/benchmarks.md; scripts/bench calls it."""

import argparse
import dataclasses
import datetime
import os
import pathlib
import platform
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import copies
import data
import filesystems
import groups
import guesses
import large
import machine
import mounting
import names
import notes
import offload
import overview
import past
import plan
import plans
import push
import remote_reads
import report
import saves
import steps
import tables
import thinning
import trainers
import versions
import views

PARTS = {
    "data": data.section,
    "versions": versions.section,
    "saves": saves.section,
    "large": large.section,
    "copies": copies.section,
    "guesses": guesses.section,
    "trainer": trainers.section,
    "deepspeed": offload.section,
    "views": views.section,
    "thinning": thinning.section,
    "steps": steps.section,
    "names": names.section,
    "past": past.section,
    "groups": groups.section,
    "plans": plans.section,
    "push": push.section,
    "remote": remote_reads.section,
    "filesystems": filesystems.section,
}

# Parts that run again with the image on the machine's disk, because a disk in memory is too fast for them.
ON_DISK = ("data", "past")

# The part that has an image of its own, on the machine's disk. No other one is there meanwhile.
LARGE = "large"

EXAMPLES = """\
Ratios are taken pair by pair in the same run; the bars are those of the project, and are judged only here. The image
lies in /dev/shm where there is memory for it (then some parts run again with one in build/), else in build/. Run it as
root, on an idle machine.

examples:
  scripts/bench                     everything, about three hours on 2 cores; writes the tables, numbers and charts
  scripts/bench --quick             a look: small sizes, 3 rounds, nothing written
  scripts/bench --only saves        one part, nothing written
  scripts/bench --draw              the numbers and charts again, from the tables; nothing is measured
  scripts/bench --only large --parameters 0.1
                                    a large model, of 0.1 billion parameters: it takes 4 GB of disk
  scripts/bench --only versions --against OLD/build/ckptfs
                                    this version and an older one, nothing written
"""


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, metavar="N", help="rounds that count (default 9; 3 with --quick)")
    parser.add_argument("--quick", action="store_true", help="small sizes and 3 rounds: a look, no result")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part only; may be repeated")
    parser.add_argument("--write", action="store_true",
                        help="write the tables, numbers and charts also after --only: the other parts stay what they are")
    parser.add_argument("--draw", action="store_true",
                        help="measure nothing: write docs/benchmarks.md and its charts from docs/benchmarks-tables.md")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 when a bar is missed")
    parser.add_argument("--against", metavar="CKPTFS", type=pathlib.Path,
                        help="measure data, saves, copies, views and names by another version, too: the path of its command")
    parser.add_argument("--parameters", type=float, metavar="BILLIONS",
                        help="of the large model (default 1; 0.04 with --quick): 32 GB of disk for each billion, 8 of memory")
    parser.add_argument("--folder", metavar="PATH", help="where the image goes")
    parsed = parser.parse_args()
    parsed.pairs = parsed.pairs or (3 if parsed.quick else 9)
    if parsed.pairs < 2:
        parser.error("--pairs: at least 2")
    if parsed.quick and parsed.write:
        parser.error("--write: not with --quick, whose figures are no results")
    if parsed.parameters is not None and parsed.parameters < 0.001:
        parser.error("--parameters: at least 0.001")
    if "versions" in (parsed.only or ()) and parsed.against is None:
        parser.error("--only versions: name the other version by --against OLD/build/ckptfs")
    if parsed.draw and (parsed.only or parsed.quick or parsed.write or parsed.against):
        parser.error("--draw: measures nothing, so it takes none of --only, --quick, --write and --against")
    if parsed.against is not None and not os.access(parsed.against, os.X_OK):
        parser.error(f"--against {parsed.against}: there is no such command")
    return parsed


def main():
    options = arguments()
    if options.draw:
        draw()
        return 0
    if shutil.which("fio") is None:
        print("bench: there is no fio: run scripts/setup --bench", file=sys.stderr)
        return 1
    sizes = plan.QUICK if options.quick else plan.FULL
    if options.parameters is not None:
        sizes = dataclasses.replace(sizes, parameters=round(options.parameters * 1e9))
    context = plan.Context(sizes, options.pairs, other=options.against, listener=Printer())
    chosen = list(options.only or PARTS)
    parts = [name for name in chosen if name != LARGE]
    on_disk = pathlib.Path(options.folder).resolve() if options.folder else mounting.REPOSITORY / "build"
    folder = machine.choose_folder(options.folder, sizes.image + sizes.other_image) if parts else on_disk
    facts = facts_of(options)
    print(facts["machine"], flush=True)
    began = time.monotonic()
    try:
        if parts:
            facts["place"] = measure_in(folder, context, parts)
        again = [name for name in parts if name in ON_DISK]
        if folder == pathlib.Path("/dev/shm") and not options.folder and again:
            context.place = notes.ON_DISK
            measure_in(on_disk, context, again)
        if LARGE in chosen:
            os.environ["CKPTFS_TMP"] = str(on_disk)
            PARTS[LARGE](context)
    except (mounting.Skip, mounting.Failure) as wrong:
        print(f"bench: {wrong}", file=sys.stderr)
        return 1
    facts["minutes"] = (time.monotonic() - began) / 60
    return finish(options, context, facts)


def measure_in(folder, context, parts):
    """Runs the parts with an image in the folder. Returns where it is. Results are added to those that are there."""
    os.environ["CKPTFS_TMP"] = str(folder)
    where = "in memory" if folder == pathlib.Path("/dev/shm") else f"on {kind_of(folder)}"
    with mounting.workspace("bench") as context.work, machine.disk(context.work, context.sizes.image) as (context.disk, direct):
        place = f"an image of {context.sizes.image / plan.GIB:.0f} GiB {where}{'' if direct else ', without direct I/O'}"
        print(place, flush=True)
        for name in parts:
            PARTS[name](context)
    return place


class Printer:
    """Prints each result as it comes, under its section."""

    def __init__(self):
        self.section = None

    def __call__(self, section, result):
        if section != self.section:
            print(f"\n{section}")
            self.section = section
        print(f"  {report.line(result)}", flush=True)


def facts_of(options):
    return {
        "command": command(options),
        "machine": (
            f"Linux {platform.release().partition('-')[0]}, {machine.cores()} cores ({machine.processor()}), "
            f"{machine.memory() / plan.GIB:.0f} GiB of memory"
        ),
        "when": datetime.date.today().isoformat(),
        "version": mounting.run(mounting.CKPTFS, "--version").stdout.split()[-1],
    }


def command(options):
    words = ["sudo scripts/bench"]
    words += ["--quick"] * options.quick
    if options.pairs != (3 if options.quick else 9):
        words += [f"--pairs {options.pairs}"]
    words += [f"--only {name}" for name in options.only or ()]
    words += ["--against OLD/build/ckptfs"] * bool(options.against)
    words += [] if options.parameters is None else [f"--parameters {options.parameters:g}"]
    words += [f"--folder {options.folder}"] * bool(options.folder)
    return " ".join(words + ["--write"] * options.write)


def kind_of(folder):
    return mounting.run("stat", "-f", "-c", "%T", folder).stdout.strip()


def finish(options, context, facts):
    print("\nThe daemon's memory (resident, peak)")
    for title, (now, peak) in context.memory.items():
        print(f"  {title}: {report.mib(now)}, {report.mib(peak)}")
    if options.write or not (options.quick or options.only):
        tables.write(tables.updated(tables.read() if options.only else {}, context, facts))
        draw()
        print(f"\nwritten: {tables.PAGE.relative_to(mounting.REPOSITORY)}, {overview.PAGE.relative_to(mounting.REPOSITORY)}")
    missed = [result.title for _, result in context.results if result.missed]
    print(f"\n{len(missed)} bars missed, in {facts['minutes']:.1f} minutes")
    for title in missed:
        print(f"  {title}")
    return 1 if missed and options.strict else 0


def draw():
    """Writes docs/benchmarks.md and its charts from the tables."""
    overview.write(tables.read())
    # Debian's own Python has the matplotlib of scripts/setup. Another Python may come first in PATH.
    mounting.run("/usr/bin/python3", pathlib.Path(__file__).with_name("charts.py"))


if __name__ == "__main__":
    sys.exit(main())
