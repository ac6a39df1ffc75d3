"""Fixtures of the tests across packages."""

from __future__ import annotations

import sys

import pytest
from fake_plugins import Site


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A place for fake distributions, on ``sys.path`` for the length of a test."""
    site = Site(tmp_path / "site", monkeypatch)
    yield site
    for name in site.modules:
        sys.modules.pop(name, None)
