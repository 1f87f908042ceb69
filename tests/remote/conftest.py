import pytest

from mounting import xfs
from seaweed import seaweed


@pytest.fixture(scope="module")
def server(work):
    """A running SeaweedFS."""
    folder = work / "seaweed"
    folder.mkdir()
    with seaweed(folder) as made:
        yield made


@pytest.fixture
def fresh_disk(work):
    """A file system of the test's own."""
    with xfs(work, name="fresh") as made:
        yield made


@pytest.fixture
def folder(scratch):
    """A new folder for a remote."""
    made = scratch / "remote"
    made.mkdir()
    return made
