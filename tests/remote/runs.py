"""Trainings on several nodes, and what they save.

Of trainings that say nothing the mounts tell by life which slots hold one save (meta/remote/save_facts.h): the processes
that wrote on one slot had begun before the other slot's first file was written. So each run has processes of its own."""

import time

from checking import equal
from savers import Worker

# So old a process is when it saves: no command, and older than a server's clock of whole seconds is wrong.
OLD = 4.0


def saved(run, rank):
    """What a rank saves, as DeepSpeed names it. The files tell of which run they are: runs_of() reads it."""
    return {name: f"{run} of rank {rank}\n".encode() * 2000 for name in names_of(rank)}


def names_of(rank):
    """The files of a rank by which a mount knows a save."""
    return (f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def runs_of(step):
    """The names of the runs that have saved a file of it."""
    return {path.read_text().partition(" ")[0] for path in step.rglob("*states.pt")}


class Run:
    """A training's processes, one for each node."""

    def __init__(self, nodes=2):
        self.ranks = [Worker() for _ in range(nodes)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def save(self, series, tag, parts, slots=None):
        """Each rank writes its part, as {name: content}, into the series of its node; or only those of these slots."""
        for slot in range(len(self.ranks)) if slots is None else slots:
            rank, step = self.ranks[slot], series[slot] / tag
            time.sleep(max(0.0, rank.born + OLD - time.monotonic()))
            operations = [("mkdir", step), *(("write", step / name, content) for name, content in parts[slot].items())]
            equal(rank.do(operations), (len(operations), None), f"what rank {slot} has written of {step}")

    def kill(self):
        for rank in self.ranks:
            rank.kill()
