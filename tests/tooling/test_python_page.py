"""docs/python.md, and that what it names is there."""

import subprocess
import sys

import python_page
from checking import equal, true
from mounting import REPOSITORY

PACKAGE = REPOSITORY / "gpu" / "python"


def test_the_page_is_what_the_docstrings_say():
    kept = (REPOSITORY / "docs" / "python.md").read_text()
    true(kept == python_page.printed(), f"docs/python.md is old: python3 {python_page.__file__} >docs/python.md")


def test_the_types_of_all_names_are_checked():
    program = (REPOSITORY / "tests" / "tooling" / "typed_program.py").read_text()
    equal([name for name, *_ in python_page.public("__init__") if f"ckptfs.{name}" not in program], [], "names without a check")


def test_what_needs_no_torch_is_there_without_it():
    """The system's Python has no torch."""
    program = "import sys, ckptfs; print(ckptfs.latest.__module__, set(ckptfs.__all__) <= set(dir(ckptfs)), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=PACKAGE, capture_output=True, text=True, check=True)
    equal(done.stdout.split(), ["ckptfs.series", "True", "False"], "what the import brings")
