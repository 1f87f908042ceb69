"""Formats the results for a terminal, and as docs/benchmarks.md."""

import measure

HEAD = """\
# Benchmarks

Written by `scripts/bench`; do not edit by hand. To measure again, on an idle machine, as root: the command that stands
below a section, beside the machine it ran on, or for all of them

    sudo scripts/bench --against OLD/build/ckptfs

{place}.

Each row compares ckptfs with its alternative in the same run, in {pairs} interleaved rounds (after one that is not
counted) whose order rotates. The figures are medians; the ratio is ckptfs over the alternative, pair by pair: its
median, then the quartiles and the extremes. *Bar* is what the project holds the median to; rows without one are
reported only. A bar is judged here, never by a test. The image lies in /dev/shm where there is memory for it, else on
the disk of the repository. What a disk in memory is too quick for, since there each copy of the processors counts as much
as the disk, is measured again with the image on the disk of the repository, at the end.
{warning}"""

ON_DISK = ", on the machine's disk"  # in the titles of sections

NOTES = {
    "Data in passthrough, before any save": """\
fio with libaio, O_DIRECT, 1 MiB, depth 8 for each file, each file read or overwritten whole by a thread of its own;
overwrites end with an fsync, which is part of the time. One file is {one_file} MiB; of four each is {four_files} MiB.
passthrough_hp is libfuse's own example, over the native files. Higher is better. The bar is 0.95 of native, 0.90 where
there are only 2 cores.""",
    "Data in passthrough, the first overwrite after a save": """\
Every block is shared with the step, so that the overwrite allocates. The same is shown against a native file that was
just copied by `cp --reflink=always`, and against ckptfs without a save. The step is removed between the rounds.""",
    "Data in passthrough, later, the step kept": """\
A save was taken, its step is kept, and every block was overwritten once since.""",
    "Data through the daemon": """\
O_DIRECT requests that native XFS would refuse (or serve wrongly on some devices) go through aligned memory of the
daemon. The alternative is native XFS with aligned requests. "52 bytes off": fio's `iomem_align` and `offset`. *The same
way*: a program that knows what O_DIRECT refuses, without a daemon: of each overwrite whole pages by O_DIRECT, the two at
its ends through the page cache (tests/helpers/unaligned_writer.c): what those two pages cost, whoever writes them.""",
    "Data through the daemon: what the processors allow": """\
Each byte crosses /dev/fuse by a copy that native I/O does not have, and at the borders of requests that are not aligned
the kernel reads, or copies, a page. On a disk in memory the processors are the limit, not the disk: these are the seconds
that all of them spend on a GiB, and the rate at which they are all busy. A bar above that is out of reach on this
machine, however the daemon is written; a real disk, slower than memory, leaves them idle.""",
    "Against an older version": """\
This version and the one that `--against` names, each with a store of its own, in the same rounds. Higher is better for
what is in GiB/s, lower for what is a time. The bars are at the sections of each part.""",
    "Past the mount: loads and saves": """\
libckptfs, a file of 64 tensors on the mount, against fio on native XFS: io_uring with its
buffers and files registered, O_DIRECT, 8 MiB, depth 16.
A save ends when it is durable, as fio's write does; memory that is loaded into, and saved from, is there before. The twin
stands in for a GPU's memory, its copies are a thread's; with a GPU: not measured. Higher is better. The limit of memory is
the ring, and 64 MiB.""",
    "Loaders": """\
Each in a process of its own, after its imports, nothing in the page cache; every page of every tensor is touched. Lower is
better.""",
    "Listing steps": """\
Each row of `ckptfs ls` tells whether the step is complete, what it costs and what keeps it. Lower is better.""",
    "Removing a step": """\
The files share their blocks with others on both sides. Lower is better.""",
    "Saves": """\
`setxattr(MOUNT/steps, "user.ckptfs.save", TAG)`, durable when it returns, against copies on the same XFS. Before the
clock starts, every file was opened and a block of 4 KiB of it rewritten since the last save, and all was synced. The
alternatives' `sync` is one syncfs of this file system only, without a process of its own. Lower is better. The step, or
the copy, is removed between the rounds.""",
    "Saves of an unchanged state": """\
Each save under a tag of its own, nothing written in between.""",
    "Copies": """\
A tree of large files, copied within the mount by what people use, against the same on native XFS; the source is not in
memory. The time includes a sync. `cp -r` shares on both sides; `shutil` of Python before 3.14, `cp --reflink=never`,
`tar`, `rsync` and `dd` read and write. Contents are compared each time. *Mostly frozen weights*: the second save of 32
tensors of which 3 have changed, into the next step. Lower is better.""",
    "Copies: what they write, and the space they take": """\
Bytes written to the block device, and growth of df, both after the sync; of the last round.""",
    "Checkpoints of a Trainer": """\
The Hugging Face Trainer trains GPT-2 of 92 MB, of which the normalisations and the attention of one block are not
frozen, and saves at each step: model, optimizer and small files. Each time includes a sync; the first save is not
counted. restic and borg each store the next checkpoint of the run on XFS, so their time and space come on top of its.
Lower is better.""",
    "Checkpoints of a Trainer: the space they take": """\
Growth of df by each save; the median.""",
    "Copies: what a wrong guess costs": """\
A step is written beside one that has the same names and lengths, and other bytes, against a mount with `-o adopt=off`.
Each round has names of its own. *One file that is guessed*: the daemon is brought to guess it. In passthrough such a file
comes through the daemon to its end, since the kernel asks once, at the open, and that alone costs what the row below it
says. *Steps*: as the daemon guesses by itself, which is less often after each wrong guess; so in a run that changes all of
its state few files are guessed. Written in pieces of 4 MiB; the time includes a sync behind each step. Lower is better.""",
    "DeepSpeed's copies": """\
Python's copytree of the offloaded tensors, which save_checkpoint and load_checkpoint of unmodified DeepSpeed make; the
time includes a sync. *Had the daemon nothing to do*: as many bytes, in memory, copied by Python to a FUSE file system
that answers each WRITE at once and keeps nothing (tests/helpers/null_fuse.c). No daemon can be quicker than that: on a
disk in memory a round trip for each 64 KiB takes longer than the copy. At the load, what native XFS has
copied is still in memory, and what ckptfs has shared is on the disk only: a row for that, too. Lower is better.""",
    "Reading views": """\
`cat` of a view, and of the file that it is made from, through passthrough. *In memory*: the file is; *warm*: the
kernel has the view, too; *for the first time*: of the view nothing is there yet. The fp32 view shares the blocks of the
file, as a reflink of it would, and has its own pages in the kernel's cache: its first read is one of the disk. The bf16
view is made by the daemon, each time that the kernel has nothing of it; what `cat` itself takes no daemon can make quicker. Higher is better.""",
    "A model out of a DeepSpeed checkpoint": """\
ZeRO-3, one rank, the optimizer in memory, since DeepSpeed's own tool reads no other. The time includes a sync of the
result; nothing is in memory before. Lower is better.""",
    "Operations on names": """\
One thread, from Python, whose own cost is on both sides. Lower is better.""",
}

