"""Prints docs/python.md, made from the types and docstrings of what the Python package names in `__all__`.

    python3 tests/lib/python_page.py >docs/python.md
"""

import ast
import pathlib
import re
import textwrap

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "gpu" / "python" / "ckptfs"
ADAPTERS = {"deepspeed": "deepspeed.md", "dcp": "loading.md#pytorch-dcp", "transformers": "trainer.md",
            "patch": "deepspeed.md#without-a-changed-script", "universal": "deepspeed.md#other-ranks"}
SHORT = {"str | os.PathLike[str]": "Path", "pieces.": "", "group_loading.": "", "torch.cuda.Stream": "Stream"}
PRIVATE = "    # --- for the adapters"  # a class shows no method below this line


def read(module):
    source = (PACKAGE / f"{module}.py").read_text()
    return ast.parse(source), source.splitlines()


def public(module):
    """Yields (name, its definition, the lines of its file) of each name in the module's `__all__`."""
    tree, lines = read(module)
    names = next(ast.literal_eval(node.value) for node in tree.body
                 if isinstance(node, ast.Assign) and ast.unparse(node.targets) == "__all__")
    places = {alias.name: node.module.removeprefix("ckptfs.") for node in ast.walk(tree)
              if isinstance(node, ast.ImportFrom) and node.module for alias in node.names}
    for name in names:
        there, of = read(places[name]) if name in places else (tree, lines)
        yield name, next(node for node in reversed(there.body) if getattr(node, "name", "") == name), of


def text(node):
    return ast.get_docstring(node) or ""


def signature(name, function):
    words = re.sub(r"^self(, )?", "", ast.unparse(function.args)).replace("=", " = ")
    returned = "" if function.name == "__init__" else f" -> {ast.unparse(function.returns)}"
    found = f"{name}: {returned[4:]}" if function.decorator_list else f"{name}({words}){returned}"  # or a property
    for long, short in SHORT.items():
        found = found.replace(long, short)
    return found


def broken(signature):
    """The signature in lines, each of which ends with a whole argument."""
    words = [word.replace(" ", "\0") for word in re.split(r"(?<=,) (?=\*|\w+:)", signature)]
    filled = textwrap.fill(" ".join(words), 112, subsequent_indent=" " * (signature.index("(") + 1))
    return textwrap.indent(filled.replace("\0", " "), "    ")


def fields(node, lines):
    """The table of a dataclass's fields. A comment behind each says what it means."""
    rows = [f"| `{one.target.id}: {ast.unparse(one.annotation)}` | {lines[one.lineno - 1].partition('  # ')[2]} |"
            for one in node.body if isinstance(one, ast.AnnAssign)]
    return "\n".join(["| | |", "|---|---|", *rows])


def bullet(words, node, sentences=None):
    told = re.split(r"(?<=\.)\s", " ".join(text(node).split()))
    return f"- `{words}`<br>{' '.join(told[:sentences])}"


def methods(node, lines):
    """A class's public methods and properties that have a docstring."""
    end = next((number for number in range(node.lineno, node.end_lineno) if lines[number] == PRIVATE), node.end_lineno)
    return [bullet(signature(one.name, one), one) for one in node.body
            if isinstance(one, ast.FunctionDef) and one.name[0] != "_" and one.lineno <= end and text(one)]


def maker(name, node):
    """The function itself, or what makes the class, if its docstring shows how."""
    made = [one for one in getattr(node, "body", ()) if getattr(one, "name", "") == "__init__"]
    return [node] if isinstance(node, ast.FunctionDef) else made if f"{name}(" in text(node) else []


def section(name, node, lines):
    yield f"## {name}"
    for one in maker(name, node):
        yield broken(signature(name, one))
    yield text(node)
    if isinstance(node, ast.ClassDef):
        if node.decorator_list:
            yield fields(node, lines)
        yield "\n".join(methods(node, lines))


def adapter(name, page):
    yield f"## ckptfs.{name}"
    yield from text(read(name)[0]).split("\n\n")[:2]
    yield f"More is on [its page]({page}), and in `help()`."
    yield "\n".join(bullet(signature(member, node) if isinstance(node, ast.FunctionDef) else member, node, 1)
                    for member, node, _ in public(name))


def page():
    top = list(public("__init__"))
    names = [name for name, *_ in top] + list(ADAPTERS)
    links = " · ".join(f"[{name}](#ckptfs{name.lower()})" for name in names)
    yield "# Python"
    yield ("Made by `tests/lib/python_page.py` from docstrings. The types are in the package, for mypy and editors. `Path` is\n"
           "`str | os.PathLike[str]`, `Stream` is `torch.cuda.Stream`.")
    yield links
    yield text(read("__init__")[0])
    for name, node, lines in top:
        yield from section(f"ckptfs.{name}", node, lines)
    for name, of in ADAPTERS.items():
        yield from adapter(name, of)


def printed():
    return "\n\n".join(filter(None, page())) + "\n"


if __name__ == "__main__":
    print(printed(), end="")
