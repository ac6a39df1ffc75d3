"""The engine: a loaded model and the passes it runs. It knows tokens and logits, no text.

Passes run on a worker thread while the caller waits, so that Ctrl-C and a vanished client act at once; brief ones run
on the caller's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from ramforge_core.allotment import Allotment, allot, check_context, smallest_free_bytes
from ramforge_core.backend import Backend, Batch, Control, Limits, Program, check_ops
from ramforge_core.budget import MemoryBudget
from ramforge_core.datasource import DataSource
from ramforge_core.errors import BudgetTooSmallError, ContextFullError, Interrupted, ParameterError
from ramforge_core.kv import CHUNK_POSITIONS, KVCache, KVLayout, KVType
from ramforge_core.memory import allocate
from ramforge_core.model import Model
from ramforge_core.profile import Profile
from ramforge_core.stream import StreamStats
from ramforge_core.streaming import StreamedPasses
from ramforge_core.system import process_memory
from ramforge_core.weights import load_pinned, loading_ring

_PROGRESS_S = 0.2
_BRIEF_S = 0.05


@frozen(eq=False)
class Part:
    """Consecutive tokens of one sequence in a pass, at positions start, start + 1, ...

    wanted : by token, whether its logits are.
    """

    tokens: Sequence[int]
    start: int
    cache: KVCache
    wanted: Sequence[bool]


@define(eq=False)
class Engine:
    """A model ready to run. Use as a context manager, or call `close`.

    pinned : the weights that stay in memory, by name, as the file has them: uint8 (nbytes,). If that is all of a
        large file, it is mapped. source : reads the others.
    streamed : runs passes of a model that is not pinned whole; None when all weights are in memory.
    """

    model: Model = field(repr=False)
    program: Program = field(repr=False)
    allotment: Allotment = field(repr=False)
    budget: MemoryBudget
    pinned: Mapping[str, NDArray[np.uint8]] = field(repr=False)
    source: DataSource = field(repr=False)
    streamed: StreamedPasses | None = field(repr=False)
    _logits: NDArray[np.float32] = field(repr=False)
    _resources: contextlib.ExitStack = field(repr=False)
    _control: Control = field(factory=Control, repr=False)
    _worker: ThreadPoolExecutor = field(
        factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="ramforge-pass"), repr=False
    )
    _lock: threading.Lock = field(factory=threading.Lock, repr=False)
    _caches: list[KVCache] = field(factory=list, init=False, repr=False)
    """Those that may hold memory, so that `close` gives back what a caller forgot."""
    _token_s: float = field(default=float("inf"), init=False, repr=False)
    """Seconds per token of the last pass."""
    _closed: bool = field(default=False, init=False, repr=False)

    @property
    def context(self) -> int:
        """Positions that a sequence may have."""
        return self.allotment.context

    def cache(self) -> KVCache:
        """An empty cache for one sequence; call its ``truncate(0)`` when the sequence is done. `close` does, too."""
        cache = KVCache(self.allotment.kv_layout, self.budget)
        self._caches = [*(c for c in self._caches if c.chunks), cache]
        return cache

    @property
    def reads(self) -> StreamStats:
        """What passes have read from disk so far, a copy; nothing where all weights are in memory."""
        return StreamStats() if self.streamed is None else evolve(self.streamed.stream.stats)

    @property
    def pass_done(self) -> float:
        """Share of the pass that is running, or was last, that is done: 0 to 1. From any thread."""
        return min(self._control.done / len(self.program.steps), 1.0)

    def run(
        self,
        tokens: Sequence[int],
        start: int,
        cache: KVCache,
        wanted: Sequence[bool],
        progress: Callable[[float], None] | None = None,
    ) -> NDArray[np.float32]:
        """One pass over consecutive tokens of a sequence; see `run_parts`."""
        return self.run_parts([Part(tokens, start, cache, wanted)], progress)

    def run_parts(
        self, parts: Sequence[Part], progress: Callable[[float], None] | None = None
    ) -> NDArray[np.float32]:
        """One pass over tokens of one or more sequences, each with a cache of its own.

        parts : together at most ``allotment.max_tokens`` tokens, ``allotment.max_wanted`` of them wanted.
        progress : called a few times per second with the share of the pass that is done.
        Returns float32 (number wanted, vocab), part by part: a view of the logits buffer, good until the next pass.
        A KeyboardInterrupt of the waiting thread stops the pass before it is raised. Raises Interrupted when
        `close` stopped the pass, BudgetExceededError before it begins if a cache cannot grow, GGUFError if the file
        was changed since it was opened, or cannot be read.
        """
        batch = _batch(parts)
        with self._lock:
            if self._closed:
                raise Interrupted("the model was closed")
            if self.source.mapped:
                self.source.check_unchanged()
            for part in parts:
                part.cache.reserve(part.start + len(part.tokens))
            logits = self._logits[: int(batch.wanted.sum())]
            self._control.reset()
            run = self.program.run if self.streamed is None else self.streamed.run
            caches = [part.cache for part in parts]
            try:
                if progress is None and self._brief(batch):
                    run(batch, caches, logits, self._control)
                    return logits
                began = time.perf_counter()
                future = self._worker.submit(run, batch, caches, logits, self._control)
                while progress is not None and not wait([future], _PROGRESS_S).done:
                    progress(self.pass_done)
                future.result()
                self._token_s = (time.perf_counter() - began) / len(batch.tokens)
            except BaseException:  # Ctrl-C, or what the callback raised: the pass may still be running
                self.interrupt()
                with contextlib.suppress(RuntimeError):  # closed meanwhile
                    self._worker.submit(
                        int
                    ).result()  # there is one worker: nothing runs any more when this has
                raise
        return logits

    def _brief(self, batch: Batch) -> bool:
        """True if a pass may run on the caller's thread: what waits for its end waits a moment.

        The way to the worker and back costs as much as some layers of a small model.
        """
        return self.streamed is None and self._token_s * len(batch.tokens) < _BRIEF_S

    def prefill(
        self,
        tokens: Sequence[int],
        cache: KVCache,
        start: int = 0,
        progress: Callable[[float, int], None] | None = None,
    ) -> NDArray[np.float32]:
        """Run a whole prompt, chunk by chunk. Returns the last token's logits, float32 (vocab,), a view.

        progress : called with tokens done, of a pass that is under way its share, and tokens in all.
        """
        self._check(tokens, start)
        logits: NDArray[np.float32] = self._logits[0]
        for at in range(0, len(tokens), self.allotment.max_tokens):
            chunk = tokens[at : at + self.allotment.max_tokens]
            last = at + len(chunk) == len(tokens)
            tick = None
            if progress is not None:
                tick = partial(_tick, progress, at, len(chunk), len(tokens))
            out = self.run(chunk, start + at, cache, [False] * (len(chunk) - 1) + [last], tick)
            if last:
                logits = out[0]
            if progress is not None:
                progress(at + len(chunk), len(tokens))
        return logits

    def all_logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits at every position: float32 (len(tokens), vocab), freshly allocated, outside the budget."""
        self._check(tokens, 0)
        out = np.empty((len(tokens), self._logits.shape[1]), np.float32)
        cache, rows = self.cache(), len(self._logits)
        try:
            for at in range(0, len(tokens), rows):
                chunk = tokens[at : at + rows]
                out[at : at + len(chunk)] = self.run(chunk, at, cache, [True] * len(chunk))
        finally:
            cache.truncate(0)
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

    def interrupt(self) -> None:
        """Stop the pass that is running, if any; it raises Interrupted. From any thread."""
        self._control.stop()
        if self.streamed is not None:
            self.streamed.halt()

    def close(self) -> None:
        """Stop a running pass, free all memory and give its charges back. Again: nothing happens."""
        self._closed = True
        self.interrupt()
        self._worker.shutdown()
        with self._lock:
            if hasattr(self, "program"):
                del self.program  # which holds the weights, too
            self.pinned = {}
            self._logits = allocate(0).view(np.float32)
            for cache in self._caches:
                cache.truncate(0)
            self._resources.close()


