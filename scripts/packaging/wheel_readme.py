"""The text that the wheel shows on PyPI: README.md without what leads to files of the repository, which are not there.

gpu/python/pyproject.toml names this module. It names no address of the project to which the links could lead.
"""

import pathlib
import re

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
LINK = r"\[([^]]*)\]\((?!https?:)[^)]*\)"


def without_links(text):
    """Drops pictures, links in brackets of their own, and the targets of other links."""
    text = re.sub(rf"!{LINK}\n*|\s*\({LINK}\)", "", text)
    return re.sub(LINK, r"\1", text)


def dynamic_metadata(settings, project):
    """What scikit-build-core asks."""
    del settings, project
    return {"readme": {"content-type": "text/markdown", "text": without_links(README.read_text())}}
