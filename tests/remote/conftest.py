import pytest

from seaweed import seaweed


@pytest.fixture(scope="module")
def server(work):
    """A running SeaweedFS."""
    folder = work / "seaweed"
    folder.mkdir()
    with seaweed(folder) as made:
        yield made
