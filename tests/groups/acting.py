"""Groups of ranks that do acts: how a test starts them, and what it hears of them."""

import contextlib
import json
import pathlib

from checking import equal
from harness import ranks_running, wait_for_ranks

HERE = pathlib.Path(__file__).resolve().parent
SECONDS_TO_AN_ERROR = 60  # until a rank knows that another one has ended


class Ranks:
    """Runs a script of this folder as the ranks of a group."""

    def __init__(self, script):
        self._script = HERE / script

    @contextlib.contextmanager
    def running(self, ranks, acts, out):
        """The processes. What they print is in OUT.log, what they say in OUT.RANK."""
        with open(f"{out}.log", "wb") as log:
            with ranks_running(ranks, [str(out), json.dumps(acts)], log, script=self._script) as processes:
                yield processes

    def do(self, ranks, acts, out, alike=True):
        """Returns what each act had to say on rank 0; `alike`: all ranks must say the same."""
        with self.running(ranks, acts, out) as processes:
            wait_for_ranks(processes, f"{out}.log")
        for rank in range(1, ranks if alike else 1):
            equal(said(out, rank), said(out, 0), f"what rank {rank} said, against rank 0")
        return said(out, 0)


def said(out, rank):
    path = pathlib.Path(f"{out}.{rank}")
    return json.loads(path.read_text()) if path.exists() else []
