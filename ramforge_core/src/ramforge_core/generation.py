"""One answer: the loop of pass, draw and text, with every way that it can end."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, Literal

import numpy as np
from attrs import asdict, define, field
from numpy.typing import NDArray

from ramforge_core.engine import Engine
from ramforge_core.errors import ParameterError
from ramforge_core.kv import KVCache
from ramforge_core.sampling import Sampler
from ramforge_core.stops import StopMatcher
from ramforge_core.stream import StreamStats
from ramforge_core.tokenizer import Tokenizer

FinishReason = Literal["stop", "length", "context"]


@define
class GenerationStats:
    """Times and counts of one answer. Seconds are wall-clock; first_token_s counts from the start of the prefill.

    sampling_s : drawing tokens. callback_s : what whoever takes the text did between two pieces of it.
    prompt_reads, decode_reads : what passes read from disk meanwhile. token_s : of each decode pass with its draw.
    """

    prompt_tokens: int = 0
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
        """Percentiles of ``token_s``; empty without a decode pass."""
        if not self.token_s:
            return {}
        ranks = np.percentile(np.frombuffer(self.token_s), [50, 90, 99, 100])
        return dict(zip(("p50", "p90", "p99", "max"), map(float, ranks), strict=True))

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

    prompt_ids : what the model read. ids : tokens drawn so far, without the one that ended the answer.
    finish_reason : None while running; then stop (end-of-generation token or stop string), length (max_tokens
    reached) or context (no room left).
    seed : of the sampler, to have the same answer again.
    """

    engine: Engine
    tokenizer: Tokenizer
    prompt_ids: Sequence[int]
    sampler: Sampler
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    special: bool = False
    progress: Callable[[float, int], None] | None = None
    ids: list[int] = field(factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    stats: GenerationStats = field(factory=GenerationStats, init=False)
    _pieces: Iterator[str] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ParameterError(f"max_tokens is {self.max_tokens}, expected 0 or more")
        if any(not s for s in self.stop):
            raise ParameterError("a stop string is empty; every text contains it")
        self._pieces = self._run()

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
        stream, matcher = self.tokenizer.stream(special=self.special), StopMatcher(self.stop)
        for token in self._tokens():
            piece, stopped = matcher.push(stream.push(token))
            if piece:
                yield piece
            if stopped:
                self.finish_reason = "stop"
                return
        piece, stopped = matcher.push(stream.finish())
        if stopped:
            self.finish_reason = "stop"
        else:
            piece += matcher.flush()
        if piece:
            yield piece

    def _tokens(self) -> Iterator[int]:
        """Draw until an end; no pass is run after the last wanted token."""
        if self.max_tokens == 0:
            self.finish_reason = "length"
            return
        ends = self.tokenizer.end_of_generation | {
            token for s in self.stop if (token := self.tokenizer.token_id(s)) is not None
        }
        cache = self.engine.cache()
        try:
            yield from self._draw(cache, ends)
        finally:
            cache.truncate(0)

    def _draw(self, cache: KVCache, ends: Set[int]) -> Iterator[int]:
        stats, history = self.stats, list(self.prompt_ids)
        reads, began = self.engine.reads, time.perf_counter()
        logits = self.engine.prefill(history, cache, progress=self.progress)
        stats.prompt_tokens, stats.prompt_s = len(history), time.perf_counter() - began
        stats.prompt_reads = self.engine.reads.since(reads)
        token = self._sample(logits, history)
        stats.first_token_s = time.perf_counter() - began
        reads = self.engine.reads
        try:
            yield from self._decode(token, history, cache, ends)
        finally:
            stats.decode_reads = self.engine.reads.since(reads)

    def _decode(self, token: int, history: list[int], cache: KVCache, ends: Set[int]) -> Iterator[int]:
        """Tokens from the first one on, which is drawn already."""
        stats = self.stats
        while token not in ends:
            self.ids.append(token)
            history.append(token)
            stats.generated_tokens = len(self.ids)
            given = time.perf_counter()
            yield token
            stats.callback_s += time.perf_counter() - given
            if len(self.ids) == self.max_tokens:
                self.finish_reason = "length"
                return
            if len(history) > self.engine.context:
                self.finish_reason = "context"
                return
            began = time.perf_counter()
            logits = self.engine.run([token], len(history) - 1, cache, [True])[0]
            token = self._sample(logits, history)
            took = time.perf_counter() - began
            stats.decode_passes += 1
            stats.decode_s += took
            stats.token_s.append(took)
        self.finish_reason = "stop"

    def _sample(self, logits: NDArray[np.float32], history: Sequence[int]) -> int:
        began = time.perf_counter()
        token = self.sampler(logits, history)
        self.stats.sampling_s += time.perf_counter() - began
        return token
