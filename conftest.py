"""Fixtures for every test of the workspace."""

from __future__ import annotations

import os
from pathlib import Path

# BLAS threads wait for each other by spinning, which on a busy machine makes the numpy backend many times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of fixtures and goldens beside the repository; skips where it is absent."""
    folder = Path(__file__).resolve().parent.parent / "shared"
    if not (folder / "golden").is_dir():
        pytest.skip("the folder ../shared with fixtures and golden vectors is not there")
    return folder
