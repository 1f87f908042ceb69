"""Fixtures of the tests with real groups of ranks (torch.distributed, gloo)."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "deepspeed"))

import harness


@pytest.fixture(scope="session")
def venv():
    """torch in build/venv; scripts/test has installed it by now."""
    harness.install()
