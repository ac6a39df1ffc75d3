"""Fields that both formats share. Blocks are uint8 (n, block_bytes)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""The numbers of a 4-bit float, doubled.

Source: kvalues_mxfp4 of ggml, ggml-common.h; OCP Microscaling Formats 1.0, E2M1."""


def numbers(packed: NDArray[np.uint8], width: int) -> NDArray[np.float32]:
    """4-bit floats in runs of ``width`` bytes, low nibbles first: uint8 (n, bytes) to float32 (n, runs, 2 width)."""
    n, size = packed.shape
    runs = packed.reshape(n, size // width, width)
    values: NDArray[np.float32] = E2M1[np.concatenate([runs & np.uint8(15), runs >> np.uint8(4)], axis=2)]
    return values
