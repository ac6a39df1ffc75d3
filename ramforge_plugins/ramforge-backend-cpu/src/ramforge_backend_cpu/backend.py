"""The backend ``cpu``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ramforge_backend_cpu.machine import chosen_isa, chosen_threads, load_native
from ramforge_backend_cpu.program import CpuProgram
from ramforge_core.backend import Backend, Limits, Program, WeightSpec
from ramforge_core.errors import BackendError
from ramforge_core.graph import Graph


class CpuBackend(Backend):
    key = "cpu"
    priority: ClassVar[int] = 10
    graph_version: ClassVar[int] = 2

    def available(self) -> str | None:
        loaded = load_native()
        return loaded if isinstance(loaded, str) else None

    def describe(self) -> Mapping[str, str]:
        try:
            isa = chosen_isa()
        except BackendError as error:
            isa = f"none: {error}"
        return {"isa": isa, "threads": str(chosen_threads(0))}

    def compile(self, graph: Graph, weights: Mapping[str, WeightSpec], limits: Limits) -> Program:
        return CpuProgram(graph, dict(weights), limits, chosen_isa(), chosen_threads(limits.threads))
