"""The engine: a loaded model and the passes it runs. It knows tokens and logits, no text.

Passes run on a worker thread while the caller waits, so that Ctrl-C and a vanished client act at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from ramforge_core.backend import Backend, Batch, Control, Limits, Program
from ramforge_core.errors import ContextFullError, Interrupted, ParameterError
from ramforge_core.kv import KVCache, KVLayout, KVType
from ramforge_core.model import Model
from ramforge_core.weights import DataSource, load_weights

PREFILL_TOKENS = 512
"""Most tokens of one pass; longer prompts go through the weights once per this many."""

LOGITS_BYTES = 32 << 20
"""Bound of the one logits buffer, which holds at least one row. Rows that nobody wants are never touched."""

DEFAULT_CONTEXT = 4096
"""Positions a context holds unless asked for: a KV cache of the trained length can be larger than the model."""


@define(eq=False)
class Engine:
    """A model in memory, ready to run. Use as a context manager, or call `close`."""

    model: Model = field(repr=False)
    program: Program = field(repr=False)
    layout: KVLayout
    context: int
    _logits: NDArray[np.float32] = field(repr=False)
    _control: Control = field(factory=Control, repr=False)
    _worker: ThreadPoolExecutor = field(
        factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="ramforge-pass"), repr=False
    )
    _lock: threading.Lock = field(factory=threading.Lock, repr=False)

    def cache(self) -> KVCache:
        """An empty cache for one sequence."""
        return KVCache(self.layout)

    def run(
        self, tokens: Sequence[int], start: int, cache: KVCache, wanted: Sequence[bool]
    ) -> NDArray[np.float32]:
        """One pass over consecutive tokens of a sequence.

        tokens : at most `PREFILL_TOKENS`, at positions start, start+1, ... wanted : by token.
        Returns float32 (number wanted, vocab): a view of the logits buffer, good until the next pass.
        A KeyboardInterrupt of the waiting thread stops the pass before it is raised. Raises Interrupted when
        `close` stopped the pass.
        """
        n = len(tokens)
        batch = Batch(
            np.asarray(tokens, np.int32),
            np.arange(start, start + n, dtype=np.int32),
            np.zeros(n, np.int32),
            np.asarray(wanted, np.bool_),
        )
        with self._lock:
            cache.reserve(start + n)
            logits = self._logits[: int(batch.wanted.sum())]
            self._control.reset()
            future = self._worker.submit(self.program.run, batch, [cache], logits, self._control)
            try:
                future.result()
            except KeyboardInterrupt:
                self._control.stop()
                with contextlib.suppress(Interrupted):
                    future.result()
                raise
        return logits

    def prefill(
        self,
        tokens: Sequence[int],
        cache: KVCache,
        start: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Run a whole prompt, chunk by chunk. Returns the last token's logits, float32 (vocab,), a view."""
        self._check(tokens, start)
        logits = self._logits[0]
        for at in range(0, len(tokens), PREFILL_TOKENS):
            chunk = tokens[at : at + PREFILL_TOKENS]
            last = at + len(chunk) == len(tokens)
            out = self.run(chunk, start + at, cache, [False] * (len(chunk) - 1) + [last])
            if last:
                logits = out[0]
            if progress is not None:
                progress(at + len(chunk), len(tokens))
        return logits

    def all_logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits at every position: float32 (len(tokens), vocab), freshly allocated."""
        self._check(tokens, 0)
        out = np.empty((len(tokens), self._logits.shape[1]), np.float32)
        cache = self.cache()
        rows = len(self._logits)
        for at in range(0, len(tokens), rows):
            chunk = tokens[at : at + rows]
            out[at : at + len(chunk)] = self.run(chunk, at, cache, [True] * len(chunk))
        return out

    def _check(self, tokens: Sequence[int], start: int) -> None:
        if len(tokens) == 0:
            raise ParameterError(
                "no tokens to run: the prompt is empty and the vocabulary adds nothing to it"
            )
        vocab = self._logits.shape[1]
        if (bad := next((t for t in tokens if not 0 <= t < vocab), None)) is not None:
            raise ParameterError(f"token {bad} is outside the vocabulary of {vocab} tokens")
        if start + len(tokens) > self.context:
            raise ContextFullError(
                f"the prompt has {start + len(tokens)} tokens, but the context holds {self.context}; "
                "shorten it or ask for a larger context (--ctx)"
            )

    def close(self) -> None:
        """Stop a running pass and give everything back."""
        self._control.stop()
        self._worker.shutdown()


def load_engine(
    model: Model,
    backend: Backend,
    *,
    context: int | None = None,
    kv_type: KVType = "f16",
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """Compile the graph and read the weights.

    context : positions; None means `DEFAULT_CONTEXT`, or the trained length if that is less.
    progress : called with weight bytes read and in all.
    """
    trained = model.config.context_length
    if context is not None and context < 1:
        raise ParameterError(f"the context is {context} tokens, expected at least 1")
    if context is not None and context > trained:
        raise ParameterError(
            f"a context of {context} tokens is more than the {trained} that the model was trained on"
        )
    if threads < 0:
        raise ParameterError(f"threads is {threads}, expected at least 1, or 0 for the default")
    context = context or min(DEFAULT_CONTEXT, trained)
    layout = KVLayout.of(model.graph.attentions, kv_type)
    vocab = model.graph.logits.width
    max_tokens = min(PREFILL_TOKENS, context)
    max_wanted = max(1, min(max_tokens, LOGITS_BYTES // (4 * vocab)))
    limits = Limits(max_tokens, max_wanted, context, layout, threads)
    program = backend.compile(model.graph, model.weights, limits)
    with DataSource(model.gguf) as source:
        program.bind(load_weights(model, source, progress))
    return Engine(model, program, layout, context, np.empty((max_wanted, vocab), np.float32))
