"""``/status``: what the page shows of the model, its memory and its speed; what Prometheus wants is in `metrics`."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

from attrs import define, field, frozen
from fastapi import APIRouter

from ramforge_core.system import process_memory
from ramforge_serve.service import Service

SHORT_S, LONG_S = 3.0, 60.0
"""Rates are of the last few seconds, or of as much more as it takes to see a few passes."""
_PASSES = 4
_APART_S = 0.25
"""Samples are kept no closer than this, however often somebody asks."""


@frozen
class Sample:
    """Counters at a moment, in seconds of the monotonic clock."""

    at: float
    passes: int
    tokens: int
    drawn: int
    read_bytes: int


@define
class Recent:
    """Samples since the last moment at which nothing ran, the oldest first: at most a minute of them."""

    samples: deque[Sample] = field(factory=deque, init=False)

    def rates(self, now: Sample, busy: bool) -> dict[str, float | None]:
        """Per second, by name; None while there is nothing to compare ``now`` with."""
        if not busy:
            self.samples = deque([now])
            return {"tokens_per_s": 0.0, "prompt_tokens_per_s": 0.0, "read_bytes_per_s": 0.0}
        while self.samples and now.at - self.samples[0].at > LONG_S:
            self.samples.popleft()
        enough = (s for s in reversed(self.samples) if self._is_enough(s, now))
        then = next(enough, self.samples[0] if self.samples else now)
        if not self.samples or now.at - self.samples[-1].at >= _APART_S:
            self.samples.append(now)
        seconds = now.at - then.at
        drawn = now.drawn - then.drawn
        prompt = max(0, now.tokens - then.tokens - drawn)
        counts = {
            "tokens_per_s": drawn,
            "prompt_tokens_per_s": prompt,
            "read_bytes_per_s": now.read_bytes - then.read_bytes,
        }
        return {name: n / seconds if seconds > 0 else None for name, n in counts.items()}

    @staticmethod
    def _is_enough(then: Sample, now: Sample) -> bool:
        return now.at - then.at >= SHORT_S and now.passes - then.passes >= _PASSES


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    recent = Recent()
    facts = _facts(service)

    @routes.get("/status")
    async def status() -> dict[str, Any]:
        engine, load = service.model.engine, service.scheduler.load
        reads, budget = engine.reads, engine.budget
        now = Sample(
            time.monotonic(), load.passes, load.tokens, load.drawn, reads.read_bytes + reads.row_bytes
        )
        return {
            **facts,
            "memory": {
                "budget_bytes": budget.limit,
                "used_bytes": budget.used,
                "by_tag": {tag: use.bytes for tag, use in budget.by_tag().items() if use.bytes},
                "resident_bytes": process_memory().rss,
            },
            "requests": {
                "active": load.active,
                "waiting": load.waiting,
                "parallel": service.scheduler.sequences,
            },
            "pass_done": engine.pass_done if load.active else None,
            **recent.rates(now, busy=load.active > 0),
        }

    return routes


def _facts(service: Service) -> dict[str, Any]:
    """What does not change. quantization : types of the weights, the one with most bytes first."""
    engine = service.model.engine
    types: Counter[str] = Counter()
    parameters = 0
    for info in engine.model.gguf.tensors.values():
        types[info.type_name] += info.nbytes or 0
        parameters += info.n_values
    matrices = [name for name, _ in types.most_common() if name != "f32" or len(types) == 1]
    return {
        "model": service.name,
        "architecture": engine.model.architecture.key,
        "parameters": parameters,
        "quantization": matrices,
        "weight_bytes": sum(types.values()),
        "pinned_bytes": engine.allotment.residency.pinned_bytes,
        "streamed_bytes": engine.allotment.residency.streamed_bytes,
        "context": engine.context,
        "chat": service.model.template is not None,
    }
