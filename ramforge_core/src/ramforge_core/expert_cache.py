"""The experts in memory of a model that is larger than it, and the runs of their steps as they arrive from disk.

Which experts a layer keeps is decided by how often they were chosen of late: a count that halves every `HALF_LIFE`
tokens. That is the best fixed set where a router has favourites, follows them where they change, and is as good as any
other choice where it has none.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence, Set
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ramforge_core.backend import Batch, Control, ExpertRun, Program
from ramforge_core.errors import Interrupted
from ramforge_core.experts import ExpertLayer, ExpertShares
from ramforge_core.kv import KVCache
from ramforge_core.memory import PAGE, allocate
from ramforge_core.residency import Read
from ramforge_core.stream import Stream

HALF_LIFE = 32
"""Tokens after which having been chosen counts half."""

IN_FLIGHT_BYTES = 4 << 20
"""Of experts, at most. More would let an expert's matrices arrive together, so that none is computed meanwhile."""

FEWEST_READERS, MOST_READERS = 2, 8

_LOOK_S = 0.05
"""How often a pass that waits for an expert looks whether it is to stop."""


@define(eq=False)
class _Layer:
    """kept : expert -> slot. counts : by expert, what it is worth to keep it."""

    share: ExpertLayer
    kept: dict[int, int] = field(factory=dict)
    counts: NDArray[np.float64] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = np.zeros(self.share.op.experts)

    def note(self, chosen: NDArray[np.int64], tokens: int) -> None:
        self.counts *= 0.5 ** (tokens / HALF_LIFE)
        self.counts += np.bincount(chosen, minlength=len(self.counts))

    def worse_than(self, expert: int, needed: Sequence[int]) -> int | None:
        """The kept expert that is worth least, if ``expert`` is worth more.

        needed : experts that this pass has still to come to; they keep their places.
        """
        worst = min((e for e in self.kept if e not in needed), key=lambda e: self.counts[e], default=None)
        return worst if worst is not None and self.counts[worst] < self.counts[expert] else None


@define(eq=False)
class _Part:
    """A matrix of an expert. It is in ``window`` when it is ``done``, unless ``error`` came instead."""

    read: Read
    window: NDArray[np.uint8]
    error: Exception | None = None
    done: bool = False

    def bind(self, program: Program, expert: int) -> None:
        if self.error is not None:
            raise self.error
        weight, start, nbytes = self.read.pieces[0]
        program.bind_experts(weight, {expert: self.window[start : start + nbytes]})


@frozen(eq=False)
class _Coming:
    """An expert that is read into ``slot``. missing : of its gate, up and down what is not bound yet."""

    slot: int
    missing: deque[_Part]


