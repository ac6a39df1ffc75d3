"""The experts in memory of a model that is larger than it, and the runs of their steps as they arrive from disk.

Which experts a layer keeps is decided by how often they were chosen of late: a count that halves every `HALF_LIFE`
tokens. That is the best fixed set where a router has favourites, follows them where they change, and is as good as any
other choice where it has none.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ramforge_core.backend import Batch, Control, Program
from ramforge_core.errors import Interrupted
from ramforge_core.experts import ExpertLayer, ExpertShares
from ramforge_core.kv import KVCache
from ramforge_core.memory import PAGE, allocate
from ramforge_core.residency import Read
from ramforge_core.stream import Stream

HALF_LIFE = 32
"""Tokens after which having been chosen counts half."""

READERS = 8
"""Windows of experts in flight; an expert has three."""

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


@frozen(eq=False)
class _Coming:
    """An expert that is read into ``slot``. views : its three matrices there, good when ``reads`` are done."""

    slot: int
    views: Sequence[NDArray[np.uint8]]
    reads: Sequence[Future[None]]

    @property
    def is_here(self) -> bool:
        return all(read.done() for read in self.reads)


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
    _readers: ThreadPoolExecutor = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._layers = {layer.step: _Layer(layer) for layer in self.shares.layers}
        self._free = list(range(self.shares.slots))
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="ramforge-experts")

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
        """One `Moe` step whose routes are computed; arguments as `Program.run`.

        Experts are taken in the order of their numbers: while some are computed the next are read. Raises GGUFError,
        or Interrupted.
        """
        layer = self._layers[step]
        self._abandon()
        op = layer.share.op
        chosen = self.program.read(op.routes)[:, : op.chosen].astype(np.int64)
        layer.note(chosen.reshape(-1), len(chosen))
        needed = np.unique(chosen).tolist()
        missing = deque(e for e in needed if e not in layer.kept)
        self.stream.stats.expert_hits += len(needed) - len(missing)
        self.stream.stats.expert_misses += len(missing)
        begun = done = 0
        while done < len(needed):
            while missing and self._free:
                self._ask(layer, missing.popleft())
            ready = self._arrive(layer, needed, done, control)
            stop = op.experts if ready == len(needed) else needed[ready]
            control.begin(step)
            self.program.run(batch, caches, logits, control, range(step, step + 1), range(begun, stop))
            for expert in needed[done:ready]:
                self._settle(layer, expert, needed[ready:])
            begun, done = stop, ready

    def _ask(self, layer: _Layer, expert: int) -> None:
        """Begin to read an expert: its three matrices at once."""
        slot = self._free.pop()
        at, views, reads = slot * self.shares.slot_bytes, [], []
        for extent in layer.share.extents:
            first = extent.offset + expert * extent.nbytes
            offset = first // PAGE * PAGE
            nbytes = -(-(first + extent.nbytes) // PAGE) * PAGE - offset
            part = ((extent.weight, first - offset, extent.nbytes),)
            read = Read(extent.file, offset, nbytes, part, nbytes - extent.nbytes)
            window = self.memory[at : at + nbytes]
            views.append(window[first - offset :][: extent.nbytes])
            reads.append(self._readers.submit(self.stream.read_aside, read, window))
            at += extent.window_bytes
        self._coming[expert] = _Coming(slot, views, reads)

    def _arrive(self, layer: _Layer, needed: Sequence[int], done: int, control: Control) -> int:
        """Wait for the next expert; bind it and those after it that are here too. Returns where they end."""
        ready = done
        while ready < len(needed):
            expert = needed[ready]
            if expert not in layer.kept:
                coming = self._coming.get(expert)
                if coming is None or (ready > done and not coming.is_here):
                    break
                self._wait(coming, control)
                for extent, view in zip(layer.share.extents, coming.views, strict=True):
                    self.program.bind_experts(extent.weight, {expert: view})
            ready += 1
        return ready

    def _wait(self, coming: _Coming, control: Control) -> None:
        began = time.perf_counter()
        while wait(coming.reads, _LOOK_S).not_done:
            if control.stopped:
                raise Interrupted("the pass was stopped while it waited for experts")
        self.stream.stats.stall_s += time.perf_counter() - began
        for read in coming.reads:
            read.result()

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
            wait(coming.reads)
            self._free.append(coming.slot)
        self._coming.clear()

    def close(self) -> None:
        """Free all memory."""
        self._readers.shutdown()
        self._coming.clear()
        self.memory = allocate(0)
        del self.program
