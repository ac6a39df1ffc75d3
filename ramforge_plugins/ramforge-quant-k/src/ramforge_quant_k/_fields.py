"""Fields that several of these formats share. Blocks are uint8 (n, block_bytes)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def half(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """The IEEE half at byte ``at``, as float32 (n, 1, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)[:, :, None]


def runs(packed: NDArray[np.uint8], bits: int, width: int) -> NDArray[np.uint8]:
    """Fields of ``bits`` bits, spread over runs of ``width`` bytes: all lowest fields of a run, then the next ones.

    uint8 (n, bytes) to (n, bytes * 8 / bits).
    """
    n, size = packed.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields: NDArray[np.uint8] = packed.reshape(n, size // width, 1, width) >> shifts & np.uint8(
        (1 << bits) - 1
    )
    return fields.reshape(n, size * 8 // bits)


def scales_and_minima(packed: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The 12 bytes of Q4_K and Q5_K: 6-bit scales and minima of 8 groups, each as float32 (n, 8, 1)."""
    low_scale, low_min, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([low_scale & 63, (high & 15) | (low_scale >> 6 << 4)], axis=1)
    minimum = np.concatenate([low_min & 63, (high >> 4) | (low_min >> 6 << 4)], axis=1)
    return scale.astype(np.float32)[:, :, None], minimum.astype(np.float32)[:, :, None]
