"""Fixtures for every test of the workspace."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of fixtures and goldens beside the repository; skips where it is absent."""
    folder = Path(__file__).resolve().parent.parent / "shared"
    if not (folder / "golden").is_dir():
        pytest.skip("the folder ../shared with fixtures and golden vectors is not there")
    return folder
