"""The speed of a backend on a model, from a few of its stages with zeros for weights. Reads nothing of the file.

A sample of the graph (the embedding, one or more of each kind of block, the head) is compiled and run through the
backend's own contract; what one block of a kind takes counts for all of its kind. The weights of the sample lie in
one pool, one after the other and round again, from pass to pass: so little memory serves a large model, and a cache
that is smaller than the pool never holds what comes next. Time does not depend on the values.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from attrs import asdict, define, evolve, field, fields, frozen
from numpy.typing import NDArray

from ramforge_core import __version__
from ramforge_core.allotment import SLOTS
from ramforge_core.backend import Backend, Batch, Control, Limits, Program, WeightSpec
from ramforge_core.calibration.disk import now
from ramforge_core.datasource import DataSource
from ramforge_core.graph import Attention, Embed, Graph, Linear, Op, Stage, Value, op_weights
from ramforge_core.kv import KVCache, KVLayout, KVType
from ramforge_core.memory import allocate
from ramforge_core.model import Model
from ramforge_core.residency import PAGE, ROWS, Read
from ramforge_core.stream import Stream

POOL_BYTES = 128 << 20
_RUNS = 8
"""No weight of the sample takes more of the pool than one part in so many."""
PREFILL_TOKENS = 64
SHORT, LONG = 128, 2048
"""Positions of the measured tokens: the difference is what attention over a longer text takes."""
_KINDS = 4
"""Kinds of blocks that are measured, the most frequent first; others count by their bytes."""
_SAMPLE_BYTES = 24 << 20
_MOST_COPIES = 8
"""Of a small block several are run, so that a call's own cost does not count for more than it is."""
_ALIGNMENT = 64
_BUSY_SPREAD = 1.5


@frozen
class ComputeRate:
    """What passes take with all weights in memory.

    decode_s : a pass of one token at position ``position``. attention_s : more per token for each position beyond.
    prefill_s : a pass of the first ``prefill_tokens`` tokens of a text.
    segment_s : what it costs to run a pass in pieces, for each read that the stream brings.
    busy : other work on the machine disturbed the measurement.
    """

    decode_s: float
    position: int
    attention_s: float
    prefill_s: float
    prefill_tokens: int
    segment_s: float
    date: str
    busy: bool = False

    def pass_s(self, tokens: int, start: int, reads: int = 0) -> float:
        """Seconds of a pass over ``tokens`` tokens from position ``start`` on, in pieces for so many reads."""
        if tokens == 1 or self.prefill_tokens == 1:
            base, seen = tokens * self.decode_s, float(self.position)
        else:
            slope = (self.prefill_s - self.decode_s) / (self.prefill_tokens - 1)
            base, seen = self.decode_s + max(slope, 0.0) * (tokens - 1), self.prefill_tokens / 2
        further = tokens * self.attention_s * (start + (tokens - 1) / 2 - seen)
        return max(base + further, base / 2) + reads * self.segment_s

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> ComputeRate:
        """Raises ValueError, KeyError or TypeError for anything that `to_dict` cannot have written."""
        found = cls(**facts)
        times = (found.decode_s, found.prefill_s, found.prefill_tokens)
        if not all(0 < t < 1e6 for t in times) or not 0 <= found.attention_s < 1e3:
            raise ValueError("a pass must take time")
        if not (0 <= found.segment_s < 1e3 and found.position >= 0 and isinstance(found.date, str)):
            raise ValueError("a piece of a pass must take time")
        return found


def compute_key(model: Model, backend: Backend, kv_type: KVType, threads: int) -> str:
    """What a measurement holds for: the shapes and formats, not the file."""
    kinds = [_kind(stage, model.weights) for stage in model.graph.stages]
    runs = [(kind, len(list(group))) for kind, group in groupby(kinds)]
    facts = (runs, backend.key, sorted(backend.describe().items()), threads, kv_type, __version__)
    data = repr(facts).encode()
    # No cryptography: importing that library takes memory that a run would not have taken.
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}"


