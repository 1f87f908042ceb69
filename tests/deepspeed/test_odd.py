"""DeepSpeed on the mount, shapes that make it read into unaligned buffers: right here, wrong on plain XFS."""

import pytest

from harness import Ckptfs, Memory, PlainXfs, Tmpfs, differences, same_outcome, same_resume, true

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.together]

ROWS = ((1, "passthrough"), (2, "direct"), (2, "passthrough"), (1, "direct"))


def test_plain_xfs_is_wrong(scene):
    """On plain XFS over loop (alignment 512) the same run trains on garbage and says nothing."""
    truth = scene.reference(Tmpfs(), shape="odd", ranks=1)
    wrong = scene.run(PlainXfs(), shape="odd", ranks=1, resume=False)
    true(differences(wrong, truth), "plain XFS over loop trains right with odd shapes: the premise is gone")
    print("      " + "; ".join(differences(wrong, truth)))


@pytest.mark.parametrize("ranks", (1, 2))
def test_tmpfs_and_memory_agree(scene, ranks):
    same_outcome(scene.run(Memory(), shape="odd", ranks=ranks), scene.reference(Tmpfs(), shape="odd", ranks=ranks))


@pytest.mark.parametrize("ranks, mode", ROWS)
def test_odd(scene, ranks, mode):
    truth = scene.reference(Tmpfs(), shape="odd", ranks=ranks)
    ours = scene.run(Ckptfs(mode=mode), shape="odd", ranks=ranks)
    same_outcome(ours, truth)
    same_resume(ours, truth)
