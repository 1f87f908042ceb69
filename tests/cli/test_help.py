"""ckptfs help, the pages that are made from the same outline, and what is said of a command that is none."""

import re

import pytest

from checking import equal, true
from mounting import CKPTFS, REPOSITORY, run


@pytest.mark.parametrize("command", ["mount", "remote", "remote check"])
def test_help_is_that_of_the_command(command):
    equal(run(CKPTFS, "help", *command.split()).stdout, run(CKPTFS, *command.split(), "--help").stdout, "help")


def test_help_without_a_command_lists_all():
    equal(run(CKPTFS, "help").stdout, run(CKPTFS, "--help").stdout, "help")


@pytest.mark.parametrize("words, said", [
    (["psuh"], "there is no command `ckptfs psuh`; did you mean `ckptfs push`?"),
    (["remote", "chekc", "s3://bucket"], "there is no command `ckptfs remote chekc`; did you mean `ckptfs remote check`?"),
    (["help", "verfiy"], "there is no command `ckptfs verfiy`; did you mean `ckptfs verify`?"),
    (["frobnicate"], "there is no command `ckptfs frobnicate`; see"),
])
def test_a_command_that_is_none_is_named(words, said):
    done = run(CKPTFS, *words, check=False)
    equal(done.returncode, 2, "exit code")
    true(said in done.stderr, f"{words}: {done.stderr}")


def test_the_reference_is_what_help_says():
    made = run(CKPTFS, "help", "--markdown").stdout
    kept = (REPOSITORY / "docs" / "commands.md").read_text()
    true(made == kept, "docs/commands.md is not what `ckptfs help --markdown` prints: write it anew")


def test_who_exits_with_3_is_named():
    """Where the exit statuses are listed: each command whose own help says so."""
    made = run(CKPTFS, "help", "--markdown").stdout
    wanted = {part.splitlines()[0] for part in made.split("\n## ckptfs ") if re.search(r"\bwith\s+3\b", part)}
    for page in (made.split("\n## ")[0], run(CKPTFS, "help", "--man").stdout.rpartition(".SH EXIT STATUS")[2]):
        said = " ".join(page.split()).partition("damage was found by ")[2]
        equal(set(re.split(", | or ", re.split(r"[).]", said)[0])), wanted, page)


def test_the_manual_page_has_all_commands():
    page = run(CKPTFS, "help", "--man").stdout
    headings = [line[3:].strip() for line in run(CKPTFS, "help", "--markdown").stdout.splitlines() if line.startswith("## ")]
    true(len(headings) > 20, f"commands: {headings}")
    for heading in headings:
        true(f".SS {heading}" in page, f"{heading} is not on the manual page")
    known = (".TH", ".SH", ".SS", ".TP", ".B", ".I", ".PP", ".nf", ".fi")
    strange = [line for line in page.splitlines() if line[:1] in (".", "'") and line.split()[0] not in known]
    equal(strange, [], "lines that troff takes for requests")
