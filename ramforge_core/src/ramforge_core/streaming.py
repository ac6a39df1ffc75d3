"""Passes of a model that is larger than its memory: the program's steps, each as soon as its weights are there."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from ramforge_core.backend import Batch, Control, Program
from ramforge_core.datasource import DataSource
from ramforge_core.kv import KVCache
from ramforge_core.memory import allocate
from ramforge_core.model import Model
from ramforge_core.residency import PAGE, Read, Residency, rows_name
from ramforge_core.stream import Stream


@frozen
class Segment:
    """Steps that one read serves: those before ``first_use`` need nothing of it, none from ``end`` on does."""

    first_use: int
    end: int


@define(eq=False)
class StreamedPasses:
    """Runs passes with pinned weights bound for good and the others bound as the stream brings them.

    ring, slots : memory of the stream. max_tokens : of one pass.
    """

    model: Model
    program: Program
    residency: Residency
    source: DataSource
    ring: NDArray[np.uint8]
    slots: int
    max_tokens: int = field(kw_only=True)
    stream: Stream = field(init=False)
    _segments: tuple[Segment, ...] = field(init=False)
    _rows: NDArray[np.uint8] = field(init=False)
    _window: NDArray[np.uint8] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._segments = segments(self.program, self.residency.reads)
        name = rows_name(self.residency.embedding or "")
        row_bytes = self.residency.weights[name].row_bytes
        self._rows = allocate(self.max_tokens * row_bytes)
        self._window = allocate(-(-row_bytes // PAGE) * PAGE + 2 * PAGE)
        self.program.bind({name: self._rows})
        self.stream = Stream(self.source, self.residency.reads, self.ring, self.slots)

    def run(
        self, batch: Batch, caches: Sequence[KVCache], logits: NDArray[np.float32], control: Control
    ) -> None:
        """One pass; arguments as `Program.run`. Raises GGUFError if the file cannot be read or has changed."""
        self.source.check_unchanged()
        self.stream.begin()
        self._read_rows(batch.tokens)
        batch = evolve(batch, tokens=np.arange(len(batch.tokens), dtype=np.int32))
        at = 0
        for segment in self._segments:
            control.begin(at)
            if segment.first_use > at and not self.stream.ready():
                self.program.run(batch, caches, logits, control, range(at, segment.first_use))
                at = segment.first_use
                control.begin(at)
            read, window = self.stream.take()
            self.program.bind({name: window[start : start + n] for name, start, n in read.pieces})
            self.program.run(batch, caches, logits, control, range(at, segment.end))
            self.stream.give_back()
            at = segment.end
        if at < len(self.program.steps):
            control.begin(at)
            self.program.run(batch, caches, logits, control, range(at, len(self.program.steps)))

    def _read_rows(self, tokens: NDArray[np.int32]) -> None:
        """Read the embeddings of a batch, each token's row by itself."""
        tensor = self.residency.embedding or ""
        info, row_bytes = self.model.gguf.tensors[tensor], self.model.weights[tensor].row_bytes
        began = time.perf_counter()
        for i, token in enumerate(tokens.tolist()):
            start = info.offset + token * row_bytes
            offset = start // PAGE * PAGE
            nbytes = -(-(start + row_bytes) // PAGE) * PAGE - offset
            read = Read(info.file, offset, nbytes, ((tensor, start - offset, row_bytes),), nbytes - row_bytes)
            self.source.read_window(read, self._window[:nbytes])
            self.stream.stats.row_reads += 1
            self.stream.stats.row_bytes += nbytes
            self._rows[i * row_bytes : (i + 1) * row_bytes] = self._window[start - offset :][:row_bytes]
        self.stream.stats.stall_s += time.perf_counter() - began

    def halt(self) -> None:
        """Wake a pass that waits for the disk; it raises Interrupted."""
        self.stream.halt()

    def close(self) -> None:
        self.stream.close()


def segments(program: Program, reads: Sequence[Read]) -> tuple[Segment, ...]:
    """For each read, in order, which steps wait for it."""
    users = {name: i for i, step in enumerate(program.steps) for name in step.weights}
    out = []
    for read in reads:
        steps = [users[name] for name, _, _ in read.pieces]
        out.append(Segment(min(steps), max(steps) + 1))
    return tuple(out)
