"""Where the time of passes goes: by stage of the model and by kind of work. Only for those who ask for it.

A `Profile` is given to the engine, which lets it `watch` the program: a program of the same results that runs in parts
and looks at the clock between them. Nobody else knows of it, and without it there is nothing to be skipped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ramforge_core.backend import Batch, Control, ExpertRun, Program, WeightSpec
from ramforge_core.graph import Attention, Embed, Graph, HeadLinear, Linear, Moe, Op, Value
from ramforge_core.kv import KVCache
from ramforge_core.stream import StreamStats

Phase = Literal["prefill", "decode"]

OTHER = "norms, rope, activations"


@define
class StageUse:
    """What one stage took. Seconds of wall-clock; stall_s : waiting for the disk to bring its weights."""

    compute_s: float = 0.0
    stall_s: float = 0.0
    streamed_bytes: int = 0


@define
class KindUse:
    """What one kind of work took. weight_bytes : packed weights that were multiplied with."""

    compute_s: float = 0.0
    weight_bytes: int = 0


@define
class PhaseUse:
    """All passes of one phase.

    stages : by name, in the model's order. kinds : by quant format of matrices, ``attention``, ``embedding``,
        ``experts``, `OTHER`.
    """

    passes: int = 0
    stages: dict[str, StageUse] = field(factory=dict)
    kinds: dict[str, KindUse] = field(factory=dict)


@define(eq=False)
class Profile:
    """Times of all passes since the model was opened.

    A pass counts as decode if it has one token and its logits are wanted; so does the last token of a prompt if it is
    alone in its pass.
    stream : counters of the stream, None while all weights are in memory.
    """

    stream: StreamStats | None = field(default=None, init=False)
    phases: dict[Phase, PhaseUse] = field(
        factory=lambda: {"prefill": PhaseUse(), "decode": PhaseUse()}, init=False
    )

    def watch(self, program: Program, graph: Graph, weights: Mapping[str, WeightSpec]) -> Program:
        """The same program, timed. graph, weights : what it was compiled from."""
        for phase in self.phases.values():
            phase.stages.update((stage.name, StageUse()) for stage in graph.stages)
        work = [_work(graph.ops[step.op], weights) for step in program.steps]
        return _Watched(program, self, work)


@frozen
class _Part:
    """Consecutive steps of one stage that do one kind of work."""

    stage: str
    kind: str
    end: int


def _parts(program: Program, kinds: Sequence[str]) -> list[_Part]:
    """By step, the part that it is in."""
    parts: list[_Part] = []
    for i in reversed(range(len(program.steps))):
        stage, kind, last = program.steps[i].stage, kinds[i], parts[-1] if parts else None
        same = last is not None and (last.stage, last.kind) == (stage, kind)
        parts.append(last if last is not None and same else _Part(stage, kind, i + 1))
    return parts[::-1]


def _work(op: Op, weights: Mapping[str, WeightSpec]) -> tuple[str, int]:
    """The kind of work that an op is, and the weight bytes that it multiplies with."""
    if isinstance(op, (Linear, HeadLinear)):
        spec = weights[op.weight]
        return spec.format.name, spec.nbytes
    kinds = {Attention: "attention", Embed: "embedding", Moe: "experts"}
    return kinds.get(type(op), OTHER), 0


class _Watched(Program):
    """A program that runs part by part and writes down what each took."""

    def __init__(self, program: Program, profile: Profile, work: Sequence[tuple[str, int]]) -> None:
        self.steps = program.steps
        self.threads = program.threads
        self._program = program
        self._profile = profile
        self._parts = _parts(program, [kind for kind, _ in work])
        self._weight_bytes = [nbytes for _, nbytes in work]
        self._stage_of = {name: step.stage for step in program.steps for name in step.weights}
        self._waiting: dict[str, int] = {}
        self._stalled = 0.0

    def workspace_bytes(self, n_tokens: int) -> int:
        return self._program.workspace_bytes(n_tokens)

    def bind(self, weights: Mapping[str, NDArray[np.uint8]]) -> None:
        self._program.bind(weights)
        if self._profile.stream is not None:  # what is bound later than at load has just been streamed
            for name, data in weights.items():
                stage = self._stage_of[name]
                self._waiting[stage] = self._waiting.get(stage, 0) + data.nbytes

    def bind_experts(self, weight: str, experts: Mapping[int, NDArray[np.uint8]]) -> None:
        self._program.bind_experts(weight, experts)
        stage = self._stage_of[weight]
        self._waiting[stage] = self._waiting.get(stage, 0) + sum(data.nbytes for data in experts.values())

    def read(self, value: Value) -> NDArray[np.float32]:
        return self._program.read(value)

    def run(
        self,
        batch: Batch,
        caches: Sequence[KVCache],
        logits: NDArray[np.float32],
        control: Control,
        steps: range | None = None,
        experts: ExpertRun | None = None,
    ) -> None:
        steps = range(len(self.steps)) if steps is None else steps
        phase = self._profile.phases["decode" if batch.wanted.size == batch.wanted.sum() == 1 else "prefill"]
        phase.passes += steps.stop == len(self.steps)
        self._account(phase)
        at = steps.start
        while at < steps.stop:
            part = self._parts[at]
            end = min(part.end, steps.stop)
            control.begin(at)
            began = time.perf_counter()
            self._program.run(batch, caches, logits, control, range(at, end), experts)
            took = time.perf_counter() - began
            phase.stages[part.stage].compute_s += took
            kind = phase.kinds.setdefault(part.kind, KindUse())
            kind.compute_s += took
            kind.weight_bytes += sum(self._weight_bytes[at:end])
            at = end

    def _account(self, phase: PhaseUse) -> None:
        """Give the waiting since the last run, and the bytes that came, to the stages whose weights they were."""
        stream = self._profile.stream
        if stream is None or not self._waiting:
            return
        stalled, self._stalled = stream.stall_s - self._stalled, stream.stall_s
        for i, (stage, nbytes) in enumerate(self._waiting.items()):
            use = phase.stages[stage]
            use.streamed_bytes += nbytes
            use.stall_s += 0.0 if i else stalled
        self._waiting.clear()
