"""Writes docs/benchmarks.md: the numbers that matter to a user, taken from docs/benchmarks-tables.md."""

import dataclasses
import textwrap

import mounting
import tables

PAGE = mounting.REPOSITORY / "docs" / "benchmarks.md"
UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "MiB": 1.0, "GiB/s": 1.0}
RATES = ("GiB/s",)  # units of which more is better
NOT_MEASURED = "not measured"
CHOICE_HEAD = ("| | with | | with | | ratio |", "|---|---|---:|---|---:|---:|")
COLUMNS_OF_A_NOTE = 4  # a comparison has more

PAGE_TEXT = """\
# Benchmarks

`scripts/bench` writes this page and its charts from the measured rows in [all tables](benchmarks-tables.md), which also
say how each was measured. Do not edit it by hand.

## Ten numbers

*Better by* says how many times faster, or smaller, ckptfs is. Below 1× ckptfs is slower. It is the median of ratios
that were taken pair by pair, so it can differ from the ratio of the two figures beside it.

{numbers}
The disk is in memory, so the processors are the limit. The tables name the machine and the kernel. We have not measured
a fast NVMe drive or another kernel. [Loads and saves of a GPU](loading.md#on-a-gpu) were measured on other machines.

## Charts

![How many times ckptfs is faster or smaller than the alternative](benchmarks-gains.svg)

A save, a removal and a view are fast because they copy no blocks. Operations on names pay for that: an open goes to the
daemon, and a change goes into its index, too.

![The rate of large reads and overwrites as a share of native XFS](benchmarks-data.svg)

In passthrough the kernel reads and writes the blobs by itself. In direct mode the daemon moves each byte.

![Time and space of a checkpoint of a Trainer](benchmarks-trainer.svg)

restic and borg store a checkpoint that the Trainer has written to XFS before. Their time and space add to those of XFS.

{thinning}![Time of operations on names](benchmarks-names.svg)

passthrough_hp, libfuse's own example, does nothing but pass each operation on. So it is the floor of FUSE.

## What to choose

*Ratio* is the first figure over the second. It is the median of ratios that were taken pair by pair, too. Each section was
measured in a run of its own. Compare the two sides of a row only: between runs the time of one open or create differs up
to threefold on this virtual machine.

{choices}"""

THINNING = """\
![The space of the steps of a run whose older steps are thinned](benchmarks-thinning.svg)

Each save makes a step of 6 MiB, of which 2 MiB are weights. The two newest steps stay in full. Of the last 20, and of
every hundredth, the weights stay, in bf16 ([only the weights](rotation.md#only-the-weights)).

"""


@dataclasses.dataclass(frozen=True)
class Number:
    """One number of ours beside what a user would have without ckptfs."""

    text: str
    without: str
    section: str
    title: str  # of the row in the tables
    alternative: str
    label: str = ""  # in the chart of gains; without one the number is not in the chart

    def found(self, sections):
        """Returns (ours, theirs, how many times ours is better), or None."""
        row = tables.comparison(sections, self.section, self.title, self.alternative)
        if row is None:
            return None
        # A table of an older run shows a small ratio as 0.00.
        ratio = row.ratio if row.ratio >= 0.1 else amount(row.ours) / amount(row.theirs)
        return row.ours, row.theirs, ratio if row.ours.endswith(RATES) else 1 / ratio


@dataclasses.dataclass(frozen=True)
class Amount(Number):
    """Two amounts in a table without alternatives. `alternative` is the title of the other one."""

    def found(self, sections):
        ours, theirs = (tables.figure(sections, self.section, title) for title in (self.title, self.alternative))
        if ours is None or theirs is None:
            return None
        return ours, theirs, amount(theirs) / max(amount(ours), 0.05)  # 0.0 MiB is less than that


SAVE, COPYTREE = "save, 24 files of 64 MiB", "copytree in save_checkpoint, 1 ranks"
TRAINER, LOADED = "Checkpoints of a Trainer", "1024 MiB from the disk into host memory"
LISTED, REMOVED = "ckptfs ls of 1,000 steps of 500 files", "ckptfs rm of a step of 10,000 files, until it returns"
NAMES = "Operations on names"
THINNED_RUN = "Thinning the steps of a run: the space they take"

