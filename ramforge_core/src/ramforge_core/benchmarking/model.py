"""The speed of a model as it runs here: load, prompt, answer, and how near that is to what memory and disk allow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attrs import asdict, define, field, frozen

from ramforge_core import api
from ramforge_core.benchmarking.spread import Spread, digits
from ramforge_core.calibration import calibrate_disk
from ramforge_core.calibration.memory import read_rate
from ramforge_core.errors import ParameterError
from ramforge_core.graph import Embed, Moe, op_weights
from ramforge_core.reports.layout import pairs, seconds, table
from ramforge_core.sizes import format_size
from ramforge_core.system import default_threads, process_memory

if TYPE_CHECKING:
    from ramforge_core.calibration import CalibrationStore
    from ramforge_core.engine import Engine
    from ramforge_core.model import Model
    from ramforge_core.plugins import Registry

Progress = Callable[[float, float], None]

_LEAST_BYTES = 64 << 20
"""Pinned weights below this may all be in a processor's cache, which is no measure of memory."""


@frozen
class DiskUse:
    """What decode passes got of the disk, in bytes per second of their whole time.

    calibrated_bytes_per_s : of cold reads alone, measured after the passes; None if that failed.
    """

    bytes_per_s: Spread
    calibrated_bytes_per_s: float | None

    @property
    def share(self) -> float | None:
        rate = self.calibrated_bytes_per_s
        return self.bytes_per_s.median / rate if rate else None


@frozen
class ModelBenchmark:
    """One model on this machine. Sizes in bytes, times in seconds, tokens per second of passes without sampling.

    first_token_s : from the prompt to its last logits in the first pass after load, which is no repetition.
    weight_bytes_per_token : what a pass of one token multiplies with. streamed_bytes : of these, read from disk.
    memory_bytes_per_s : of the same threads reading the pinned weights and doing nothing with them; None where
        these are too few to tell memory from a cache.
    disk : None where nothing is streamed. peak_bytes : resident, at most; None where the system does not say.
    """

    model: str
    backend: str
    isa: str
    threads: int | None
    prompt_tokens: int
    gen_tokens: int
    repetitions: int
    load_s: float
    first_token_s: float
    prefill_tokens_per_s: Spread
    decode_tokens_per_s: Spread
    weight_bytes_per_token: int
    streamed_bytes: int
    memory_bytes_per_s: Spread | None
    disk: DiskUse | None
    budget_bytes: int | None
    peak_bytes: int | None

    @property
    def weight_bytes_per_s(self) -> float:
        """Of decode."""
        return self.decode_tokens_per_s.median * self.weight_bytes_per_token

    @property
    def memory_share(self) -> float | None:
        memory = self.memory_bytes_per_s
        return None if memory is None else self.weight_bytes_per_s / memory.median

    def to_dict(self) -> dict[str, Any]:
        facts = asdict(self)
        facts["weight_bytes_per_s"] = self.weight_bytes_per_s
        facts["memory_share"] = self.memory_share
        if self.disk is not None:
            facts["disk"]["share"] = self.disk.share
        return facts

    def render(self) -> str:
        how = f"{self.backend}, {self.isa}" + (f", {self.threads} threads" if self.threads else "")
        rows = [
            (f"prefill of {self.prompt_tokens}, tokens/s", *self.prefill_tokens_per_s.cells()),
            (f"decode of {self.gen_tokens}, tokens/s", *self.decode_tokens_per_s.cells()),
        ]
        if self.memory_bytes_per_s is not None:
            rows.append(("memory, GB/s", *self.memory_bytes_per_s.cells(1e9)))
        if self.disk is not None:
            rows.append(("disk in decode, GB/s", *self.disk.bytes_per_s.cells(1e9)))
        head = (f"{self.repetitions} repetitions", "median", "min", "max")
        return "\n".join([f"{self.model}: {how}", table(head, rows), pairs(self._facts())])

    def _facts(self) -> list[tuple[str, str]]:
        weights = f"{format_size(self.weight_bytes_per_token)} per token, {digits(self.weight_bytes_per_s / 1e9)} GB/s"
        if self.memory_share is not None:
            weights += f", {self.memory_share:.0%} of what memory gives"
        rows = [("load", seconds(self.load_s)), ("first token", f"{seconds(self.first_token_s)} after load")]
        rows.append(("weights", weights))
        if self.disk is not None:
            streamed = f"{format_size(self.streamed_bytes)} of them from disk"
            if self.disk.calibrated_bytes_per_s and self.disk.share is not None:
                rate = digits(self.disk.calibrated_bytes_per_s / 1e9)
                streamed += f", {self.disk.share:.0%} of the {rate} GB/s that it gives"
            rows.append(("streamed", streamed))
        peak = "unknown" if self.peak_bytes is None else format_size(self.peak_bytes)
        if self.budget_bytes is not None:
            peak += f", budget {format_size(self.budget_bytes)}"
        return [*rows, ("peak memory", peak)]


