"""What both formats share: the scale at the end of a block, and rounding to three values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def scale(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The float16 in the last two bytes, as float32 (n, 1)."""
    return np.ascontiguousarray(blocks[:, -2:]).view("<f2").astype(np.float32)


def ternary(values: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Round float32 (n, 256) to steps 0, 1, 2 uint8 (n, 256) and scales, as the two bytes of a float16 (n, 2)."""
    largest = np.abs(values).max(axis=1, keepdims=True)
    steps = np.rint(values / np.where(largest > 0, largest, np.float32(1))) + 1
    return steps.astype(np.uint8), largest.astype("<f2").view(np.uint8)
