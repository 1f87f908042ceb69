"""A run goes on on other nodes: both stores are gone, and each node fetches what the other one had."""

import contextlib
import json

import pytest

from checking import equal
from mounting import GIB, Store, mounted, xfs
from test_trainers import PER_NODE, QUIET, RANKS, Remote, files_in, train, wait_for_commits

pytestmark = [pytest.mark.long, pytest.mark.builds("venv"), pytest.mark.mode("passthrough"),
              pytest.mark.timeout(900)]

SLOTS = RANKS // PER_NODE
BEFORE, AFTER = 2, 4


@contextlib.contextmanager
def two_nodes(scratch, remote, slots, name, *words):
    """The mounts of two nodes with new stores, in the order of the slots that they are. `words`: more for `remote add`."""
    with contextlib.ExitStack() as stack:
        mounts = {}
        for node, slot in enumerate(slots):
            disk = stack.enter_context(xfs(scratch, name=f"{name}-disk{node}", size=4 * GIB))
            mount = stack.enter_context(mounted(Store(disk / "store"), scratch / f"node{node}", mode="passthrough",
                                                options=QUIET))
            remote.ckptfs("remote", "add", remote.url, mount.path / "steps", "--slot", f"{slot}/{SLOTS}", *words)
            mounts[slot] = mount
        yield [mounts[slot] for slot in range(SLOTS)]


def train_on(nodes, scratch, name, *words):
    folders = ",".join(str(mount.path) for mount in nodes)
    return train(scratch, name, "zero3", "--folders", folders, *words)


@pytest.fixture
def remote(scratch):
    (scratch / "remote").mkdir()
    return Remote(f"file://{scratch}/remote")


def test_deepspeed_goes_on_on_other_nodes(scratch, remote):
    """ZeRO-3 on NVMe with node-local storage. The nodes are swapped, and the run is as if it had never stopped."""
    tag = f"global_step{BEFORE}"
    with two_nodes(scratch, remote, (0, 1), "first") as nodes:
        for mount in nodes:  # so that of this run, which is also what the other one is compared with, one step is there
            remote.ckptfs("policy", mount.path / "steps", "--set", "push=manual")
        whole = train_on(nodes, scratch, "whole", "--steps", AFTER)
        for mount in nodes:
            remote.ckptfs("push", mount.path / "steps" / tag)
        wait_for_commits(nodes, [tag])
        before = [files_in(mount.path / "steps" / tag) for mount in nodes]
    with two_nodes(scratch, remote, (1, 0), "second", "--take-over") as nodes:
        equal(remote.ckptfs("remote", "latest", remote.url).strip(), tag, "the newest step")
        for slot, mount in enumerate(nodes):
            said = json.loads(remote.ckptfs("fetch", "--json", "--slot", slot, tag, mount.path / "steps"))
            equal((said["name"], said["was_there"]), (tag, False), "what fetch says")
            equal(files_in(mount.path / "steps" / tag), before[slot], f"what slot {slot} had")
        resumed = train_on(nodes, scratch, "resumed", "--resume", tag, "--steps", AFTER)
        for rank, (got, wanted) in enumerate(zip(resumed, whole, strict=True)):
            equal(sorted(got), [f"global_step{step}" for step in range(BEFORE, AFTER + 1)], f"steps of rank {rank}")
            for step, state in got.items():
                equal(state, wanted[step], f"rank {rank} at {step}")
        tags = [f"global_step{step}" for step in range(BEFORE, AFTER + 1)]
        wait_for_commits(nodes, tags)
        equal(sorted(remote.steps()), tags, "each step once: what was fetched is not committed again")
