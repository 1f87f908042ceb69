"""Saves and loads by a group of ranks, against torch's DCP with the same state in the same run."""

import contextlib
import itertools
import pathlib
import shutil

import child
import machine
import measure
import memory
import plan
from ports import free_port

SECTION = "Groups of ranks"
MOVER = pathlib.Path(__file__).resolve().parent / "group_mover.py"
RANKS = 2
RING = 256 * plan.MIB
OURS = ("ckptfs", "ckptfs, copies")
DCP = ("dcp.save", "dcp.save, cached plan", "dcp.async_save")


def section(context):
    lacking = child.lacks("torch")
    if lacking:
        context.add(SECTION, measure.Missing("groups of ranks", lacking))
        return
    with context.mounted("groups of ranks", "passthrough", "safe", options=("quiet=1h",)) as mount:
        folders = {how: mount.path / "groups" for how in OURS} | {how: context.disk / "dcp" for how in DCP}
        for folder in set(folders.values()):
            folder.mkdir()
        with group(context) as ranks:
            saves(context, ranks, folders)
            loads(context, ranks, folders)
        shutil.rmtree(context.disk / "dcp")


class Ranks:
    def __init__(self, children):
        self._children = children

    def ask(self, **question):
        """The answers' worst, by name."""
        for one in self._children:
            one.send(**question)
        answers = [one.answer() for one in self._children]
        return {name: max(answer[name] for answer in answers) for name in answers[0]}


@contextlib.contextmanager
def group(context):
    port = free_port()
    with contextlib.ExitStack() as stack:
        words = (RANKS, port, context.sizes.moved)
        children = [stack.enter_context(child.started(context.work / f"rank{rank}.log", MOVER, rank, *words))
                    for rank in range(RANKS)]
        for one in children:
            one.answer()  # it is ready
        yield Ranks(children)


def saves(context, ranks, folders):
    found, numbers = {how: [] for how in folders}, itertools.count()

    def save(how):
        def measured():
            tag = f"step_{next(numbers)}"
            found[how].append(ranks.ask(do="save", how=how, series=str(folders[how]), tag=tag))
            shutil.rmtree(folders[how] / tag)
            machine.sync_filesystem(context.disk)
            return found[how][-1]["durable"]

        return measured

    context.rounds({how: save(how) for how in folders})
    size = context.sizes.moved // plan.MIB
    for how, stage, others in (("ckptfs, copies", "stall", DCP), ("ckptfs", "durable", DCP)):
        title = f"{how}: {size} MiB of {RANKS} ranks, " + ("until training goes on" if stage == "stall" else "until durable")
        for other in others:
            bar = plan.GROUP_BAR if other == quickest(found, stage, others) else None
            ours, theirs = ([answer[stage] for answer in found[name][1:]] for name in (how, other))
            context.add(SECTION, measure.Row(title, other, measure.SECONDS, ours, theirs, bar))
    own = context.sizes.moved / RANKS
    for how, copies in (("ckptfs", 0), ("ckptfs, copies", own)):
        peak = max(answer["extra"] for answer in found[how])
        limit = (max(RING, copies) + 64 * plan.MIB) / plan.MIB
        context.add(SECTION, measure.Limit(f"{how}: memory of a rank at the peak beside its state", peak / plan.MIB, limit,
                                           "MiB"))
    peaks = ", ".join(f"{how} {max(answer['extra'] for answer in found[how]) / plan.MIB:.0f} MiB" for how in DCP)
    context.add(SECTION, measure.Note("memory of a rank at the peak beside its state", peaks))


def quickest(found, stage, names):
    return min(names, key=lambda name: sorted(answer[stage] for answer in found[name][1:])[len(found[name]) // 2])


def loads(context, ranks, folders):
    for how in ("ckptfs", "dcp.save"):
        ranks.ask(do="save", how=how, series=str(folders[how]), tag="whole")
    machine.sync_filesystem(context.disk)

    def load(how):
        def measured():
            memory.drop_caches()
            path = folders["dcp.save" if how == "dcp.load" else "ckptfs"] / "whole"
            return ranks.ask(do="load", how=how, path=str(path))["seconds"]

        return measured

    ours = ("ckptfs.load, each", "ckptfs.load, broadcast", "ckptfs.load, auto")
    figures = context.rounds({how: load(how) for how in (*ours, "dcp.load")})
    title = f"{context.sizes.moved // plan.MIB} MiB to {RANKS} ranks"
    for how in ours:
        context.add(SECTION, measure.Row(f"{title}, {how}", "dcp.load", measure.SECONDS, figures[how], figures["dcp.load"]))
    best = min(ours[:2], key=lambda how: sorted(figures[how])[len(figures[how]) // 2])
    context.add(SECTION, measure.Row(f"{title}, auto", f"the better of the two: {best}", measure.SECONDS,
                                     figures["ckptfs.load, auto"], figures[best], plan.AUTO_BAR))
