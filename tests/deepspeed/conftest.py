"""Fixtures of the tests with the real DeepSpeed."""

import pytest

import harness


@pytest.fixture(scope="module")
def scene(venv, work):
    return harness.Scene(work)
