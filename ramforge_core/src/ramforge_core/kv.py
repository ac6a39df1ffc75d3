"""The KV cache: keys and values of past tokens, in chunks that grow with the text and are read in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ramforge_core.budget import Charge, MemoryBudget
from ramforge_core.graph import Attention
from ramforge_core.memory import allocate

CHUNK_POSITIONS = 256
"""Positions in a chunk. A multiple of every tile that a backend's attention works in."""

KVType = Literal["f16", "f32"]
_DTYPES: dict[str, np.dtype[np.float16] | np.dtype[np.float32]] = {
    "f16": np.dtype(np.float16),
    "f32": np.dtype(np.float32),
}


@frozen
class KVLayout:
    """Where a chunk holds what. One chunk is one buffer for `CHUNK_POSITIONS` positions of all layers.

    For each layer in turn: keys (kv_heads, CHUNK_POSITIONS, key_width), then values (kv_heads, CHUNK_POSITIONS,
    value_width), both of ``dtype``, each starting at a multiple of 64 bytes.
    """

    type: KVType
    layers: tuple[tuple[int, int, int], ...]
    """By layer: kv_heads, key_width, value_width."""

    @classmethod
    def of(cls, attentions: Sequence[Attention], kv_type: KVType) -> KVLayout:
        return cls(kv_type, tuple((a.kv_heads, a.key_width, a.value_width) for a in attentions))

    @property
    def dtype(self) -> np.dtype[np.float16] | np.dtype[np.float32]:
        return _DTYPES[self.type]

    def offsets(self) -> tuple[tuple[int, int], ...]:
        """By layer: byte offsets of the keys and of the values inside a chunk."""
        out, at = [], 0
        for heads, key_width, value_width in self.layers:
            pair = []
            for width in (key_width, value_width):
                pair.append(at)
                at += -(-heads * CHUNK_POSITIONS * width * self.dtype.itemsize // 64) * 64
            out.append((pair[0], pair[1]))
        return tuple(out)

    @property
    def chunk_bytes(self) -> int:
        per_width = [h * CHUNK_POSITIONS * w * self.dtype.itemsize for h, k, v in self.layers for w in (k, v)]
        return sum(-(-n // 64) * 64 for n in per_width)

    @property
    def bytes_per_token(self) -> int:
        return sum(h * (k + v) for h, k, v in self.layers) * self.dtype.itemsize


@define(eq=False)
class KVCache:
    """The chunks of one sequence, charged to a budget as they are made."""

    layout: KVLayout
    budget: MemoryBudget | None = field(default=None, repr=False)
    chunks: list[NDArray[np.uint8]] = field(factory=list, init=False, repr=False)
    _charges: list[Charge] = field(factory=list, init=False, repr=False)

    @property
    def capacity(self) -> int:
        """Positions that can be written without growing."""
        return len(self.chunks) * CHUNK_POSITIONS

    def reserve(self, positions: int) -> None:
        """Grow by whole chunks, uint8 (chunk_bytes,), page-aligned, until ``positions`` fit.

        Raises BudgetExceededError, and then is what it was.
        """
        before = len(self.chunks)
        try:
            while self.capacity < positions:
                if self.budget is not None:
                    self._charges.append(self.budget.charge("kv cache", self.layout.chunk_bytes))
                self.chunks.append(allocate(self.layout.chunk_bytes))
        except BaseException:
            self.truncate(before * CHUNK_POSITIONS)
            raise

    def truncate(self, positions: int) -> None:
        """Drop the chunks that no position below ``positions`` needs."""
        keep = -(-positions // CHUNK_POSITIONS)
        del self.chunks[keep:]
        for charge in self._charges[keep:]:
            charge.release()
        del self._charges[keep:]
