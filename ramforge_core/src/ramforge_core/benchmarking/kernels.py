"""The speed of every quant format's kernels by themselves: one matrix through the backend, at several batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from ramforge_core.backend import WeightSpec
from ramforge_core.benchmarking.spread import Spread, digits
from ramforge_core.calibration.memory import read_rate
from ramforge_core.calibration.sample import POOL_BYTES, Sample
from ramforge_core.errors import ParameterError
from ramforge_core.graph import GraphBuilder, Stage
from ramforge_core.plugins import Registry
from ramforge_core.reports.layout import table
from ramforge_core.system import default_budget, default_threads, process_memory

if TYPE_CHECKING:
    from ramforge_core.backend import Backend
    from ramforge_core.quant import QuantFormat

BATCHES = (1, 2, 4, 8, 16, 64, 256)
ROWS = COLUMNS = 2048
_COPIES = 4
"""Matrices of one run, so that the call itself costs little beside them."""
_SECONDS = 0.1
_MOST_RUNS = 100


@frozen
class KernelRate:
    """One format at one batch size. isa : the instruction set that its kernel is written for.

    weight_bytes_per_s : packed weights, each counted once per run. operations_per_s : a multiplication and an
    addition for every weight and activation row. Both with packing of the activations.
    """

    format: str
    isa: str
    batch: int
    weight_bytes_per_s: float
    operations_per_s: float


@frozen
class KernelBenchmark:
    """All formats that have kernels. memory_bytes_per_s : of the same threads reading memory, between the formats.

    without_kernels : formats that backends decode to float32 first.
    """

    backend: str
    isa: str
    threads: int
    memory_bytes_per_s: Spread | None
    rates: tuple[KernelRate, ...]
    without_kernels: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"rows": ROWS, "columns": COLUMNS}

    def render(self) -> str:
        parts = [
            f"matrices of {ROWS} x {COLUMNS}: {self.backend}, {self.isa}, {self.threads} threads",
            self._table("weights, GB/s", lambda rate: rate.weight_bytes_per_s),
            self._table("operations, GOP/s", lambda rate: rate.operations_per_s),
        ]
        if self.memory_bytes_per_s is not None:
            median, least, most = self.memory_bytes_per_s.cells(1e9)
            parts.append(f"memory alone: {median} GB/s ({least} to {most})")
        if self.without_kernels:
            parts.append(f"without kernels: {', '.join(self.without_kernels)}")
        return "\n\n".join(parts)

    def _table(self, title: str, value: Callable[[KernelRate], float]) -> str:
        of = {(rate.format, rate.batch): rate for rate in self.rates}
        rows = [
            (name, isa, *(digits(value(of[name, batch]) / 1e9) for batch in BATCHES))
            for name, isa in dict.fromkeys((rate.format, rate.isa) for rate in self.rates)
        ]
        return table((title, "kernel", *(f"batch {batch}" for batch in BATCHES)), rows)


def benchmark_kernels(
    *,
    threads: int = 0,
    running: Callable[[float, float], None] | None = None,
    registry: Registry | None = None,
) -> KernelBenchmark:
    """Measure every format that is installed and has kernels, with the best backend of this machine.

    Takes a quarter of the memory that is free, and 128 MiB at most, for weights. running : called with formats done
    and in all. Raises ParameterError, or BackendError if no backend works here.
    """
    if threads < 0:
        raise ParameterError(f"threads is {threads}, expected at least 1, or 0 for the default")
    registry = registry or Registry.discover()
    backend = registry.backend()
    formats = sorted(registry.quant_formats().values(), key=lambda f: f.ggml_type)
    with_kernels = [(f, kernels) for f in formats if (kernels := f.kernels) is not None]
    isa = backend.describe().get("isa", "")
    free = default_budget() - (process_memory().rss or 0)
    pool_bytes = max(POOL_BYTES // 64, min(POOL_BYTES, free // 4))
    rates: list[KernelRate] = []
    memory: list[float] = []
    used = threads or default_threads()
    for done, (quant, kernels) in enumerate(with_kernels):
        if running is not None:
            running(done, len(with_kernels))
        sample = _sample(quant, backend, pool_bytes, threads)
        used = sample.program.threads or used
        memory.append(read_rate([sample.pool], used))
        rates += [_rate(sample, quant, kernels.pick(isa)[0], batch) for batch in BATCHES]
    return KernelBenchmark(
        backend.key,
        isa,
        used,
        Spread.of(memory) if memory else None,
        tuple(rates),
        tuple(f.name for f in formats if f.kernels is None),
    )


def _sample(quant: QuantFormat, backend: Backend, pool_bytes: int, threads: int) -> Sample:
    """A graph around ``_COPIES`` matrices of one format: what goes in, what is timed, what comes out."""
    shapes = {"in": (BATCHES[-1], COLUMNS), "matrix": (ROWS, COLUMNS), "out": (16, ROWS)}
    g = GraphBuilder(shapes)
    with g.stage("in"):
        x = g.embed("in")
    with g.stage("matrix"):
        y = g.linear(x, "matrix")
    with g.stage("out", rows="wanted"):
        g.logits(g.linear(y, "out"))
    first, matrix, last = g.finish().stages
    weights = {name: WeightSpec(name, shape, quant) for name, shape in shapes.items()}
    parts: list[tuple[Stage, ...]] = [(first,), (matrix,) * _COPIES, (last,)]
    return Sample(weights, parts, backend, pool_bytes, BATCHES[-1], BATCHES[-1], threads=threads)


def _rate(sample: Sample, quant: QuantFormat, isa: str, batch: int) -> KernelRate:
    _, seconds, _ = sample.times(batch, 0, _SECONDS, _MOST_RUNS)
    weights = _COPIES * ROWS * COLUMNS
    return KernelRate(quant.name, isa, batch, quant.nbytes(weights) / seconds, 2 * weights * batch / seconds)
