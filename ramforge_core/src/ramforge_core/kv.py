"""The KV cache: keys and values of past tokens, in chunks that grow with the text and are read in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ramforge_core.budget import Charge, MemoryBudget
from ramforge_core.errors import ParameterError
from ramforge_core.graph import Attention
from ramforge_core.memory import allocate

CHUNK_POSITIONS = 256
"""Positions in a chunk. A multiple of every tile that a backend's attention works in."""

KVType = Literal["f16", "f32", "q8_0"]

KV_TYPES: tuple[KVType, ...] = ("f16", "f32", "q8_0")
_BLOCK, _BLOCK_BYTES = 32, 34


@frozen
class KVLayout:
    """Where a chunk holds what. One chunk is one buffer for `CHUNK_POSITIONS` positions of all layers.

    For each layer in turn: keys (kv_heads, CHUNK_POSITIONS, row), then values in the same way, each starting at a
    multiple of 64 bytes. A row is one head's values at one position: ``f16`` or ``f32`` numbers, or ``q8_0`` blocks
    as in GGML: for 32 values a float16 d and 32 int8 q, value = d * q. There d = max|x| / 127 before it is rounded to
    float16, and q = x / d to nearest even. Raises ParameterError where a width is not whole blocks.
    """

    type: KVType
    layers: tuple[tuple[int, int, int], ...]
    """By layer: kv_heads, key_width, value_width."""

    def __attrs_post_init__(self) -> None:
        if self.type == "q8_0" and (odd := [w for _, *ws in self.layers for w in ws if w % _BLOCK]):
            raise ParameterError(
                f"a KV cache of type q8_0 needs heads of a multiple of {_BLOCK} values, but this model has heads of "
                f"{odd[0]}; take f16"
            )

    @classmethod
    def of(cls, attentions: Sequence[Attention], kv_type: KVType) -> KVLayout:
        return cls(kv_type, tuple((a.kv_heads, a.key_width, a.value_width) for a in attentions))

    def row_bytes(self, width: int) -> int:
        """Bytes of one head's keys or values at one position."""
        return (
            width // _BLOCK * _BLOCK_BYTES
            if self.type == "q8_0"
            else width * (2 if self.type == "f16" else 4)
        )

    def pack(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        """float32 (..., width) to uint8 (..., row_bytes), as the cache holds them."""
        if self.type != "q8_0":
            dtype = np.float16 if self.type == "f16" else np.float32
            return np.ascontiguousarray(rows, dtype).view(np.uint8)
        blocks = rows.reshape(*rows.shape[:-1], -1, _BLOCK)
        d = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
        q = np.clip(np.rint(blocks / np.where(d == 0, np.float32(1), d)), -127, 127).astype(np.int8)
        packed = np.concatenate([d.astype(np.float16).view(np.uint8), q.view(np.uint8)], axis=-1)
        return packed.reshape(*rows.shape[:-1], -1)

    def unpack(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8 (..., row_bytes) to float32 (..., width)."""
        rows = np.ascontiguousarray(rows)
        if self.type != "q8_0":
            return rows.view(np.float16 if self.type == "f16" else np.float32).astype(np.float32)
        blocks = rows.reshape(*rows.shape[:-1], -1, _BLOCK_BYTES)
        d = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32)
        values = d * blocks[..., 2:].view(np.int8).astype(np.float32)
        return values.reshape(*rows.shape[:-1], -1)

    def offsets(self) -> tuple[tuple[int, int], ...]:
        """By layer: byte offsets of the keys and of the values inside a chunk."""
        out, at = [], 0
        for heads, key_width, value_width in self.layers:
            values = at + self._part_bytes(heads, key_width)
            out.append((at, values))
            at = values + self._part_bytes(heads, value_width)
        return tuple(out)

    def _part_bytes(self, heads: int, width: int) -> int:
        return -(-heads * CHUNK_POSITIONS * self.row_bytes(width) // 64) * 64

    @property
    def chunk_bytes(self) -> int:
        return sum(self._part_bytes(h, w) for h, *widths in self.layers for w in widths)

    @property
    def bytes_per_token(self) -> int:
        return sum(h * self.row_bytes(w) for h, *widths in self.layers for w in widths)


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

    def copy_from(self, other: KVCache, positions: int) -> None:
        """Hold what ``other``, of the same layout, holds below ``positions``. Raises as `reserve`."""
        self.reserve(positions)
        for mine, theirs in zip(self.chunks, other.chunks[: -(-positions // CHUNK_POSITIONS)], strict=False):
            mine[:] = theirs

    def truncate(self, positions: int) -> None:
        """Drop the chunks that no position below ``positions`` needs."""
        keep = -(-positions // CHUNK_POSITIONS)
        del self.chunks[keep:]
        for charge in self._charges[keep:]:
            charge.release()
        del self._charges[keep:]
