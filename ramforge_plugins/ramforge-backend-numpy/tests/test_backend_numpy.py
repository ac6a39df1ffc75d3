"""The backend ``numpy`` against the conformance suite."""

from __future__ import annotations

import pytest

from ramforge_backend_numpy import NumpyBackend
from ramforge_core.testing.backend import BackendTests


class TestNumpyBackend(BackendTests):
    @pytest.fixture
    def backend(self):
        return NumpyBackend()