def measure_compute(
    model: Model,
    backend: Backend,
    *,
    kv_type: KVType = "f16",
    threads: int = 0,
    free_bytes: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> ComputeRate:
    """Run a sample of the model. Takes a second or two at most with a fast backend, and `POOL_BYTES` of memory.

    Raises BackendError or OutOfMemoryError.
    """
    widest = max(spec.row_bytes for spec in model.weights.values())
    pool = max(min(POOL_BYTES, (free_bytes or POOL_BYTES * 4) // 4), 2 * ROWS * widest)
    context = model.config.context_length
    parts = _parts(model, pool)
    sample = _Sample(
        model, parts, backend, pool, min(PREFILL_TOKENS, context), min(LONG, context), kv_type, threads, clock
    )
    short = min(SHORT, context) - 1
    tokens = sample.tokens
    decode = sample.times(1, short, 0.4, 24)
    reach = sample.positions - 1
    further = sample.times(1, reach, 0.2, 12) if reach > short else decode
    prefill = sample.times(tokens, 0, 0.5, 6)
    at_reach, at_short = _whole(parts, further), _whole(parts, decode)
    return ComputeRate(
        decode_s=at_short,
        position=short,
        attention_s=max(0.0, (at_reach - at_short) / max(reach - short, 1)),
        prefill_s=_whole(parts, prefill),
        prefill_tokens=tokens,
        segment_s=sample.segment_s(sum(decode), short, 0.25, 12),
        date=now(),
        busy=sample.spread > _BUSY_SPREAD,
    )


@frozen
class _Part:
    """A run of stages of the sample whose time is taken; ``count`` times of one of its stages make up the model."""

    stages: tuple[Stage, ...]
    count: float


def _whole(parts: Sequence[_Part], times: Sequence[float]) -> float:
    return sum(t * part.count / len(part.stages) for part, t in zip(parts, times, strict=True))


def _kind(stage: Stage, weights: Mapping[str, WeightSpec]) -> tuple[Any, ...]:
    """What decides how long a stage takes."""
    return tuple(
        (
            type(op).__name__,
            op.out.width,
            *((weights[n].shape, weights[n].format.name) for n in op_weights(op)),
        )
        for op in stage.ops
    )


def _parts(model: Model, pool: int) -> list[_Part]:
    """The embedding, blocks by kind, and the head, in the order of the graph."""
    stages, weights = model.graph.stages, model.weights

    def is_end(stage: Stage) -> bool:
        return stage.rows == "wanted" or any(isinstance(op, Embed) for op in stage.ops)

    def nbytes(stage: Stage) -> int:
        return sum(weights[n].nbytes for op in stage.ops for n in op_weights(op))

    blocks = [stage for stage in stages if not is_end(stage)]
    by_kind = Counter(_kind(stage, weights) for stage in blocks).most_common(_KINDS)
    measured = [(next(s for s in blocks if _kind(s, weights) == kind), count) for kind, count in by_kind]
    # Blocks of rarer kinds: by bytes.
    scale = sum(map(nbytes, blocks)) / max(1, sum(nbytes(stage) * count for stage, count in measured))
    parts = [_Part((stage,), 1) for stage in stages if is_end(stage) and stage.rows != "wanted"]
    for stage, count in measured:
        copies = max(1, min(_MOST_COPIES, count, min(_SAMPLE_BYTES, pool) // max(1, nbytes(stage))))
        parts.append(_Part((stage,) * copies, count * scale))
    return [*parts, *(_Part((stage,), 1) for stage in stages if stage.rows == "wanted")]


@define(eq=False)
class _Sample:
    """A compiled sample with its weights bound, ready to be timed."""

    model: Model
    parts: Sequence[_Part]
    backend: Backend
    pool_bytes: int
    tokens: int
    positions: int
    kv_type: KVType
    threads: int
    clock: Callable[[], float]
    _program: Program = field(init=False)
    _cache: KVCache = field(init=False)
    _ends: list[int] = field(init=False)
    """By part: its last step, and one."""
    _specs: dict[str, WeightSpec] = field(init=False)
    _pool: NDArray[np.uint8] = field(init=False)
    _at: int = field(default=0, init=False)
    """Where in the pool the next weight goes."""
    _bound: dict[str, NDArray[np.uint8]] = field(factory=dict, init=False)
    _vocab: int = field(init=False)
    spread: float = field(default=1.0, init=False)
    """How many times as long as these the middle pass took: well above 1 on a busy machine."""

    def __attrs_post_init__(self) -> None:
        stages = [stage for part in self.parts for stage in part.stages]
        graph, self._specs = assemble(stages, self.model.weights, self.pool_bytes // _RUNS, self.tokens)
        layout = KVLayout.of(graph.attentions, self.kv_type)
        while self.positions > 256 and self.positions // 256 * layout.chunk_bytes > self.pool_bytes:
            self.positions //= 2
        limits = Limits(self.tokens, 1, max(self.positions, self.tokens), layout, self.threads)
        self._program = self.backend.compile(graph, self._specs, limits)
        self._pool = allocate(max(self.pool_bytes, max(spec.nbytes for spec in self._specs.values())))
        self._pool[:] = 0  # pages that were never written all are one page
        self._cache = KVCache(layout)
        self._cache.reserve(limits.max_context)
        self._vocab = graph.logits.width
        names = [stage.name for stage in graph.stages]
        order = [names.index(step.stage) for step in self._program.steps]
        ends, stage = [], 0
        for part in self.parts:
            stage += len(part.stages)
            ends.append(sum(1 for at in order if at < stage))
        self._ends = ends

    def times(self, tokens: int, start: int, seconds: float, most: int) -> list[float]:
        """The lower quartile of each part's times, over passes of about so many seconds; the first does not count."""
        passes = []
        began = self.clock()
        for i in range(most + 1):
            passes.append(self._run(tokens, start))
            if i and self.clock() - began > seconds:
                break
        best = [sorted(times)[len(times) // 4] for times in zip(*passes[1:], strict=True)]
        middle = sorted(map(sum, passes[1:]))[(len(passes) - 1) // 2]
        self.spread = max(self.spread, middle / max(sum(best), 1e-9))
        return best

    def _move(self) -> None:
        """Bind all weights where nothing was read for the longest time."""
        for name, spec in self._specs.items():
            if len(spec.shape) == 1 and spec.format.name == "f32":
                self._bound[name] = np.ones(spec.shape, np.float32).view(np.uint8)  # some divide frequencies
                continue
            if self._at + spec.nbytes > len(self._pool):
                self._at = 0
            self._bound[name] = self._pool[self._at : self._at + spec.nbytes]
            self._at += -(-spec.nbytes // _ALIGNMENT) * _ALIGNMENT
        self._program.bind(self._bound)

    def _run(self, tokens: int, start: int) -> list[float]:
        self._move()
        arguments, first, times = self._arguments(tokens, start), 0, []
        for end in self._ends:
            began = self.clock()
            self._program.run(*arguments, range(first, end))
            times.append(self.clock() - began)
            first = end
        return times

    def segment_s(self, whole_s: float, start: int, seconds: float, most: int) -> float:
        """What a pass of one token takes more for each piece that it comes in, as streamed passes do it.

        whole_s : of the pass in few pieces.
        """
        self._move()
        steps = self._program.steps
        pieces = [i for i, step in enumerate(steps) if any(len(self._bound[n]) > PAGE for n in step.weights)]
        reads = [Read(0, 0, PAGE, (("", 0, PAGE),), 0)] * len(pieces)
        if not pieces:
            return 0.0
        arguments = self._arguments(1, start)
        stream = Stream(_Nothing(()), reads, allocate(SLOTS * PAGE), SLOTS)
        least = [float("inf")] * (len(pieces) + 1)
        started = self.clock()
        try:
            for repeat in range(most):
                self._move()
                began, at = self.clock(), 0
                stream.begin()
                for number, i in enumerate(pieces):
                    stream.take()
                    self._program.bind({n: self._bound[n] for n in steps[i].weights})
                    self._program.run(*arguments, range(at, i + 1))
                    stream.give_back()
                    at, ended = i + 1, self.clock()
                    least[number], began = min(least[number], ended - began), ended
                if at < len(steps):
                    self._program.run(*arguments, range(at, len(steps)))
                least[-1] = min(least[-1], self.clock() - began)
                if repeat and self.clock() - started > seconds:
                    break
        finally:
            stream.close()
        return max(0.0, (sum(least) - whole_s) / len(pieces))

    def _arguments(
        self, tokens: int, start: int
    ) -> tuple[Batch, list[KVCache], NDArray[np.float32], Control]:
        wanted = np.zeros(tokens, np.bool_)
        wanted[-1] = True
        batch = Batch(
            np.arange(tokens, dtype=np.int32),
            np.arange(start, start + tokens, dtype=np.int32),
            np.zeros(tokens, np.int32),
            wanted,
        )
        return batch, [self._cache], np.empty((1, self._vocab), np.float32), Control()


class _Nothing(DataSource):
    """A source that has everything at once."""

    def read_window(self, read: Read, out: NDArray[np.uint8]) -> None:
        """Leave it as it is."""


def assemble(
    stages: Sequence[Stage], weights: Mapping[str, WeightSpec], longest: int, tokens: int
) -> tuple[Graph, dict[str, WeightSpec]]:
    """A graph of its own out of stages of another one, each perhaps several times.

    What a stage reads of a stage that is left out becomes the latest value of that width. Every use of a weight is a
    weight of its own. longest : bytes; matrices that are larger are cut into runs of rows. tokens : rows of the
    embedding that are kept.
    """
    specs: dict[str, WeightSpec] = {}
    out: list[Stage] = []
    latest: dict[int, Value] = {}
    count = layers = 0
    for copy, stage in enumerate(stages):
        entry, renamed, ops = dict(latest), dict[Value, Value](), list[Op]()
        for op in stage.ops:
            changes: dict[str, Any] = {}
            for f in fields(type(op)):
                value = getattr(op, f.name)
                if f.name == "out":
                    count += 1
                    renamed[value] = changes["out"] = Value(f"s{count}", value.width)
                elif isinstance(value, Value):
                    changes[f.name] = renamed.get(value) or entry[value.width]
                elif f.name in ("weight", "bias", "factors", "sinks") and value is not None:
                    changes[f.name] = f"{value}#{copy}"
                    specs.setdefault(f"{value}#{copy}", evolve(weights[value], name=f"{value}#{copy}"))
            if isinstance(op, Attention):
                changes["layer"] = layers
                layers += 1
            ops += _cut(evolve(op, **changes), specs, longest, tokens)
        latest.update({op.out.width: op.out for op in ops})
        out.append(Stage(f"{copy}", tuple(ops), stage.rows))
    return Graph(tuple(out), out[-1].ops[-1].out), specs


def _cut(op: Op, specs: dict[str, WeightSpec], longest: int, tokens: int) -> list[Op]:
    """The op, its matrix in as many runs of rows as needed."""
    if isinstance(op, Embed):
        specs[op.weight] = evolve(specs[op.weight], shape=(tokens, specs[op.weight].shape[1]))
    if not isinstance(op, Linear) or specs[op.weight].nbytes <= longest:
        return [op]
    spec = specs.pop(op.weight)
    rows = max(ROWS, longest // spec.row_bytes // ROWS * ROWS)
    out: list[Op] = []
    for first in range(0, spec.shape[0], rows):
        name = f"{op.weight}[{first}]"
        specs[name] = evolve(spec, name=name, shape=(min(rows, spec.shape[0] - first), spec.shape[1]))
        out.append(evolve(op, weight=name, start=first))
    return out
