"""Python imports this at its start, where `python -m ckptfs.patch` has put this folder into PYTHONPATH: it patches the
process, then imports the sitecustomize that would have been imported without it."""

import pathlib
import sys

_HERE = pathlib.Path(__file__).resolve().parent


def _import_patch() -> None:
    """The folder of our package is the last place where it is looked for, and only this once."""
    before = sys.path[:]
    sys.path.append(str(_HERE.parent.parent))
    try:
        __import__("ckptfs.patch")
    finally:
        sys.path[:] = before


def _import_the_other() -> None:
    here = [place for place in sys.path if place and pathlib.Path(place).resolve() == _HERE]
    for place in here:
        sys.path.remove(place)
    mine = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as problem:
        if problem.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = mine


_import_patch()
_import_the_other()
