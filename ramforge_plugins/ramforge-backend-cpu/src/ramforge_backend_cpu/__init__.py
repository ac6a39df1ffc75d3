"""The backend ``cpu``: compiled C with its own threads, the default."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_backend_cpu.backend import CpuBackend
from ramforge_core.backend import Backend
from ramforge_core.hookspecs import hookimpl

__all__ = ["CpuBackend", "ramforge_backends"]


@hookimpl
def ramforge_backends() -> Sequence[Backend]:
    return [CpuBackend()]
