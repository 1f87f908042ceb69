"""Draws the charts of docs/benchmarks.md from docs/benchmarks-tables.md. main.py runs it."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lib"))

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "ckptfs",  # the same rows make the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.facecolor": "white",  # a white card is legible on a dark page, too
})

import matplotlib.pyplot as plt

import notes
import overview
import tables

OURS, OURS_TOO, WORSE, OTHERS, OTHERS_TOO = "#1f77b4", "#76b7e5", "#d9822b", "#7f7f7f", "#bdbdbd"
WIDTH = 8


def draw(sections):
    """Draws each chart whose rows are measured."""
    for name, chart in (("gains", gains), ("data", data), ("trainer", trainer), ("thinning", thinning), ("names", names)):
        figure = chart(sections)
        if figure is None:
            continue
        figure.savefig(overview.PAGE.with_name(f"benchmarks-{name}.svg"), bbox_inches="tight", pad_inches=0.15,
                       metadata={"Date": None})
        plt.close(figure)


def gains(sections):
    """How many times ckptfs is better, on a logarithmic axis."""
    labelled = [number for numbers in overview.NUMBERS for number in numbers if number.label]
    found = [(number.label, result[2]) for number in labelled if (result := number.found(sections))]
    found.sort(key=lambda pair: pair[1])
    labels, values = zip(*found, strict=True)
    figure, axes = plt.subplots(figsize=(WIDTH, 0.5 + 0.28 * len(labels)))
    axes.set_xscale("log")
    axes.barh(labels, [value - 1 for value in values], left=1, height=0.65,
              color=[OURS if value >= 1 else WORSE for value in values])
    axes.set_xlim(min(values) / 3, max(values) * 3)
    for position, value in enumerate(values):
        side = "left" if value >= 1 else "right"
        axes.annotate(overview.times(value), (value, position), (4 if value >= 1 else -4, 0), va="center", ha=side,
                      textcoords="offset points")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xticks([0.1, 1, 10, 100], ["10 times slower", "the same", "10 times better", "100 times better"])
    axes.minorticks_off()
    axes.set_title("ckptfs against the alternative", loc="left", fontweight="bold")
    return figure


PLACES = {"a disk in memory": "", "the machine's disk": notes.ON_DISK}
CASES = ("read, 1 file", "overwrite, 1 file", "read, 4 files", "overwrite, 4 files")
MODES = {
    "passthrough": ("Data in passthrough, before any save", "passthrough, odirect=raw", OURS),
    "direct mode": ("Data through the daemon", "passthrough=off, aligned", OURS_TOO),
}


def data(sections):
    """Rates as a share of native XFS, with quartiles, on both kinds of disk."""
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 2.9), sharey=True, layout="constrained")
    for axes, (place, suffix) in zip(panels, PLACES.items(), strict=True):
        for shift, (mode, (section, title, color)) in zip((-0.2, 0.2), MODES.items(), strict=True):
            rows = [tables.comparison(sections, section + suffix, f"{case}: {title}", "native XFS") for case in CASES]
            at, rows = zip(*((position + shift, row) for position, row in enumerate(rows) if row), strict=True)
            errors = [[row.ratio - row.quartiles[0] for row in rows], [row.quartiles[1] - row.ratio for row in rows]]
            axes.bar(at, [row.ratio for row in rows], 0.38, color=color, label=mode, yerr=errors, ecolor="#333333",
                     capsize=2)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(range(len(CASES)), [case.replace(", ", "\n") for case in CASES])
        axes.set_title(f"large files on {place}", loc="left", fontweight="bold")
    panels[0].set_ylabel("share of native XFS")
    panels[0].legend(frameon=False, loc="upper left")
    return figure


ARCHIVES = ("ckptfs", "native XFS", "restic", "borg")


def trainer(sections):
    """Time and space of a checkpoint, in two panels."""
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 1.9), sharey=True, layout="constrained")
    times = {"ckptfs": None}
    for name in ARCHIVES[1:]:
        if row := tables.comparison(sections, overview.TRAINER, "a checkpoint", name):
            times |= {"ckptfs": row.ours, name: row.theirs}
    spaces = {name: tables.figure(sections, f"{overview.TRAINER}: the space they take", name) for name in ARCHIVES}
    for axes, title, shown in zip(panels, ("time", "disk space"), (times, spaces), strict=True):
        shown = {name: text for name, text in shown.items() if text}
        values = [overview.amount(text) for text in shown.values()]
        axes.barh(list(shown), values, color=[OURS if name == "ckptfs" else OTHERS for name in shown], height=0.65)
        for position, (value, text) in enumerate(zip(values, shown.values(), strict=True)):
            axes.annotate(text, (value, position), (4, 0), va="center", textcoords="offset points")
        axes.set_xlim(0, 1.25 * max(values))
        axes.set_xticks([])
        axes.set_title(f"a Trainer's checkpoint, {title}", loc="left", fontweight="bold")
    panels[0].invert_yaxis()
    return figure


def thinning(sections):
    """The space of the steps of a run, save by save."""
    if overview.THINNED_RUN not in sections:
        return None
    rows = sections[overview.THINNED_RUN].rows()
    saves = [int(row[0].split()[0]) for row in rows]
    ours, theory, in_full = ([overview.amount(row[column]) for row in rows] for column in (1, 2, 3))
    figure, axes = plt.subplots(figsize=(WIDTH, 2.8), layout="constrained")
    axes.plot(saves, in_full, color=OTHERS, label="the same steps in full")
    axes.plot(saves, theory, color="black", linewidth=0.8, label="theory")
    axes.plot(saves, ours, "o", color=OURS, markersize=4, label="ckptfs")
    axes.set_xlim(0, max(saves))
    axes.set_ylim(0, 1.1 * max(in_full))
    axes.set_xlabel("saves")
    axes.set_ylabel("MiB on the disk")
    axes.set_title("keep_full=2, keep_every=100, keep_last=20, thin_to=bf16", loc="left", fontweight="bold")
    axes.legend(frameon=False, loc="center right")
    return figure


OPERATIONS = ("open and close", "stat", "create and unlink", "readdir of 10000 (each entry)")


def names(sections):
    """Microseconds of each operation by ckptfs, passthrough_hp and native XFS, on a logarithmic axis."""
    figure, axes = plt.subplots(figsize=(WIDTH, 2.8), layout="constrained")
    shown = {"native XFS": {}, "passthrough_hp": {}, "ckptfs": {}}
    for position, operation in enumerate(OPERATIONS):
        for name in ("native XFS", "passthrough_hp"):
            if row := tables.comparison(sections, overview.NAMES, operation, name):
                shown[name][position], shown["ckptfs"][position] = row.theirs, row.ours
    for shift, (name, texts), color in zip((-0.27, 0, 0.27), shown.items(), (OTHERS_TOO, OTHERS, OURS), strict=True):
        if not texts:
            continue
        values = [overview.amount(text) * 1e6 for text in texts.values()]
        axes.bar([position + shift for position in texts], values, 0.26, color=color, label=name)
        for position, value in zip(texts, values, strict=True):
            axes.annotate(f"{value:.3g}", (position + shift, value), (0, 2), ha="center", textcoords="offset points")
    axes.set_yscale("log")
    axes.set_xticks(range(len(OPERATIONS)), [operation.replace(" (", "\n(") for operation in OPERATIONS])
    axes.set_yticks([1, 10, 100], ["1 µs", "10 µs", "100 µs"])
    axes.minorticks_off()
    axes.set_title("operations on names", loc="left", fontweight="bold")
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    draw(tables.read())
