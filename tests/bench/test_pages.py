"""The pages of scripts/bench: what is measured can be read again from the tables, and the numbers are those of the tables."""

import pathlib
import re
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import measure
import notes
import overview
import tables
from checking import equal, true

SAVES = "Saves"
FACTS = {"command": "sudo scripts/bench", "when": "today", "version": "0", "machine": "a machine", "place": "an image"}
FAST = measure.Row(overview.SAVE, "shutil.copytree, then syncfs", measure.MILLISECONDS, [0.002] * 3, [0.6, 0.5, 0.7])
PIPE = measure.Row("tar | tar", "native XFS", measure.SECONDS, [2.0] * 3, [1.0] * 3)


def run_of(*results):
    """A run with these results, as far as the tables need it."""
    return types.SimpleNamespace(results=list(results), memory={"saves": (30 << 20, 31 << 20)})


def test_rows_come_back_from_the_page():
    sections = tables.updated({}, run_of((SAVES, FAST), ("Copies", PIPE)), FACTS)
    again = tables.parse(tables.page(sections))
    equal(again, sections, "the page, read again")
    row = tables.comparison(again, SAVES, FAST.title, FAST.alternative)
    equal((row.ours, row.theirs, row.ratio), ("2.0 ms", "600.0 ms", 0.0033), "the row")
    equal(tables.comparison(again, "Copies", "tar | tar", "native XFS").ratio, 2.0, "a title with a bar in it")
    equal(tables.comparison(again, SAVES, FAST.title, "nothing"), None, "a row that is not there")


def test_figures_have_columns_of_their_own():
    lines = [measure.Figures(f"{number} saves", {"ckptfs": f"{number}.0 MiB", "theory": "1.0 MiB"}) for number in (1, 2)]
    sections = tables.updated({}, run_of(*((overview.THINNED_RUN, line) for line in lines)), FACTS)
    again = tables.parse(tables.page(sections))[overview.THINNED_RUN]
    equal(again.table[0], "| | ckptfs | theory |", "the columns")
    equal(again.rows(), [["1 saves", "1.0 MiB", "1.0 MiB"], ["2 saves", "2.0 MiB", "1.0 MiB"]], "the rows")


def test_a_run_replaces_its_own_sections_only():
    before = tables.updated({}, run_of((SAVES, FAST), ("Copies", PIPE)), FACTS)
    after = tables.updated(before, run_of(("Copies", FAST)), FACTS)
    equal(after[SAVES], before[SAVES], "the section that was not measured again")
    equal([row[0] for row in after["Copies"].rows()], [FAST.title], "the one that was")


def test_numbers_are_those_of_the_tables():
    sections = tables.updated({}, run_of((SAVES, FAST)), FACTS)
    page = overview.page(sections)
    true("| **2.0 ms** | 600.0 ms | `shutil.copytree` and a sync | 300× |" in page, f"the number of a save: {page}")
    true(overview.NOT_MEASURED in page, "a number without a row says so")
    for gain, text in ((0.084, "0.08×"), (0.925, "0.93×"), (1.0, "1.0×"), (2.94, "2.9×"), (48.8, "49×"), (318.8, "320×")):
        equal(overview.times(gain), text)


def test_choices_have_short_tables():
    heading, section, advice = overview.CHOICES[0]
    row = measure.Row("save of 6 files: on btrfs", "on XFS", measure.MILLISECONDS, [0.004] * 3, [0.002] * 3)
    sections = tables.updated({}, run_of((section, row), (section, measure.Note("ext4", "has no reflink"))), FACTS)
    lines = overview.choice(sections, heading, section, advice).splitlines()
    true("| save of 6 files | on btrfs | 4.0 ms | on XFS | 2.0 ms | **2.00** |" in lines, f"the row: {lines}")
    equal(lines[-1], "ext4 has no reflink.", "the note")
    true("not measured" in overview.choice({}, heading, section, advice), "a choice without rows says so")


def test_the_command_is_told_as_it_was_given():
    import main
    given = {"quick": False, "pairs": 9, "only": None, "against": None, "parameters": None, "folder": None, "write": False}
    for more, words in (({}, ""), ({"only": ["saves"], "write": True}, " --only saves --write"), ({"parameters": 0.1}, " --parameters 0.1")):
        equal(main.command(types.SimpleNamespace(**given | more)), f"sudo scripts/bench{words}", "the command")


def test_each_section_has_a_note():
    folder = pathlib.Path(__file__).parent
    sections = [name for file in folder.glob("*.py") for name in re.findall(r'^SECTION = "(.*)"$', file.read_text(), re.M)]
    true(len(sections) > 1, f"sections were found: {sections}")
    equal([name for name in sections if name not in notes.NOTES], [], "sections that the page cannot have")


def test_the_pages_in_docs_are_as_they_are_written():
    sections = tables.read()
    equal(tables.PAGE.read_text(), tables.page(sections), "docs/benchmarks-tables.md, written again")
    equal(overview.PAGE.read_text(), overview.page(sections), "docs/benchmarks.md: run scripts/bench --draw")


def test_other_pages_have_figures_of_the_tables_only():
    """What is measured in these units stands in docs/benchmarks-tables.md, and is not said otherwise elsewhere."""
    measured = tables.PAGE.read_text()
    pages = [page for page in tables.PAGE.parent.glob("*.md") if page not in (tables.PAGE, overview.PAGE)]
    said = {(page.name, figure) for page in pages for figure in re.findall(r"[\d.,]*\d (?:µs|GiB/s)", page.read_text())}
    equal([(page, figure) for page, figure in said if figure not in measured], [], "figures that no table has")
