"""The backend ``numpy``: the readable float32 definition of every graph op."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_backend_numpy.program import NumpyBackend
from ramforge_core.backend import Backend
from ramforge_core.hookspecs import hookimpl

__all__ = ["NumpyBackend", "ramforge_backends"]


@hookimpl
def ramforge_backends() -> Sequence[Backend]:
    return [NumpyBackend()]
