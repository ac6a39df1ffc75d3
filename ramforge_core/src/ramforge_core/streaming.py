"""Passes of a model that is larger than its memory: the program's steps, each as soon as its weights are there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from ramforge_core.backend import Batch, Control, Program
from ramforge_core.datasource import DataSource
from ramforge_core.errors import Interrupted
from ramforge_core.expert_cache import ExpertCache
from ramforge_core.kv import KVCache
from ramforge_core.memory import PAGE, allocate
from ramforge_core.model import Model
from ramforge_core.residency import Read, Residency, row_window_bytes, rows_name
from ramforge_core.stream import READERS, Stream

PassArguments = tuple[Batch, Sequence[KVCache], NDArray[np.float32], Control]
"""What `Program.run` takes for each piece of a pass."""


@frozen
class Segment:
    """Steps that one read serves: those before ``first_use`` need nothing of it, none from ``end`` on does."""

    first_use: int
    end: int


@define(eq=False)
class StreamedPasses:
    """Runs passes with pinned weights bound for good and the others bound as the stream brings them.

    ring, slots : memory of the stream. expert_memory : of experts that are not pinned. max_tokens : of one pass.
    """

    model: Model
    program: Program
    residency: Residency
    source: DataSource
    ring: NDArray[np.uint8]
    slots: int
    expert_memory: NDArray[np.uint8] = field(kw_only=True)
    max_tokens: int = field(kw_only=True)
    _experts: ExpertCache | None = field(default=None, init=False)
    stream: Stream = field(init=False)
    _segments: tuple[Segment, ...] = field(init=False)
    _rows: NDArray[np.uint8] = field(init=False)
    _windows: list[NDArray[np.uint8]] = field(init=False)
    _row_readers: ThreadPoolExecutor = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._segments = segments(self.program, self.residency.reads)
        name = rows_name(self.residency.embedding or "")
        row_bytes = self.residency.weights[name].row_bytes
        self._rows = allocate(self.max_tokens * row_bytes)
        self._windows = [allocate(row_window_bytes(row_bytes)) for _ in range(READERS)]
        self._row_readers = ThreadPoolExecutor(READERS, thread_name_prefix="ramforge-rows")
        self.program.bind({name: self._rows})
        self.stream = Stream(self.source, self.residency.reads, self.ring, self.slots)
        if self.residency.experts is not None:
            self._experts = ExpertCache(self.residency.experts, self.program, self.stream, self.expert_memory)

    def run(
        self, batch: Batch, caches: Sequence[KVCache], logits: NDArray[np.float32], control: Control
    ) -> None:
        """One pass; arguments as `Program.run`. Raises GGUFError if the file cannot be read or has changed."""
        self.source.check_unchanged()
        self.stream.begin()
        batch = evolve(batch, tokens=self._read_rows(batch.tokens, control))
        run = partial(self._run, (batch, caches, logits, control))
        at = 0
        for segment in self._segments:
            if segment.first_use > at and not self.stream.ready():
                run(at, segment.first_use)
                at = segment.first_use
            read, window = self.stream.take()
            self.program.bind({name: window[start : start + n] for name, start, n in read.pieces})
            run(at, segment.end)
            self.stream.give_back()
            at = segment.end
        run(at, len(self.program.steps))

    def _run(self, given: PassArguments, at: int, end: int) -> None:
        """Steps [at, end), which have all their weights but experts."""
        if self._experts is not None:
            for step in self._experts.steps:
                if at <= step < end:
                    self._run_plain(given, at, step)
                    self._experts.run(step, *given)
                    at = step + 1
        self._run_plain(given, at, end)

    def _run_plain(self, given: PassArguments, at: int, end: int) -> None:
        if at < end:
            given[3].begin(at)
            self.program.run(*given, range(at, end))

    def _read_rows(self, tokens: NDArray[np.int32], control: Control) -> NDArray[np.int32]:
        """Read the embeddings of a batch, each distinct token's row by itself; returns by token which row it is."""
        began = time.perf_counter()
        distinct, numbers = np.unique(tokens, return_inverse=True)
        todo = list(enumerate(distinct.tolist()))
        parts = [todo[i::READERS] for i in range(min(READERS, len(todo)))]
        jobs = [
            self._row_readers.submit(self._read_part, part, window, control)
            for part, window in zip(parts, self._windows, strict=False)
        ]
        self.stream.stats.row_reads += len(todo)
        self.stream.stats.row_bytes += sum(job.result() for job in jobs)
        self.stream.stats.stall_s += time.perf_counter() - began
        return numbers.astype(np.int32)

    def _read_part(self, part: Sequence[tuple[int, int]], window: NDArray[np.uint8], control: Control) -> int:
        """Read rows, given as (number of the row, token). Returns the bytes read."""
        tensor = self.residency.embedding or ""
        info, row_bytes = self.model.gguf.tensors[tensor], self.model.weights[tensor].row_bytes
        total = 0
        for number, token in part:
            if control.stopped:
                raise Interrupted("the pass was stopped while it read embeddings")
            start = info.offset + token * row_bytes
            offset = start // PAGE * PAGE
            nbytes = -(-(start + row_bytes) // PAGE) * PAGE - offset
            read = Read(info.file, offset, nbytes, ((tensor, start - offset, row_bytes),), nbytes - row_bytes)
            self.source.read_window(read, window[:nbytes])
            self._rows[number * row_bytes : (number + 1) * row_bytes] = window[start - offset :][:row_bytes]
            total += nbytes
        return total

    def halt(self) -> None:
        """Wake a pass that waits for the disk; it raises Interrupted."""
        self.stream.halt()

    def close(self) -> None:
        """Stop the stream and free all memory."""
        if self._experts is not None:
            self._experts.close()
        self.stream.close()
        self._row_readers.shutdown()
        del self.program
        self.ring = self.expert_memory = self._rows = allocate(0)
        self._windows.clear()


def segments(program: Program, reads: Sequence[Read]) -> tuple[Segment, ...]:
    """For each read, in order, which steps wait for it."""
    users = {name: i for i, step in enumerate(program.steps) for name in step.weights}
    out = []
    for read in reads:
        steps = [users[name] for name, _, _ in read.pieces]
        out.append(Segment(min(steps), max(steps) + 1))
    return tuple(out)
