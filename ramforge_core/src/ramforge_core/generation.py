"""One answer: the loop of pass, draw and text, with every way that it can end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Literal

from attrs import asdict, define, field

from ramforge_core.engine import Engine
from ramforge_core.errors import ParameterError
from ramforge_core.kv import KVCache
from ramforge_core.sampling import Sampler
from ramforge_core.stops import StopMatcher
from ramforge_core.tokenizer import Tokenizer

FinishReason = Literal["stop", "length", "context"]


@define
class GenerationStats:
    """Times and counts of one answer. Seconds are wall-clock; first_token_s counts from the start of the prefill."""

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    generated_tokens: int = 0
    decode_passes: int = 0
    decode_s: float = 0.0
    first_token_s: float = 0.0

    @property
    def prompt_tokens_per_s(self) -> float:
        return self.prompt_tokens / self.prompt_s if self.prompt_s else 0.0

    @property
    def decode_tokens_per_s(self) -> float:
        """Passes of one token by the time that they and the draws after them took."""
        return self.decode_passes / self.decode_s if self.decode_s else 0.0

    def to_dict(self) -> dict[str, int | float]:
        return {
            **asdict(self),
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
    progress: Callable[[int, int], None] | None = None
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
        began = time.perf_counter()
        logits = self.engine.prefill(history, cache, progress=self.progress)
        stats.prompt_tokens, stats.prompt_s = len(history), time.perf_counter() - began
        token = self.sampler(logits, history)
        stats.first_token_s = time.perf_counter() - began
        while token not in ends:
            self.ids.append(token)
            history.append(token)
            stats.generated_tokens = len(self.ids)
            yield token
            if len(self.ids) == self.max_tokens:
                self.finish_reason = "length"
                return
            if len(history) > self.engine.context:
                self.finish_reason = "context"
                return
            began = time.perf_counter()
            logits = self.engine.run([token], len(history) - 1, cache, [True])[0]
            token = self.sampler(logits, history)
            stats.decode_passes += 1
            stats.decode_s += time.perf_counter() - began
        self.finish_reason = "stop"
