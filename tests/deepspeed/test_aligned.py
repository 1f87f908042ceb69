"""DeepSpeed on the mount, shapes whose tensors lie at multiples of 128 elements: equal to plain XFS, to the last bit."""

import pytest

from harness import Ckptfs, PlainXfs, judge_as_plain_xfs

pytestmark = [pytest.mark.builds("venv"), pytest.mark.timeout(1800), pytest.mark.together]

# (ranks, mode, odirect)
NORMAL = ((1, "passthrough", "safe"),)
LONG = ((2, "direct", "safe"), (1, "passthrough", "raw"), (2, "passthrough", "safe"), (1, "direct", "safe"),
        (2, "passthrough", "raw"))


@pytest.mark.parametrize("ranks, mode, odirect",
                         [*NORMAL, *(pytest.param(*row, marks=pytest.mark.long) for row in LONG)])
def test_aligned(scene, ranks, mode, odirect):
    judge_as_plain_xfs(scene, Ckptfs(mode=mode, odirect=odirect), ranks)


@pytest.mark.long
def test_plain_xfs_twice(scene):
    judge_as_plain_xfs(scene, PlainXfs(), 1)
