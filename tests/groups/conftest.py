"""Fixtures of the tests with real groups of ranks (torch.distributed, gloo)."""

import pytest

import harness


@pytest.fixture(scope="session")
def venv():
    """torch in build/venv; scripts/test has installed it by now."""
    harness.install()