NUMBERS = (
    (Number("Save 24 files of 64 MiB, durable", "`shutil.copytree` and a sync", "Saves", SAVE, "shutil.copytree, then syncfs",
            "save, against copytree"),
     Number("the same", "`cp -r --reflink=always` and a sync", "Saves", SAVE, "cp -r --reflink=always, then syncfs",
            "save, against cp --reflink")),
    (Number("`copytree` in DeepSpeed's `save_checkpoint`, unpatched: time", "native XFS", "DeepSpeed's copies", COPYTREE,
            "native XFS", "unpatched copytree"),
     Amount("the same: what it writes to the disk", "native XFS", "DeepSpeed's copies: what they write to the device",
            f"{COPYTREE}, ckptfs", f"{COPYTREE}, native XFS")),
    (Number("A Trainer's checkpoint, mostly frozen weights: time", "native XFS", TRAINER, "a checkpoint", "native XFS",
            "Trainer's checkpoint, time"),
     Amount("the same: disk space", "native XFS", f"{TRAINER}: the space they take", "ckptfs", "native XFS",
            "Trainer's checkpoint, space")),
    (Number("fp32 weights out of a ZeRO-3 step", "`zero_to_fp32.py`", "A model out of a DeepSpeed checkpoint",
            "the fp32 weights of a ZeRO-3 checkpoint", "zero_to_fp32.py", "weights out of a step"),),
    (Number("Read 4 files in passthrough", "native XFS", "Data in passthrough, before any save",
            "read, 4 files: passthrough, odirect=raw", "native XFS", "read, passthrough"),
     Number("Overwrite 4 files in passthrough", "native XFS", "Data in passthrough, before any save",
            "overwrite, 4 files: passthrough, odirect=raw", "native XFS", "overwrite, passthrough")),
    (Number("Read 4 files in direct mode", "native XFS", "Data through the daemon",
            "read, 4 files: passthrough=off, aligned", "native XFS", "read, direct mode"),
     Number("Overwrite 4 files in direct mode", "native XFS", "Data through the daemon",
            "overwrite, 4 files: passthrough=off, aligned", "native XFS", "overwrite, direct mode")),
    (Number("Load 1 GiB past the mount, `ckptfs.load`", "`safetensors.torch.load_file`", "Loaders", LOADED, "safetensors",
            "load, against safetensors"),
     Number("the same", "`torch.load`", "Loaders", LOADED, "torch.load", "load, against torch.load")),
    (Number("Remove a step of 10,000 files", "`rm -rf`, native XFS", "Removing a step", REMOVED, "rm -rf on native XFS",
            "remove a step"),),
    (Number("List 1,000 steps of 500 files, with what each costs", "`ls -lR` of the same tree", "Listing steps", LISTED,
            "ls -lR of the same tree", "list 1,000 steps"),),
    (Number("Open and close a file", "native XFS", NAMES, "open and close", "native XFS", "open and close"),
     Number("the same", "passthrough_hp", NAMES, "open and close", "passthrough_hp"),
     Number("Create and unlink a file", "native XFS", NAMES, "create and unlink", "native XFS", "create and unlink"),
     Number("the same", "passthrough_hp", NAMES, "create and unlink", "passthrough_hp")),
)

# Advice for what a user may choose: a heading, the section whose rows support the advice, and the advice.
CHOICES = (
    ("The file system under the store", "Which file system under the store", """\
Put the store on XFS. On btrfs an overwrite after a save is much slower, and our tests do not cover btrfs."""),
    ("The kernel", "Which kernel", """\
Use Linux 6.9 or newer, which has passthrough; `passthrough=off` stands for an older kernel. The gain is in reads and
writes through the page cache. This device wants aligned memory for O_DIRECT, so the daemon serves the overwrites below
in both modes."""),
    ("The options", "Which options", """\
Leave the defaults, `adopt=on` and `odirect=safe`. `adopt=off` makes copies larger. `odirect=raw` is faster, but it hands
DeepSpeed garbage if the device wants aligned memory."""),
)


def amount(text):
    """Returns the number in "2.0 ms" in seconds, MiB or GiB/s."""
    number, unit = text.split()[:2]
    return float(number) * UNITS[unit]


def times(gain):
    """Returns "0.92×", "1.5×" or "320×"."""
    return f"{gain:.2f}×" if gain < 1 else f"{float(f'{gain:.2g}'):,.{1 if gain < 9.95 else 0}f}×"


def write(sections):
    PAGE.write_text(page(sections))


def page(sections):
    rows = ["| | | ckptfs | without ckptfs | | better by |", "|---:|---|---:|---:|---|---:|"]
    for position, numbers in enumerate(NUMBERS, 1):
        rows += [row(sections, number, position if number is numbers[0] else "") for number in numbers]
    choices = "\n".join(choice(sections, *words) for words in CHOICES)
    thinning = THINNING if THINNED_RUN in sections else ""
    return PAGE_TEXT.format(numbers="\n".join(rows) + "\n", thinning=thinning, choices=choices)


def row(sections, number, position):
    ours, theirs, gain = number.found(sections) or (NOT_MEASURED, "", None)
    cells = [str(position), link(sections, number.text, number.section), f"**{ours}**", theirs, number.without, times(gain) if gain else ""]
    return f"| {' | '.join(cells)} |"


def choice(sections, heading, section, advice):
    """Returns a choice with its advice, a short table of the rows that support it, and the notes on it."""
    if section not in sections:
        return f"### {heading}\n\n{advice} We have not measured this.\n"
    rows = sections[section].rows()
    table = [choice_row(cells) for cells in rows if len(cells) > COLUMNS_OF_A_NOTE]
    notes = [f"{cells[0]} {cells[1]}." for cells in rows if len(cells) <= COLUMNS_OF_A_NOTE]
    tables_link = link(sections, "The tables", section)
    advice = textwrap.fill(f"{advice} {tables_link} have all figures.", 120, break_on_hyphens=False)
    return "\n\n".join([f"### {heading}", advice, "\n".join([*CHOICE_HEAD, *table]), *notes]) + "\n"


def choice_row(cells):
    """Returns what was measured, the one choice with its figure, the other with its figure, and the ratio."""
    title, _, chosen = cells[0].rpartition(": ")
    return f"| {title} | {chosen} | {' | '.join(cells[1:5])} |"


def link(sections, text, section):
    """Returns the text as a link to the section, or the plain text if the section is not measured."""
    return f"[{text}]({tables.PAGE.name}#{tables.anchor(section)})" if section in sections else text
