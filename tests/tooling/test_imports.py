"""What a Python file of tests/ imports from another one is there. Some run at the level long only, or in scripts/demo."""

import ast
import pathlib

from checking import equal
from mounting import REPOSITORY

TESTS = REPOSITORY / "tests"


def defined(tree):
    """Returns the names that a module has at its top."""
    names = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        else:
            names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    return names


def used(path, tree):
    """Yields (file of tests/, name) for each name that the module takes from it."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (file := file_of(path, node.module)):
            yield from ((file, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            modules |= {alias.name: file for alias in node.names if (file := file_of(path, alias.name))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield modules[node.value.id], node.attr


def file_of(path, module):
    places = (path.parent, *(TESTS / name for name in ("lib", "runner", "posix", "crash", "deepspeed", "groups", "remote")))
    return next((file for place in places if (file := place / f"{module}.py").exists()), None)


def missing(root):
    trees = {path: ast.parse(path.read_text()) for path in sorted(root.rglob("*.py"))}
    names = {path: defined(tree) | {"__file__"} for path, tree in trees.items()}
    return [f"{path.relative_to(root)}: {file.stem}.{name}" for path, tree in trees.items()
            for file, name in used(path, tree) if name not in names[file]]


def test_what_is_imported_is_there():
    equal(missing(TESTS), [], "names that are not there")


def test_a_name_that_is_not_there_is_found(scratch):
    pathlib.Path(scratch, "one.py").write_text("HERE = 1\n")
    pathlib.Path(scratch, "two.py").write_text("import one\nfrom one import HERE, GONE\nprint(one.HERE, one.LOST)\n")
    equal(missing(scratch), ["two.py: one.GONE", "two.py: one.LOST"], "names that are not there")