@define(eq=False)
class ExpertCache:
    """Slots for experts, and passes over `Moe` steps with what is in them or read into them.

    memory : uint8 (shares.nbytes,), page-aligned. Reads are counted with those of ``stream``.
    """

    shares: ExpertShares
    program: Program = field(repr=False)
    stream: Stream = field(repr=False)
    memory: NDArray[np.uint8] = field(repr=False)
    _layers: dict[int, _Layer] = field(init=False)
    """By step."""
    _free: list[int] = field(init=False)
    """Slots that hold nothing: those of nobody, and those that a layer has not filled yet."""
    _coming: dict[int, _Coming] = field(factory=dict, init=False)
    """By expert, of the step that runs: what is being read, or has been and is not settled yet."""
    _readers: list[threading.Thread] = field(init=False)
    _asked: SimpleQueue[_Part | None] = field(factory=SimpleQueue, init=False)
    _arrivals: SimpleQueue[None] = field(factory=SimpleQueue, init=False)
    """One for each part that is done, to wait for. Those that were seen without waiting wake for nothing later."""

    def __attrs_post_init__(self) -> None:
        self._layers = {layer.step: _Layer(layer) for layer in self.shares.layers}
        self._free = list(range(self.shares.slots))
        largest = max(extent.nbytes for layer in self.shares.layers for extent in layer.extents)
        readers = min(max(FEWEST_READERS, -(-IN_FLIGHT_BYTES // largest)), MOST_READERS)
        self._readers = [
            threading.Thread(target=self._read_on, name=f"ramforge-expert-{i}", daemon=True)
            for i in range(readers)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def steps(self) -> Sequence[int]:
        """Steps that are to be run through this, ascending."""
        return list(self._layers)

    def run(
        self,
        step: int,
        batch: Batch,
        caches: Sequence[KVCache],
        logits: NDArray[np.float32],
        control: Control,
    ) -> None:
        """One `Moe` step whose routes are computed; arguments as `Program.run`. Raises GGUFError, or Interrupted."""
        layer = self._layers[step]
        self._abandon()
        op = layer.share.op
        chosen = self.program.read(op.routes)[:, : op.chosen].astype(np.int64)
        needed = sorted(set(chosen.reshape(-1).tolist()))
        missing = deque(e for e in needed if e not in layer.kept)
        self.stream.stats.expert_hits += len(needed) - len(missing)
        self.stream.stats.expert_misses += len(missing)
        self._ask(layer, missing)
        layer.note(chosen.reshape(-1), len(chosen))
        hidden: set[int] = set()
        begun = done = 0
        while done < len(needed):
            fresh, ready = self._possible(layer, needed, done, hidden)
            if not fresh and ready == done:
                self._wait(control)
                continue
            stop = op.experts if ready == len(needed) else begun if ready == done else needed[ready - 1] + 1
            control.begin(step)
            now = ExpertRun(fresh, range(begun, stop))
            self.program.run(batch, caches, logits, control, range(step, step + 1), now)
            hidden.update(fresh)
            for expert in needed[done:ready]:
                self._settle(layer, expert, needed[ready:])
            self._ask(layer, missing)
            begun, done = stop, ready

    def _possible(
        self, layer: _Layer, needed: Sequence[int], done: int, hidden: Set[int]
    ) -> tuple[list[int], int]:
        """What can be computed now: experts' hidden values, and sums from ``done`` to the number returned.

        Sums have an order. While they wait for a read, the hidden values of one expert further on are computed.
        """
        ready = done
        while ready < len(needed) and self._lacks(layer, needed[ready]) == 0:
            ready += 1
        if ready > done:
            return [e for e in needed[done:ready] if e not in hidden], ready
        later = (e for e in needed[done:] if e not in hidden and self._lacks(layer, e) <= 1)
        return list(islice(later, 1)), ready

    def _ask(self, layer: _Layer, missing: deque[int]) -> None:
        """Begin to read experts while there are slots: their matrices in the order of use."""
        while missing and self._free:
            expert, slot = missing.popleft(), self._free.pop()
            at, parts = slot * self.shares.slot_bytes, deque[_Part]()
            for extent in layer.share.extents:
                first = extent.offset + expert * extent.nbytes
                offset = first // PAGE * PAGE
                nbytes = -(-(first + extent.nbytes) // PAGE) * PAGE - offset
                piece = (extent.weight, first - offset, extent.nbytes)
                read = Read(extent.file, offset, nbytes, (piece,), nbytes - extent.nbytes)
                parts.append(_Part(read, self.memory[at : at + nbytes]))
                self._asked.put(parts[-1])
                at += extent.window_bytes
            self._coming[expert] = _Coming(slot, parts)

    def _read_on(self) -> None:
        """What each reader thread does."""
        while (part := self._asked.get()) is not None:
            try:
                self.stream.read_aside(part.read, part.window)
            except Exception as caught:  # handed to the pass that needs it
                part.error = caught
            part.done = True
            self._arrivals.put(None)

    def _lacks(self, layer: _Layer, expert: int) -> int:
        """Bind what has arrived of an expert. Returns how many of its matrices lack still; the last one is down."""
        coming = self._coming.get(expert)
        if coming is None:
            return 0 if expert in layer.kept else len(layer.share.extents)
        while coming.missing and coming.missing[0].done:
            coming.missing[0].bind(self.program, expert)
            coming.missing.popleft()
        return len(coming.missing)

    def _wait(self, control: Control) -> None:
        """Wait until something has arrived."""
        began = time.perf_counter()
        with suppress(Empty):
            self._arrivals.get(timeout=_LOOK_S)
        self.stream.stats.stall_s += time.perf_counter() - began
        if control.stopped:
            raise Interrupted("the pass was stopped while it waited for experts")

    def _settle(self, layer: _Layer, expert: int, needed: Sequence[int]) -> None:
        """An expert was used: if it has just come it is kept, in the place of a worse one, or forgotten."""
        coming = self._coming.pop(expert, None)
        if coming is None:  # it was kept, and may have given its place to one that was used with it
            return
        slot = coming.slot
        if len(layer.kept) < layer.share.kept:
            layer.kept[expert] = slot
        elif (worse := layer.worse_than(expert, needed)) is not None:
            self._free.append(layer.kept.pop(worse))
            layer.kept[expert] = slot
        else:
            self._free.append(slot)

    def _abandon(self) -> None:
        """Forget what a pass that did not end has left."""
        for coming in self._coming.values():
            while not all(part.done for part in coming.missing):
                self._arrivals.get()
            self._free.append(coming.slot)
        self._coming.clear()

    def close(self) -> None:
        """Free all memory."""
        for _ in self._readers:
            self._asked.put(None)
        for reader in self._readers:
            reader.join()
        self._coming.clear()
        self.memory = allocate(0)
        del self.program