def _tick(progress: Callable[[float, int], None], at: int, tokens: int, total: int, share: float) -> None:
    progress(at + tokens * share, total)


def _batch(parts: Sequence[Part]) -> Batch:
    counts = [len(part.tokens) for part in parts]
    return Batch(
        np.fromiter((t for part in parts for t in part.tokens), np.int32, sum(counts)),
        np.concatenate(
            [np.arange(p.start, p.start + n, dtype=np.int32) for p, n in zip(parts, counts, strict=True)]
        ),
        np.repeat(np.arange(len(parts), dtype=np.int32), counts),
        np.fromiter((w for part in parts for w in part.wanted), np.bool_, sum(counts)),
    )


def load_engine(
    model: Model,
    backend: Backend,
    budget: MemoryBudget,
    *,
    context: int | None = None,
    kv_type: KVType = "f16",
    sequences: int = 1,
    threads: int = 0,
    reserve: int = 0,
    progress: Callable[[int, int], None] | None = None,
    profile: Profile | None = None,
) -> Engine:
    """Divide the budget, compile the graph and read the pinned weights.

    context : positions; None means 4096, or less where the model or the budget has less.
    sequences : how many will run at once. reserve : bytes of the budget to leave to the caller.
    progress : called with weight bytes read and in all. profile : is told where the time of passes goes, which costs
        some of it.
    Raises BudgetTooSmallError that names the smallest budget, before a weight is read.
    """
    if threads < 0:
        raise ParameterError(f"threads is {threads}, expected at least 1, or 0 for the default")
    with contextlib.ExitStack() as resources:
        process = process_memory().rss or 0
        allotment = divide(
            model,
            backend,
            budget,
            process + reserve,
            context=context,
            kv_type=kv_type,
            threads=threads,
            sequences=sequences,
        )
        parts = allotment.residency
        for tag, nbytes in {"process": process, "reserved": reserve, **allotment.charges()}.items():
            resources.enter_context(budget.charge(tag, nbytes))
        limits = _limits(allotment, threads)
        program = backend.compile(parts.graph, parts.weights, limits)
        if profile is not None:
            program = profile.watch(program, parts.graph, parts.weights)
        larger = parts.embedding is not None  # than memory
        known = list(zip(model.gguf.file_bytes, model.gguf.modified_ns, strict=True))
        source = resources.enter_context(DataSource(model.gguf.files, direct=larger, known=known))
        streamed, ring = None, (allocate(allotment.ring_bytes), max(1, allotment.slots))
        experts = allocate(allotment.expert_bytes)
        through = (ring if allotment.slots else loading_ring(experts)) if larger else None
        pinned = load_pinned(parts.pinned, source, through, progress)
        source.check_unchanged()
        program.bind(pinned)
        if larger:
            streamed = StreamedPasses(
                model,
                program,
                parts,
                source,
                *ring,
                expert_memory=experts,
                max_tokens=allotment.max_tokens,
            )
            resources.callback(streamed.close)
            if profile is not None:
                profile.stream = streamed.stream.stats
        vocab = model.graph.logits.width
        logits = allocate(allotment.logits_bytes).view(np.float32).reshape(allotment.max_wanted, vocab)
        return Engine(
            model, program, allotment, budget, pinned, source, streamed, logits, resources.pop_all()
        )