def benchmark_model(
    model: str | os.PathLike[str],
    *,
    prompt: int = 128,
    gen: int = 32,
    repeat: int = 5,
    threads: int = 0,
    ram: str | int | None = None,
    loading: Callable[[int, int], None] | None = None,
    running: Progress | None = None,
    registry: Registry | None = None,
    store: CalibrationStore | None = None,
) -> ModelBenchmark:
    """Open a model and let it read ``prompt`` tokens and make ``gen`` more, ``repeat`` times and once before.

    threads, ram, registry : as in `ramforge_core.open`. loading : called with weight bytes read and in all.
    running : with tokens done and in all.
    Raises ParameterError for a count below 1 or more tokens than the model can have, and what opening raises.
    """
    for name, count in {"prompt": prompt, "gen": gen, "repeat": repeat}.items():
        if count < 1:
            raise ParameterError(f"{name} is {count}, expected at least 1")
    opened = api.open(model, ctx=prompt + gen, threads=threads, ram=ram, progress=loading, registry=registry)
    with opened as m:
        rounds = _Rounds(m.engine, prompt, gen, repeat + 1, running)
        first_token_s = rounds.first()
        for _ in range(repeat):
            rounds.next()
        peak = process_memory().peak_rss
        budget, gguf, streamed = m.engine.budget.limit, m.engine.model.gguf, m.engine.streamed is not None
    disk = None
    if streamed:
        free = None if budget is None else budget - (process_memory().rss or 0)
        rate = calibrate_disk(gguf, free, anew=True, store=store)
        disk = DiskUse(Spread.of(rounds.disk), None if rate is None else rate.bytes_per_s)
    return ModelBenchmark(
        model=os.fspath(model),
        backend=m.stats.backend,
        isa=m.stats.isa,
        threads=m.stats.threads,
        prompt_tokens=prompt,
        gen_tokens=gen,
        repetitions=repeat,
        load_s=m.stats.load_s,
        first_token_s=first_token_s,
        prefill_tokens_per_s=Spread.of(rounds.prefill),
        decode_tokens_per_s=Spread.of(rounds.decode),
        weight_bytes_per_token=weight_bytes_per_token(m.engine.model),
        streamed_bytes=m.engine.allotment.residency.streamed_bytes,
        memory_bytes_per_s=Spread.of(rounds.memory) if rounds.memory else None,
        disk=disk,
        budget_bytes=budget,
        peak_bytes=peak,
    )


@define
class _Rounds:
    """Rounds of memory, prompt and answer, so that what disturbs one disturbs all. Rates per second, by round."""

    engine: Engine
    prompt: int
    gen: int
    total: int
    progress: Progress | None
    memory: list[float] = field(factory=list)
    prefill: list[float] = field(factory=list)
    decode: list[float] = field(factory=list)
    disk: list[float] = field(factory=list)
    _done: int = 0

    def first(self) -> float:
        """A round that warms caches and threads; returns the seconds of its prompt."""
        return self._round()[0]

    def next(self) -> None:
        engine = self.engine
        if engine.allotment.residency.pinned_bytes >= _LEAST_BYTES:
            threads = engine.program.threads or default_threads()
            self.memory.append(read_rate(engine.pinned.values(), threads))
        prompt_s, decode_s, read_bytes = self._round()
        self.prefill.append(self.prompt / prompt_s)
        self.decode.append(self.gen / decode_s)
        self.disk.append(read_bytes / decode_s)

    def _round(self) -> tuple[float, float, int]:
        """Seconds of prompt and of answer, and what the answer read from disk."""
        engine, cache = self.engine, self.engine.cache()
        vocab = engine.model.graph.logits.width
        ids = [(i + 1) * 7919 % vocab for i in range(self.prompt + self.gen)]
        try:
            began = time.perf_counter()
            engine.prefill(ids[: self.prompt], cache, progress=lambda done, _: self._tell(done))
            prompt_s = time.perf_counter() - began
            reads, decode_s = engine.reads, 0.0
            for at in range(self.prompt, len(ids)):
                began = time.perf_counter()
                engine.run(ids[at : at + 1], at, cache, [True])
                decode_s += time.perf_counter() - began
                self._tell(at + 1)
            self._done += len(ids)
            return prompt_s, decode_s, engine.reads.since(reads).read_bytes
        finally:
            cache.truncate(0)

    def _tell(self, tokens: float) -> None:
        if self.progress is not None:
            self.progress(self._done + tokens, self.total * (self.prompt + self.gen))


def weight_bytes_per_token(model: Model) -> int:
    """What one token multiplies with: of embeddings its row, of experts those that it chooses, else everything."""
    used: dict[str, int] = {}
    for op in model.graph.ops:
        for name in op_weights(op):
            spec = model.weights[name]
            if isinstance(op, Embed):
                nbytes = spec.row_bytes
            elif isinstance(op, Moe):
                nbytes = spec.nbytes // op.experts * op.chosen
            else:
                nbytes = spec.nbytes
            # Where embeddings are tied, the head reads what a lookup takes a row of.
            used[name] = max(nbytes, used.get(name, 0))
    return sum(used.values())
