"""Fields that several of these formats share. Blocks are uint8 (n, block_bytes)."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from ramforge_quant_iq.grids import GRIDS

STEPS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""The 16 values of IQ4_NL and IQ4_XS. Source: kvalues_iq4nl of ggml, ggml-common.h."""


@cache
def grid(name: str) -> NDArray[np.float32]:
    """The points of a grid, float32 (points, values of a point)."""
    return np.array(GRIDS[name].points(), np.float32)


def half(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """The IEEE half at byte ``at``, as float32 (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def words(blocks: NDArray[np.uint8], start: int, stop: int, dtype: str) -> NDArray[np.uint32]:
    """Bytes start..stop as little-endian integers ``<u2`` or ``<u4``, widened to uint32 (n, words)."""
    return np.ascontiguousarray(blocks[:, start:stop]).view(dtype).astype(np.uint32)


def bits(packed: NDArray[np.integer], shifts: tuple[int, ...], mask: int) -> NDArray[np.uint32]:
    """The fields at ``shifts`` of each integer, one after the other: (n, k) to uint32 (n, k * len(shifts))."""
    fields: NDArray[np.uint32] = packed.astype(np.uint32)[:, :, None] >> np.array(shifts, np.uint32)
    fields = fields & np.uint32(mask)
    return fields.reshape(len(packed), packed.shape[1] * len(shifts))


def signs(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """uint8 (n, bytes) to float32 (n, 8 * bytes): -1 where the bit is set, else 1."""
    negative = np.unpackbits(packed, axis=1, bitorder="little").astype(np.float32)
    factors: NDArray[np.float32] = np.float32(1) - np.float32(2) * negative
    return factors


def signs_with_parity(seven: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Seven sign bits each, the eighth makes their number even: uint32 (n, k) to float32 (n, 8 * k), -1 or 1."""
    parity = seven ^ seven >> 4
    parity ^= parity >> 2
    parity ^= parity >> 1
    return signs((seven | (parity & 1) << 7).astype(np.uint8))


def scaled(scales: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scales float32 (n, groups) times the values of equal groups, to float32 (n, values)."""
    n, groups = scales.shape
    product: NDArray[np.float32] = scales[:, :, None] * values.reshape(
        n, groups, values.size // max(n, 1) // groups
    )
    return product.reshape(n, -1) if n else np.empty((0, 256), np.float32)