DAEMON = "The daemon's memory"
NOTES[DAEMON] = """\
At the end of each part, and its peak."""
MEMORY = ["| part | resident | peak |", "|---|---:|---:|"]


def line(result):
    """Returns one result as a line for the terminal."""
    if isinstance(result, measure.Missing):
        return f"{result.title}: not measured: {result.reason}"
    if isinstance(result, measure.Note):
        return f"{result.title}: {result.text}"
    if isinstance(result, measure.Limit):
        title, figure, limit = limit_figure(result)
        return f"{title}: {figure} (at most {limit}) {result.verdict}"
    low, high = result.quartiles
    bar = f"  bar {result.bar} {result.verdict}" if result.bar else ""
    return (
        f"{result.title}: {result.show(result.ours)}; {result.alternative}: {result.show(result.theirs)}; "
        f"ratio {result.ratio:.2f} [{low:.2f} .. {high:.2f}]{bar}"
    )


def limit_figure(result):
    unit = f" {result.unit}" if result.unit else ""
    decimals = 1 if result.unit else 0
    return result.title, f"{result.figure:.{decimals}f}{unit}", f"{result.limit:.0f}{unit}"


def document(context, facts, before):
    """Returns docs/benchmarks.md: the new results, and the other sections of the old document if it has the same
    head."""
    head = HEAD.format(**facts)
    sections = sections_of(before) if before.startswith(head) else {}
    memory = dict(row_of(line) for line in sections.pop(DAEMON, "").splitlines() if line.startswith("| "))
    memory |= {title: f"| {title} | {mib(now)} | {mib(peak)} |" for title, (now, peak) in context.memory.items()}
    source = f"*`{facts['command']}`, {facts['when']}, ckptfs {facts['version']}; {facts['machine']}.*\n"
    for section in dict.fromkeys(section for section, _ in context.results):
        rows = table([result for of, result in context.results if of == section])
        sections[section] = "\n".join([note(section, context.sizes), rows, source])
    rows = MEMORY + [row for title, row in memory.items() if title != "part"]
    sections[DAEMON] = note(DAEMON, context.sizes) + "\n" + "\n".join(rows) + "\n"
    return head + "".join(f"\n## {title}\n\n{text}" for title, text in sections.items())


def sections_of(text):
    """Returns title -> text of each section of a document."""
    parts = (part.partition("\n\n") for part in text.split("\n## ")[1:])
    return {title: body for title, _, body in parts}


def row_of(line):
    return line.split(" | ")[0].removeprefix("| "), line


def note(section, sizes):
    if section.endswith(ON_DISK):
        return f"As *{section.removesuffix(ON_DISK)}*.\n"
    return NOTES.get(section, "").format(one_file=sizes.one_file >> 20, four_files=sizes.four_files >> 20) + "\n"


def mib(number):
    return f"{number / (1 << 20):.0f} MiB"


def table(results):
    rows = []
    if any(isinstance(result, measure.Row) for result in results):
        rows += ["| | ckptfs | alternative | | ratio | quartiles | min .. max | bar | |"]
        rows += ["|---|---:|---|---:|---:|---|---|---|---|"]
    elif all(isinstance(result, measure.Note) for result in results):
        rows += ["| | | | |", "|---|---|---|---|"]
    else:
        rows += ["| | | at most | |", "|---|---:|---:|---|"]
    rows += [cells(result) for result in results]
    return "\n".join(rows) + "\n"


def cells(result):
    if isinstance(result, measure.Missing):
        return f"| {result.title} | not measured: {result.reason} |"
    if isinstance(result, measure.Note):
        return f"| {result.title} | {result.text} | | |"
    if isinstance(result, measure.Limit):
        return f"| {' | '.join(limit_figure(result))} | {verdict(result)} |"
    low, high = result.quartiles
    return (
        f"| {result.title} | {result.show(result.ours)} | {result.alternative} | {result.show(result.theirs)} "
        f"| **{result.ratio:.2f}** | {low:.2f} .. {high:.2f} | {min(result.ratios):.2f} .. {max(result.ratios):.2f} "
        f"| {result.bar or ''} | {verdict(result)} |"
    )


def verdict(result):
    return f"**{result.verdict}**" if result.missed else result.verdict
