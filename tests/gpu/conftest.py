"""Fixtures of the tests of libckptfs that need torch."""

import pytest

import harness


@pytest.fixture(scope="session")
def venv():
    """torch in build/venv; scripts/test has installed it by now."""
    harness.install()
