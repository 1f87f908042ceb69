"""The tests that docs/developing.md names for each promise are there, and run without --long."""

import re

from checking import equal, true
from mounting import REPOSITORY

TESTS = REPOSITORY / "tests"
SCRIPT = re.compile(r"`([a-z]+/test_\w+\.py)::(\w+)`")
UNIT = re.compile(r"`(io|meta|fs|gpu)/(\w+)\.(\w+)`")


def section():
    page = (REPOSITORY / "docs" / "developing.md").read_text()
    return page.partition("### What the 20 minutes prove")[2].partition("\n### ")[0]


def test_each_is_there():
    text, wrong = section(), []
    for file, name in SCRIPT.findall(text):
        source = (TESTS / file).read_text() if (TESTS / file).exists() else ""
        marks = re.search(rf"((?:^@.*\n)*)^def {name}\(", source, re.MULTILINE)
        if not marks or "mark.long\n" in marks[1] or re.search(r"^pytestmark = .*mark\.long\b", source, re.MULTILINE):
            wrong.append(f"{file}::{name}")
    units = {layer: "".join(path.read_text() for path in (TESTS / layer).rglob("*_test.cc"))
             for layer in ("io", "meta", "fs", "gpu")}
    wrong += [f"{layer}/{suite}.{case}" for layer, suite, case in UNIT.findall(text)
              if not re.search(rf"\({suite},\s*{case}\)", units[layer])]
    equal(wrong, [], "tests that are not there, or only with --long")
    true(len(SCRIPT.findall(text)) + len(UNIT.findall(text)) > 100, "the tables name tests")


def test_each_promise_has_a_row():
    promised = (REPOSITORY / "docs" / "promises.md").read_text().partition("## Promised\n")[2].partition("\n## ")[0]
    rules = (REPOSITORY / "docs" / "architecture.md").read_text().partition("## The rules\n")[2].partition("\n## ")[0]
    tables = [block for block in section().split("\n\n") if block.startswith("| ")]
    for table, text in zip(tables, (promised, rules)):
        wanted = set(re.findall(r"^(\d+)\. ", text, re.MULTILINE))
        equal(wanted - set(re.findall(r"^\| (\d+)\. ", table, re.MULTILINE)), set(), "numbers without a row")
