"""Programs that do one thing for each line of input, most of them in build/venv (torch, safetensors, transformers)."""

import contextlib
import json
import os
import subprocess

import mounting

PYTHON = mounting.BUILD / "venv" / "bin" / "python"
INSTALL = "tests/deepspeed/venv.sh installs it"


def lacks(*modules):
    """Returns why no such program can run here, or None if it can."""
    if not PYTHON.exists():
        return f"there is no build/venv: {INSTALL}"
    done = mounting.run(PYTHON, "-c", f"import importlib.util as u; print([m for m in {modules} if not u.find_spec(m)])")
    return None if done.stdout.strip() == "[]" else f"build/venv lacks {done.stdout.strip()}: {INSTALL}"


class Child:
    """Sends a line to the program, and returns its answer, which is one line of JSON."""

    def __init__(self, process, log):
        self.process, self.log = process, log

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise mounting.Failure(f"{self.process.args[1]} has ended: {self.log.read_text(errors='replace')[-2000:]}")
        return json.loads(line)

    def send(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()

    def ask(self, **question):
        self.send(**question)
        return self.answer()


@contextlib.contextmanager
def running(log, *words, python=PYTHON):
    """Yields a Child once it has reported that it is ready."""
    with started(log, *words, python=python) as child:
        child.answer()
        yield child


@contextlib.contextmanager
def started(log, *words, python=PYTHON):
    """Yields a Child whose first answer is that it is ready."""
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu",
                       PYTHONPYCACHEPREFIX=str(mounting.BUILD / "pycache"))
    with open(log, "wb") as errors:
        process = subprocess.Popen([str(python), *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=errors, text=True, env=environment)
    try:
        yield Child(process, log)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
