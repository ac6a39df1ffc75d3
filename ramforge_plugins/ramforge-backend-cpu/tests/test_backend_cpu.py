"""The backend ``cpu`` against the conformance suite, once for every instruction set of this machine."""

from __future__ import annotations

import pytest

from ramforge_backend_cpu import CpuBackend
from ramforge_backend_cpu.machine import ISA_VARIABLE, instruction_sets
from ramforge_core.testing.backend import BackendTests

HERE = [name for name, is_here in instruction_sets().items() if is_here]


class TestCpuBackend(BackendTests):
    @pytest.fixture(params=HERE)
    def backend(self, request, monkeypatch):
        monkeypatch.setenv(ISA_VARIABLE, request.param)
        return CpuBackend()
