"""DeepSpeed on the mount under other conditions: a reader, a real NVMe's alignment, 4 KiB sectors, pipelining."""

import pytest

from harness import Ckptfs, Tmpfs, equal, judge_as_plain_xfs, same_outcome, true

pytestmark = [pytest.mark.builds("venv"), pytest.mark.long, pytest.mark.timeout(2400), pytest.mark.together]


def test_with_reader(scene, mode):
    judge_as_plain_xfs(scene, Ckptfs(mode=mode), 1, reader=True)


def test_odd_with_reader(scene, mode):
    """Unaligned reads through the daemon while the same files are open in passthrough."""
    ours = scene.run(Ckptfs(mode=mode), shape="odd", reader=True, resume=False)
    same_outcome(ours, scene.reference(Tmpfs(), shape="odd", ranks=1))


@pytest.mark.builds("faults")
def test_nvme_alignment(scene):
    """A device that takes any memory aligned to 4 bytes: O_DIRECT goes to it by passthrough, with nothing between."""
    ours = judge_as_plain_xfs(scene, Ckptfs(faults="dioalign=4:512"), 1)
    equal(ours.status["alignment"]["memory"], 4, "the memory alignment that the mount sees")
    true(not ours.status["alignment"]["harmful"], "the mount still holds this alignment for harmful")


@pytest.mark.parametrize("shape", ("aligned", "odd"))
def test_sectors_of_4k(scene, mode, shape):
    """DeepSpeed's lengths are multiples of 1 KiB, which such a device refuses; plain XFS with 512 or tmpfs is the truth."""
    backend = Ckptfs(mode=mode, sector=4096)
    if shape == "aligned":
        judge_as_plain_xfs(scene, backend, 1)
    else:
        same_outcome(scene.run(backend, shape=shape, resume=False), scene.reference(Tmpfs(), shape=shape, ranks=1))


def test_pipelined(scene, mode):
    """Reads and writes of the optimizer overlap. Its optim_states.pt holds recycled buffers, so only tensors count."""
    ours = scene.run(Ckptfs(mode=mode), shape="odd", pipeline=True, resume=False)
    same_outcome(ours, scene.reference(Tmpfs(), shape="odd", ranks=1))
