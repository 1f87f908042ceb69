"""The lints: what they run on the sources, and what a run of scripts/test does with them."""

import concurrent.futures
import os
import subprocess
import time

import layering
from commands import execute
from outcomes import BUILD, ROOT, log_path, read_log

NORMAL = ("lint/format", "lint/circles", "lint/layers", "lint/python", "lint/types")
LONG = ("lint/headers", "lint/clang", "lint/tidy")
BUILDS = {"lint/python": "venv", "lint/types": "venv", "lint/headers": "headers", "lint/clang": "clang",
          "lint/tidy": "clang"}
TOOLS = BUILD / "venv" / "bin"
PYTHON = [ROOT / name for name in ("docs", "gpu", "scripts", "tests")]  # where Python files are
TYPED = [ROOT / "gpu" / "python" / "ckptfs", ROOT / "tests" / "tooling" / "typed_program.py"]
SETTINGS = ROOT / "gpu" / "python" / "pyproject.toml"  # of ruff and mypy


def names(level):
    return NORMAL + LONG if level == "long" else NORMAL


def sources(*globs):
    """Returns our C++ files, sorted."""
    folders = [ROOT / name for name in (*layering.LAYERS, "tests")]
    return sorted(path for folder in folders for glob in globs for path in folder.rglob(glob))


def format_command(files):
    return ["clang-format", "--dry-run", "-Werror", *files]


def ruff_command(places):
    return [TOOLS / "ruff", "check", "--quiet", "--no-cache", "--output-format=concise", "--config", SETTINGS, *places]


def mypy_command(places, cache=BUILD / "mypy_cache"):
    """The cache makes a second run quick. Two runs must not use it at the same time."""
    return [TOOLS / "mypy", "--config-file", SETTINGS, "--cache-dir", cache, *places]


def tidy_command(file, build=BUILD / "clang"):
    return ["clang-tidy", "--quiet", "-p", build, file]


class Lints:
    """The wanted lints of a run."""

    def __init__(self, report, builds, wanted):
        self.report, self.builds, self.wanted = report, builds, wanted

    def run(self):
        for name in self.wanted:
            getattr(self, name.split("/")[1])(name)

    def format(self, name):
        log = log_path(name)
        self._end(name, execute(format_command(sources("*.cc", "*.h")), log), log)

    def python(self, name):
        """Finds names that are not there, imports and variables that nothing uses, and what else pyproject.toml says."""
        self._in_venv(name, ruff_command(PYTHON))

    def types(self, name):
        """Checks the types within the Python package, and those that its users see."""
        self._in_venv(name, mypy_command(TYPED))

    def _in_venv(self, name, command):
        if not self.builds.wait("venv"):
            return self.report.add(name, "FAIL", 0, "the venv was not made")
        log = log_path(name)
        return self._end(name, execute(command, log), log)

    def _end(self, name, ended, log):
        outcome = "ok" if ended.code == 0 else "FAIL"
        self.report.add(name, outcome, ended.seconds, log=read_log(log), processor=ended.processor)

    def circles(self, name):
        self._includes(name, layering.circles)

    def layers(self, name):
        self._includes(name, layering.upward)

    def _includes(self, name, find):
        start = time.monotonic()
        complaints = find(layering.read_includes(ROOT))
        self.report.add(name, "FAIL" if complaints else "ok", time.monotonic() - start, log="\n".join(complaints))

    def headers(self, name):
        self._by_build(name)

    def clang(self, name):
        self._by_build(name)

    def _by_build(self, name):
        """The build itself is the lint: its warnings are errors."""
        self.report.add(name, "ok" if self.builds.wait(BUILDS[name]) else "FAIL", 0, f"see build/{BUILDS[name]}")

    def tidy(self, name):
        """Runs clang-tidy on each source, as many at a time as there are processors."""
        if not self.builds.wait("clang"):
            return self.report.add(name, "FAIL", 0, "the clang build failed")
        start = time.monotonic()
        files = [path for path in sources("*.cc") if path.relative_to(ROOT).parts[0] != "tests"]

        def one(path):
            return subprocess.run(tidy_command(path), capture_output=True, text=True, check=False)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = list(pool.map(one, files))
        found = "".join(run.stdout + (run.stderr if not run.stdout else "") for run in runs if run.returncode)
        log_path(name).write_text(found)
        return self.report.add(name, "FAIL" if found else "ok", time.monotonic() - start, log=found)
