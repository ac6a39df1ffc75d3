"""Stages of a graph with zeros for weights, compiled and run through a backend's own contract, and timed.

The weights lie in one pool, one after the other and round again, from pass to pass: so little memory serves a large
model, and a cache that is smaller than the pool never holds what comes next. Time does not depend on the values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, field, fields
from numpy.typing import NDArray

from ramforge_core.allotment import SLOTS
from ramforge_core.backend import Backend, Batch, Control, Limits, Program, WeightSpec
from ramforge_core.datasource import DataSource
from ramforge_core.graph import Attention, Embed, Graph, Linear, Moe, Op, Stage, Value, op_weights
from ramforge_core.kv import KVCache, KVLayout, KVType
from ramforge_core.memory import PAGE, allocate
from ramforge_core.residency import ROWS, Read
from ramforge_core.stream import Stream

POOL_BYTES = 128 << 20
SAMPLE_BYTES = 24 << 20
"""Of a small matrix or block several are run, together about so many bytes."""
_RUNS = 8
"""No weight of the sample takes more of the pool than one part in so many."""
_ALIGNMENT = 64


@define(eq=False)
class Sample:
    """A compiled sample, ready to be timed.

    weights : of the graph that the stages come from. parts : runs of stages whose times are taken.
    tokens : of a pass, at most. positions : that a text may have; fewer where their keys would not fit the pool.
    """

    weights: Mapping[str, WeightSpec]
    parts: Sequence[Sequence[Stage]]
    backend: Backend
    pool_bytes: int
    tokens: int
    positions: int
    kv_type: KVType = "f16"
    threads: int = 0
    clock: Callable[[], float] = time.perf_counter
    program: Program = field(init=False)
    pool: NDArray[np.uint8] = field(init=False)
    _cache: KVCache = field(init=False)
    _ends: list[int] = field(init=False)
    """By part: its last step, and one."""
    _specs: dict[str, WeightSpec] = field(init=False)
    _at: int = field(default=0, init=False)
    """Where in the pool the next weight goes."""
    _bound: dict[str, NDArray[np.uint8]] = field(factory=dict, init=False)
    _vocab: int = field(init=False)
    spread: float = field(default=1.0, init=False)
    """How many times as long as these the middle pass took: well above 1 on a busy machine."""

    def __attrs_post_init__(self) -> None:
        stages = [stage for part in self.parts for stage in part]
        graph, self._specs = assemble(stages, self.weights, self.pool_bytes // _RUNS, self.tokens)
        layout = KVLayout.of(graph.attentions, self.kv_type)
        while self.positions > 256 and self.positions // 256 * layout.chunk_bytes > self.pool_bytes:
            self.positions //= 2
        limits = Limits(self.tokens, 1, max(self.positions, self.tokens), layout, self.threads)
        self.program = self.backend.compile(graph, self._specs, limits)
        self.pool = allocate(max(self.pool_bytes, max(spec.nbytes for spec in self._specs.values())))
        self.pool[:] = 0  # pages that were never written all are one page
        self._cache = KVCache(layout)
        self._cache.reserve(limits.max_context)
        self._vocab = graph.logits.width
        names = [stage.name for stage in graph.stages]
        order = [names.index(step.stage) for step in self.program.steps]
        ends, stage = [], 0
        for part in self.parts:
            stage += len(part)
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
            if self._at + spec.nbytes > len(self.pool):
                self._at = 0
            self._bound[name] = self.pool[self._at : self._at + spec.nbytes]
            self._at += -(-spec.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.program.bind(self._bound)

    def _run(self, tokens: int, start: int) -> list[float]:
        self._move()
        arguments, first, times = self._arguments(tokens, start), 0, []
        for end in self._ends:
            began = self.clock()
            self.program.run(*arguments, range(first, end))
            times.append(self.clock() - began)
            first = end
        return times

    def segment_s(self, whole_s: float, start: int, seconds: float, most: int) -> float:
        """What a pass of one token takes more for each piece that it comes in, as streamed passes do it.

        whole_s : of the pass in few pieces.
        """
        self._move()
        steps = self.program.steps
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
                    self.program.bind({n: self._bound[n] for n in steps[i].weights})
                    self.program.run(*arguments, range(at, i + 1))
                    stream.give_back()
                    at, ended = i + 1, self.clock()
                    least[number], began = min(least[number], ended - began), ended
                if at < len(steps):
                    self.program.run(*arguments, range(at, len(steps)))
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
                elif isinstance(value, str) and value in op_weights(op):
                    changes[f.name] = f"{value}#{copy}"
                    specs.setdefault(f"{value}#{copy}", evolve(weights[value], name=f"{value}#{copy}"))
            if isinstance(op, Attention):
                changes["layer"] = layers
                layers += 1
            op = evolve(op, **changes)
            if isinstance(op, Moe):  # equal scores: the first ones are chosen, so that no other is needed
                op = evolve(op, experts=op.chosen)
                for name in op_weights(op):
                    specs[name] = evolve(specs[name], shape=(op.chosen, *specs[name].shape[1:]))
            ops += _cut(op, specs, longest, tokens)
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