def divide(
    model: Model,
    backend: Backend,
    budget: MemoryBudget,
    process_bytes: int,
    *,
    context: int | None,
    kv_type: KVType,
    threads: int,
    sequences: int = 1,
) -> Allotment:
    """Divide what the budget has left beside a process of ``process_bytes``. Charges nothing.

    Raises BudgetTooSmallError.
    """
    workspace = trial_workspace(model, backend, context=context, kv_type=kv_type, threads=threads)
    free = None if budget.free is None else budget.free - process_bytes
    found = allot(model, free, workspace, context=context, kv_type=kv_type, sequences=sequences)
    if found is None:
        needed = smallest_free_bytes(model, workspace, context=context, kv_type=kv_type)
        positions = context or min(CHUNK_POSITIONS, model.config.context_length)
        raise BudgetTooSmallError(needed, budget.used + process_bytes, budget.limit or 0, positions)
    return found


def trial_workspace(
    model: Model, backend: Backend, *, context: int | None, kv_type: KVType, threads: int
) -> Callable[[int], int]:
    """What a pass over so many tokens takes as scratch, from a program that is compiled to be asked.

    Raises ParameterError for a senseless context.
    """
    check_context(model, context)
    check_ops(backend, model.graph)
    layout = KVLayout.of(model.graph.attentions, kv_type)
    trial = min(512, context or model.config.context_length)
    limits = Limits(trial, 1, min(context or 4096, model.config.context_length), layout, threads)
    return backend.compile(model.graph, model.weights, limits).workspace_bytes


def _limits(allotment: Allotment, threads: int) -> Limits:
    return Limits(allotment.max_tokens, allotment.max_wanted, allotment.context, allotment.kv_layout, threads)
