"""Each room of the code has a README, short, in which every file and name is one that there is."""

import re

import pytest

from mounting import REPOSITORY

ROOMS = sorted({file.parent for layer in ("io", "meta", "fs", "gpu") for file in (REPOSITORY / layer).rglob("*.h")} -
               {REPOSITORY / "meta"})  # whose few headers all rooms below it share
PATH = re.compile(r"`((?:io|meta|fs|gpu|docs|tests)(?:/[\w.]+)*)`")
NAME_IN_FILE = re.compile(r"((?:`[\w:]+`(?: \([^`]*?\))?(?:, | and )?)+) in `([\w/.]+)`")


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(REPOSITORY)))
def test_has_a_readme(room):
    text = (room / "README.md").read_text()
    assert 10 <= text.count("\n") <= 30, "10 to 30 lines"
    for path in PATH.findall(text):
        assert (REPOSITORY / path).exists(), path
    for names, path in NAME_IN_FILE.findall(text):
        source = (REPOSITORY / path).read_text()
        for name in re.findall(r"`([\w:]+)`", names):
            assert re.search(rf"\b{name.rpartition(':')[2]}\b", source), f"{name} in {path}"


def test_the_map_links_to_each():
    links = re.findall(r"\]\(\.\./([\w/]+)/README\.md\)", (REPOSITORY / "docs" / "architecture.md").read_text())
    assert sorted(links) == [str(room.relative_to(REPOSITORY)) for room in ROOMS]
