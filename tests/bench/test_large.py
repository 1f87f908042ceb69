"""The benchmark of a large model, with a tiny one: each row is there, and the space is right. No time is judged."""

import dataclasses
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import large
import measure
import notes
import plan
from checking import equal, true

pytestmark = [pytest.mark.builds("venv"), pytest.mark.usefixtures("own_mounts", "venv"), pytest.mark.timeout(300),
              pytest.mark.disk(2), pytest.mark.alone, pytest.mark.long]


def test_each_row_is_there():
    context = plan.Context(dataclasses.replace(plan.QUICK, parameters=4_000_000), pairs=2)
    large.section(context)
    sections = {section.removesuffix(notes.ON_DISK): [] for section, _ in context.results}
    equal(list(sections), [large.SWAP, large.SWAP_SPACE, large.CHECKPOINTS, large.SPACE], "the sections")
    for section, result in context.results:
        true(not isinstance(result, measure.Missing), f"{section}: {result}")
        true(section in notes.NOTES, f"{section} has a note")
        sections[section.removesuffix(notes.ON_DISK)].append(result)
    state = large.STATE * context.sizes.parameters / plan.GIB
    at_once, later = (row.texts for row in sections[large.SWAP_SPACE])
    for way, share in zip(large.WAYS, (0, 0, 0, 1), strict=True):
        is_about(at_once[way], share * state, f"{way}, right after")
        is_about(later[way], state, f"{way}, once all is overwritten")
    for row, share in zip(sections[large.SPACE], (0.01, 1), strict=True):
        for side, text in row.texts.items():
            is_about(text, (1 if side == large.NATIVE else share) * state, f"{row.title}, {side}")


def is_about(text, wanted, what):
    true(abs(float(text.split()[0]) - wanted) < 0.02, f"{what}: {text}, not about {wanted:.2f} GiB")
