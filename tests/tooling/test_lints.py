"""Each lint finds a violation that is planted. tooling/test_layering.py does this for circles and layers."""

import json
import pathlib
import shlex
import shutil
import tempfile

import pytest

import lints
from checking import equal, true
from mounting import BUILD, REPOSITORY, run

GOOD = "int answer() { return 42; }\n"


@pytest.fixture
def planted():
    """Writes a file under the settings of the tree, and returns its path."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (".clang-format", ".clang-tidy"):
            shutil.copy(REPOSITORY / name, folder)

        def plant(text):
            file = pathlib.Path(folder, "planted.cc")
            file.write_text(text)
            return file

        yield plant


def finds(command, *words):
    done = run(*command, check=False)
    true(done.returncode != 0, f"nothing is found: {done}")
    for word in words:
        true(word in done.stdout + done.stderr, f"{word!r} is not in {done}")


def finds_nothing(command):
    equal(run(*command, check=False).returncode, 0, f"status of {command}")


def test_format(planted):
    finds_nothing(lints.format_command([planted(GOOD)]))
    finds(lints.format_command([planted("int answer( ) {return 42;}\n")]), "planted.cc:1")


@pytest.mark.builds("venv")
def test_python(planted):
    def command(text):
        return lints.ruff_command([planted(text)])

    finds_nothing(command("print(1)\n"))
    finds(command("print(one)\n"), "planted.cc:1", "Undefined name `one`")
    finds(command("try:\n    print(1)\nexcept Exception:\n    pass\n"), "planted.cc:3", "BLE001")


@pytest.mark.builds("venv")
def test_types(planted):
    def command(text):
        file = planted(text)
        return lints.mypy_command([file], file.parent / "cache")

    finds_nothing(command("def answer() -> int:\n    return 42\n"))
    finds(command("def answer():\n    return 42\n"), "planted.cc:1", "no-untyped-def")
    finds(command("def answer() -> int:\n    return '42'\n"), "planted.cc:2", "return-value")


def test_tidy(planted):
    def command(text):
        file = planted(text)
        entry = {"directory": str(file.parent), "file": str(file), "command": f"c++ -std=c++20 -c {file}"}
        (file.parent / "compile_commands.json").write_text(json.dumps([entry]))
        return lints.tidy_command(file, file.parent)

    finds_nothing(command(GOOD))
    bad = "#include <string>\nbool is_empty(const std::string& text) { return text.size() == 0; }\n"
    finds(command(bad), "readability-container-size-empty")


def compile_command(build, like, file):
    """Returns the command by which the build compiles `like`, for another file."""
    entries = json.loads((BUILD / build / "compile_commands.json").read_text())
    entry = next(entry for entry in entries if entry["file"].endswith(like))
    words = shlex.split(entry["command"].replace(entry["file"], str(file)))
    words[words.index("-o") + 1] = "/dev/null"
    return words


@pytest.mark.long
@pytest.mark.builds("clang")
def test_clang(planted):
    finds_nothing(compile_command("clang", "/io/fd.cc", planted(GOOD)))
    finds(compile_command("clang", "/io/fd.cc", planted("int answer() { int other = 42; return 42; }\n")), "-Wunused")


@pytest.mark.long
@pytest.mark.builds("headers")
def test_headers(planted):
    """A header that lacks an include or a guard."""
    def command(header):
        file = planted('#include "planted.h"\n#include "planted.h"\n')
        (file.parent / "planted.h").write_text(header)
        return compile_command("clang", "check_headers/io/fd.h.cc", file)

    finds_nothing(command(f"#pragma once\ninline {GOOD}"))
    finds(command("#pragma once\ninline std::string text();\n"), "string")
    finds(command(f"inline {GOOD}"), "redefinition")
