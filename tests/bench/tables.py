"""Reads and writes docs/benchmarks-tables.md, which keeps all measured rows."""

import dataclasses
import re

import mounting
import notes
import report

PAGE = mounting.REPOSITORY / "docs" / "benchmarks-tables.md"

HEAD = """\
# All benchmark tables

`scripts/bench` writes this page; do not edit it by hand. [Benchmarks](benchmarks.md) has the ten numbers that matter most,
and charts.

Below each section stand the command that measures it again, the date and the machine. Run the command as root, on an idle
machine. This one measures everything, in about three hours on 2 cores:

    sudo scripts/bench --against OLD/build/ckptfs

This one draws the numbers and charts again from the tables, without measuring:

    scripts/bench --draw

Everything lies on an XFS with reflink, on a loop device with direct I/O, over an image that is allocated in full. The image
is in memory (/dev/shm) where there is room for it. On a disk in memory each copy by a processor takes as long as the disk
does. So the parts that move much data are measured again with the image on the machine's disk; their sections are at the
end.

Each row compares ckptfs with an alternative in the same run, in interleaved rounds whose order rotates. 9 rounds count
unless the command has another number (`--pairs`); one round before them does not count. The figures are medians. *Ratio*
is ckptfs over the alternative, taken pair by pair: its median, its quartiles, its extremes. *Bar* is the value that the
project holds the median to. A row without a bar is only reported. `scripts/bench` judges the bars; no test does.
"""
MEMORY = ["| part | resident | peak |", "|---|---:|---:|"]


@dataclasses.dataclass(frozen=True)
class Section:
    """A table as it stands in the page, and the line that says how it was measured."""

    table: list  # lines of Markdown
    source: str

    def rows(self):
        """Returns the cells of each row below the heading."""
        return [cells_of(line) for line in self.table[2:]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One row of ckptfs against one alternative, as the page has it."""

    ours: str
    theirs: str
    ratio: float
    quartiles: tuple


def read():
    """Returns title -> Section of the page."""
    return parse(PAGE.read_text()) if PAGE.exists() else {}


def parse(text):
    found = {}
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        lines = body.splitlines()
        source = next((line for line in lines if line.startswith("*`")), "")
        found[title] = Section([line for line in lines if line.startswith("|")], source)
    return found


def write(sections):
    PAGE.write_text(page(sections))


def page(sections):
    titles = sorted(sections, key=notes.order)
    contents = "".join(f"- [{title}](#{anchor(title)})\n" for title in titles)
    return f"{HEAD}\n{contents}" + "".join(f"\n## {title}\n\n{body(title, sections[title])}" for title in titles)


def body(title, section):
    parts = [notes.note(title), "\n".join(section.table), section.source]
    return "\n\n".join(part for part in parts if part) + "\n"


def anchor(title):
    """Returns the name by which a link finds the heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def updated(sections, context, facts):
    """Returns the sections with this run's results in place of older ones."""
    measured = dict.fromkeys(section for section, _ in context.results)
    fresh = {title: Section(report.table([result for of, result in context.results if of == title]), source(title, facts))
             for title in measured}
    return sections | fresh | {notes.DAEMON: memory(sections.get(notes.DAEMON), context.memory)}


def source(title, facts):
    place = "an image on the machine's disk" if title.endswith(notes.ON_DISK) else facts["place"]
    return f"*`{facts['command']}`, {facts['when']}, ckptfs {facts['version']}; {facts['machine']}; {place}.*"


def memory(before, figures):
    rows = {cells[0]: cells for cells in (before.rows() if before else [])}
    rows |= {part: [part, report.mib(now), report.mib(peak)] for part, (now, peak) in figures.items()}
    return Section(MEMORY + [f"| {' | '.join(cells)} |" for cells in rows.values()], "")


def cells_of(line):
    """Returns the cells of a row. A vertical bar that belongs to a cell has a backslash before it."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def comparison(sections, section, title, alternative):
    """Returns that row, or None if it is not measured."""
    for cells in sections[section].rows() if section in sections else []:
        if cells[0] == title and cells[2:3] == [alternative] and len(cells) > 5:
            low, high = map(float, cells[5].split(" .. "))
            return Comparison(cells[1], cells[3], float(cells[4].strip("*")), (low, high))
    return None


def figure(sections, section, title):
    """Returns the text beside that title in a table without alternatives, or None."""
    return next((cells[1] for cells in (sections[section].rows() if section in sections else []) if cells[0] == title), None)
