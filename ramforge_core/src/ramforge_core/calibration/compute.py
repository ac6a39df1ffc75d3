"""The speed of a backend on a model, from a sample of its stages. Reads nothing of the file.

The sample is the embedding, one or more of each kind of block, and the head; what one block of a kind takes counts
for all of its kind.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from attrs import asdict, frozen

from ramforge_core import __version__
from ramforge_core.backend import Backend, WeightSpec
from ramforge_core.calibration.disk import now
from ramforge_core.calibration.sample import POOL_BYTES, SAMPLE_BYTES, Sample
from ramforge_core.graph import Embed, Stage, op_weights
from ramforge_core.kv import KVType
from ramforge_core.model import Model
from ramforge_core.residency import ROWS
from ramforge_core.system import waited_s

PREFILL_TOKENS = 64
SHORT, LONG = 128, 2048
"""Positions of the measured tokens: the difference is what attention over a longer text takes."""
_KINDS = 4
"""Kinds of blocks that are measured, the most frequent first; others count by their bytes."""
_MOST_COPIES = 8
"""Of a small block several are run, so that a call's own cost does not count for more than it is."""
_BUSY_SPREAD = 1.5
_BUSY_SHARE = 0.1
"""Passes that differ, or threads that wait for a processor for this share of the time: other work is in the way."""


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
    sample = Sample(
        model.weights,
        [part.stages for part in parts],
        backend,
        pool,
        tokens=min(PREFILL_TOKENS, context),
        positions=min(LONG, context),
        kv_type=kv_type,
        threads=threads,
        clock=clock,
    )
    short = min(SHORT, context) - 1
    tokens = sample.tokens
    began, waited = time.perf_counter(), waited_s()
    decode = sample.times(1, short, 0.4, 24)
    reach = sample.positions - 1
    further = sample.times(1, reach, 0.2, 12) if reach > short else decode
    prefill = sample.times(tokens, 0, 0.5, 6)
    waiting = (waited_s() - waited) / (time.perf_counter() - began)
    at_reach, at_short = _whole(parts, further), _whole(parts, decode)
    return ComputeRate(
        decode_s=at_short,
        position=short,
        attention_s=max(0.0, (at_reach - at_short) / max(reach - short, 1)),
        prefill_s=_whole(parts, prefill),
        prefill_tokens=tokens,
        segment_s=sample.segment_s(sum(decode), short, 0.25, 12),
        date=now(),
        busy=sample.spread > _BUSY_SPREAD or waiting > _BUSY_SHARE,
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
        copies = max(1, min(_MOST_COPIES, count, min(SAMPLE_BYTES, pool) // max(1, nbytes(stage))))
        parts.append(_Part((stage,) * copies, count * scale))
    return [*parts, *(_Part((stage,), 1) for stage in stages if stage.rows == "wanted")]
