"""One answer: the loop of pass, draw and text."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from attrs import asdict, define, field
from numpy.typing import NDArray

from ramforge_core.answer import Answer, FinishReason
from ramforge_core.engine import Engine
from ramforge_core.sampling import Sampler
from ramforge_core.sequence import KeptSequence
from ramforge_core.stream import StreamStats


@define
class GenerationStats:
    """Times and counts of one answer. Seconds are wall-clock; first_token_s counts from the start of the prefill.

    prompt_tokens : of the prompt, those that were run; reused_tokens : those that a kept sequence held already.
    sampling_s : drawing tokens. callback_s : what whoever takes the text did between two pieces of it.
    prompt_reads, decode_reads : what passes read from disk meanwhile. token_s : of each decode pass with its draw.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prompt_s: float = 0.0
    generated_tokens: int = 0
    decode_passes: int = 0
    decode_s: float = 0.0
    first_token_s: float = 0.0
    sampling_s: float = 0.0
    callback_s: float = 0.0
    prompt_reads: StreamStats = field(factory=StreamStats)
    decode_reads: StreamStats = field(factory=StreamStats)
    token_s: array[float] = field(factory=lambda: array("d"), repr=False)

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.prompt_tokens / self.prompt_s if self.prompt_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Passes of one token by the time that they and the draws after them took."""
        return self.decode_passes / self.decode_s if self.decode_s else 0.0

    def latencies_s(self) -> dict[str, float]:
        """Percentiles of ``token_s``, by nearest rank; empty without a decode pass."""
        if not self.token_s:
            return {}
        # Not by NumPy, whose percentile imports 7 MiB that no budget knows of.
        ordered, shares = sorted(self.token_s), {"p50": 50, "p90": 90, "p99": 99, "max": 100}
        return {name: ordered[-(-len(ordered) * share // 100) - 1] for name, share in shares.items()}

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self, filter=lambda attribute, _: attribute.name != "token_s"),
            "token_latency_s": self.latencies_s(),
            "prompt_tokens_per_s": self.prompt_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
        }


@define(eq=False)
class Generation:
    """An answer being made: iterate over it for pieces of text.

    prompt_ids : what the model read. seed : of the sampler, to have the same answer again.
    kept : a sequence to go on from, which keeps what this answer adds; None begins anew and keeps nothing.
    """

    engine: Engine
    prompt_ids: Sequence[int]
    sampler: Sampler
    answer: Answer
    progress: Callable[[float, int], None] | None = None
    kept: KeptSequence | None = None
    stats: GenerationStats = field(factory=GenerationStats, init=False)
    _pieces: Iterator[str] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._pieces = self._run()

    @property
    def ids(self) -> list[int]:
        """Tokens drawn so far, without the one that ended the answer."""
        return self.answer.ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """None while it goes on; see `Answer`."""
        return self.answer.finish_reason

    @property
    def seed(self) -> int:
        return self.sampler.seed

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def text(self) -> str:
        """Run to the end and return all text that was not yet taken."""
        return "".join(self)

    def _run(self) -> Iterator[str]:
        if self.answer.finish_reason is not None:
            return
        sequence = self.kept or KeptSequence(self.engine.cache())
        try:
            yield from self._draw(sequence)
        finally:
            if self.kept is None:
                sequence.close()

    def _draw(self, sequence: KeptSequence) -> Iterator[str]:
        stats, history = self.stats, list(self.prompt_ids)
        reads, began = self.engine.reads, time.perf_counter()
        sequence.cut(sequence.common(history))
        stats.reused_tokens = len(sequence.ids)
        new = history[stats.reused_tokens :]
        logits = self.engine.prefill(new, sequence.cache, stats.reused_tokens, progress=self.progress)
        sequence.ids += new
        stats.prompt_tokens, stats.prompt_s = len(new), time.perf_counter() - began
        stats.prompt_reads = self.engine.reads.since(reads)
        token = self._sample(logits, history)
        stats.first_token_s = time.perf_counter() - began
        reads = self.engine.reads
        try:
            yield from self._decode(token, history, sequence)
        finally:
            stats.decode_reads = self.engine.reads.since(reads)

    def _decode(self, token: int, history: list[int], sequence: KeptSequence) -> Iterator[str]:
        """Pieces from the first token on, which is drawn already. No pass is run after the last wanted token."""
        stats = self.stats
        while True:
            given = time.perf_counter()
            piece = self.answer.accept(token)
            stats.generated_tokens = len(self.answer.ids)
            if piece:
                yield piece
            stats.callback_s += time.perf_counter() - given
            if self.answer.finish_reason is not None:
                return
            history.append(token)
            began = time.perf_counter()
            logits = self.engine.run([token], len(history) - 1, sequence.cache, [True])[0]
            sequence.ids.append(token)
            token = self._sample(logits, history)
            took = time.perf_counter() - began
            stats.decode_passes += 1
            stats.decode_s += took
            stats.token_s.append(took)

    def _sample(self, logits: NDArray[np.float32], history: Sequence[int]) -> int:
        began = time.perf_counter()
        token = self.sampler(logits, history)
        self.stats.sampling_s += time.perf_counter() - began
        return token
