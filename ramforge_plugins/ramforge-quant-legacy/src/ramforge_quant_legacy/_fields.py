"""Fields that several of these formats share. Blocks are uint8 (n, block_bytes)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def half(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """The IEEE half at byte ``at``, as float32 (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8 (n, 16) to (n, 32): all low nibbles, then all high ones."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=1)


def fifth_bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8 (n, 4) to (n, 32): bit j of the 32, as 0 or 16."""
    bits: NDArray[np.uint8] = np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)
    return bits
