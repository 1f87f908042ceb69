"""Fixtures of the tests with the real DeepSpeed."""

import pytest

import harness


@pytest.fixture(scope="session")
def venv():
    """DeepSpeed in build/venv; scripts/test has installed it by now."""
    harness.install()


@pytest.fixture(scope="module")
def scene(venv, work):
    return harness.Scene(work)
