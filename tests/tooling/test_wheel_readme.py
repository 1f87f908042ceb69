"""The wheel's text on PyPI. packaging/test_wheel.py looks at the wheel itself."""

import re
import sys

from checking import equal, true
from mounting import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts" / "packaging"))
import wheel_readme


def test_no_link_leads_to_a_file_of_the_repository():
    readme = wheel_readme.README.read_text()
    true("](docs/" in readme and "![" in readme, "README.md has such links, and a picture")
    made = wheel_readme.dynamic_metadata({}, {})["readme"]
    equal(made["content-type"], "text/markdown", "kind")
    equal([target for target in re.findall(r"\]\(([^)]*)\)", made["text"]) if not target.startswith("https://")], [], "links")
    equal(re.findall(r"!\[|docs/\w+\.md", made["text"]), [], "what is left of links")
    headings = [line for line in readme.splitlines() if line.startswith(("#", "    ", "|"))]
    equal(len([line for line in made["text"].splitlines() if line.startswith(("#", "    ", "|"))]), len(headings), "the rest is there")


def test_other_links_stay():
    text = "see [this](https://example.org/x), [the\nguide](docs/README.md) and more ([how](docs/x.md))."
    equal(wheel_readme.without_links(text), "see [this](https://example.org/x), the\nguide and more.", "text")


def test_the_wheel_takes_it():
    """By the words of pyproject.toml, without a parser: Python 3.10 has none for TOML."""
    project = (REPOSITORY / "gpu/python/pyproject.toml").read_text()
    true('dynamic = ["version", "readme"]' in project and 'module = "wheel_readme"' in project, "pyproject.toml names it")
