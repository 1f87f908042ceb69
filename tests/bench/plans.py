"""The planner of groups: simulated groups in one process, and torch DCP's planner on the largest that it finishes."""

import pathlib
import sys

import child
import measure
import plan

SECTION = "Plans of groups"
PLANNER = pathlib.Path(__file__).resolve().parent / "planner.py"
CASES = ("replicated", "FSDP", "HSDP, 8 replicas", "TP 8, replicated")
COMPARED = ("replicated", "FSDP")
DCP_SECONDS, DCP_MEMORY = 60, 4 * plan.GIB  # DCP's planner may take so much
TENSORS = 2000


def section(context):
    ranks = context.sizes.planned_ranks
    for case in CASES:
        limits(context, f"{ranks} ranks, {TENSORS} tensors, {case}", made(context, "ours", case, ranks))
    lacking = child.lacks("torch")
    for case in COMPARED:
        if lacking:
            context.add(SECTION, measure.Missing(f"torch DCP, {case}", lacking))
        else:
            beside_dcp(context, case, ranks)


def made(context, how, case, ranks):
    """A process of its own for each, so that none has the memory of another."""
    python = child.PYTHON if how == "dcp" else sys.executable
    with child.running(context.work / "planner.log", PLANNER, python=python) as planner:
        return planner.ask(how=how, case=case, ranks=ranks, tensors=TENSORS)


def limits(context, title, found):
    context.add(SECTION, measure.Limit(f"{title}: made anew", 1e3 * found["anew"], 2000, "ms"))
    context.add(SECTION, measure.Limit(f"{title}: from the cache", 1e3 * found["cached"], 200, "ms"))
    context.add(SECTION, measure.Limit(f"{title}: memory at the peak", found["extra"] / plan.MIB, 2048, "MiB"))
    context.add(SECTION, measure.Limit(f"{title}: the most loaded rank's bytes over the mean", 100 * found["most"], 105, "%"))
    context.add(SECTION, measure.Limit(f"{title}: bytes written over different ones", 100 * found["written"], 101, "%"))


def beside_dcp(context, case, most):
    """Doubles the ranks until twice as many would take DCP too long, or too much memory."""
    ranks = 8
    found = made(context, "dcp", case, ranks)
    while ranks < most and found["anew"] <= DCP_SECONDS / 2 and found["extra"] <= DCP_MEMORY / 2:
        ranks *= 2
        found = made(context, "dcp", case, ranks)
    theirs = [found] + [made(context, "dcp", case, ranks) for _ in range(2)]
    ours = [made(context, "ours", case, ranks) for _ in theirs]
    title, name = f"{ranks} ranks, {TENSORS} tensors, {case}", "torch DCP, create_global_plan"

    def add(what, key, unit):
        figures = ([one[key] for one in side] for side in (ours, theirs))
        context.add(SECTION, measure.Row(f"{title}: {what}", name, unit, *figures))

    add("made anew", "anew", measure.SECONDS)
    add("memory at the peak", "extra", measure.MEBIBYTES)
    text = ", ".join(f"{who} {side[0]['most']:.3f}" for who, side in (("ckptfs", ours), ("torch DCP", theirs)))
    context.add(SECTION, measure.Note(f"{title}: bytes of the most loaded rank over the mean", text))
