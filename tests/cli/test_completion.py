"""Completion in the real shells, each on its own terminal; and docs/commands.md, which has the same source."""

import os
import pathlib
import pty
import re
import select
import time

import pytest

from checking import equal, true
from mounting import CKPTFS, run

SHELLS = {
    "bash": ("bash --norc --noprofile -i", "source {script}"),
    "zsh": ("zsh -f -i", "autoload -Uz compinit; compinit -u -d {dump}; source {script}"),
    "fish": ("fish --no-config -i", "source {script}"),
}
# What is typed before the tab, and what the line must be after it.
TYPED = (
    ("ckptfs pol", "ckptfs policy "),
    ("ckptfs mou", "ckptfs mount "),
    ("ckptfs policy --dry", "ckptfs policy --dry-run "),
    ("ckptfs policy --unset keep_l", "ckptfs policy --unset keep_last "),
    ("ckptfs policy --set max", "ckptfs policy --set max_bytes="),
    ("ckptfs mount -o show", "ckptfs mount -o show_views"),
    ("ckptfs mount --sector 40", "ckptfs mount --sector 4096"),
    ("ckptfs completion fi", "ckptfs completion fish"),
    ("ckptfs ls /proc/sys/kern", "ckptfs ls /proc/sys/kernel/"),
    ("ckptfs remote lat", "ckptfs remote latest "),
    ("ckptfs remote verify --sam", "ckptfs remote verify --sample "),
    ("ckptfs verify --acc", "ckptfs verify --accept "),
    ("ckptfs mount -o odirect=s", "ckptfs mount -o odirect=safe"),
    ("ckptfs mount -o show_views,odirect=s", "ckptfs mount -o show_views,odirect=safe"),
)
SEQUENCES = re.compile(r"\x1b(\[[0-9;?<>=]*[A-Za-z]|[=>]|\][^\x07\x1b]*(\x07|\x1b\\)|\([B0]|P[^\x1b]*\x1b\\)")


class Terminal:
    """A shell on a pseudo terminal."""

    def __init__(self, shell, folder):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            environment = {"PATH": f"{pathlib.Path(CKPTFS).parent}:{os.environ['PATH']}", "HOME": str(folder),
                           "TERM": "dumb" if shell != "fish" else "xterm", "PS1": "> ", "LC_ALL": "C.UTF-8",
                           "COLUMNS": "200", "LINES": "50", "PROMPT": "> "}
            words = SHELLS[shell][0].split()
            os.execvpe(words[0], words, environment)

    def read(self, until, seconds=20):
        """Reads until the text satisfies `until` and no more arrives. Returns the text without cursor movements."""
        text, end = "", time.monotonic() + seconds
        while time.monotonic() < end:
            ready, _, _ = select.select([self.fd], [], [], 0.3)
            if not ready:
                if until(text):
                    return text
                continue
            raw = os.read(self.fd, 65536).decode(errors="replace")
            if "\x1b[c" in raw or "\x1b[0c" in raw:  # a request for the terminal's type, which a terminal must answer
                os.write(self.fd, b"\x1b[?62;c")
            if "\x1b[6n" in raw:
                os.write(self.fd, b"\x1b[1;1R")
            text += SEQUENCES.sub("", raw)
        return text

    def send(self, text):
        os.write(self.fd, text.encode())

    def close(self):
        os.close(self.fd)
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


@pytest.mark.parametrize("shell", SHELLS)
def test_completes(shell, scratch):
    script = scratch / f"completion.{shell}"
    script.write_text(run(CKPTFS, "completion", shell).stdout)
    terminal = Terminal(shell, scratch)
    try:
        terminal.send(SHELLS[shell][1].format(script=script, dump=scratch / "dump") + "; echo rea''dy\n")
        text = terminal.read(lambda text: "ready" in text)
        true("ready" in text, f"{shell} does not take the script: {text!r}")
        for typed, wanted in TYPED:
            terminal.send("\x15")
            terminal.read(lambda _: True)
            terminal.send(typed + "\t")
            text = terminal.read(lambda text: wanted in text.replace("\r", ""), 10)
            true(wanted in text.replace("\r", ""), f"{shell}: {typed!r} and a tab give {text!r}, not {wanted!r}")
    finally:
        terminal.close()


def test_bad_shells():
    equal(run(CKPTFS, "completion", "csh", check=False).returncode, 2, "an unknown shell")
    equal(run(CKPTFS, "completion", check=False).returncode, 2, "no shell")
