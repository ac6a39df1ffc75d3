"""IQ1_M: 256 values in 56 bytes, points of three levels, a scale for each 16 and a shift for each 8."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_iq._fields import bits, grid, scaled, words


class IQ1_M(QuantFormat):
    """Bytes: low 8 bits of 32 point numbers, for each point a nibble of 3 high bits and shift sign, 4 u16 of scales.

    Each u16 holds four scales s of 3 bits, and in its top nibble a quarter of d, an f16, lowest quarter first.
    value = d * (2s + 1) * (point +- 1/8).
    """

    name = "iq1_m"
    ggml_type = 29
    block_values = 256
    block_bytes = 56

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        qh = bits(blocks[:, 32:48], (0, 4), 15)
        point = blocks[:, :32] | (qh & 7) << 8
        shift = np.where(qh & 8, np.float32(-0.125), np.float32(0.125))
        packed = words(blocks, 48, 56, "<u2")
        d = (packed >> 12 << np.array([0, 4, 8, 12], np.uint32)).sum(axis=1, dtype=np.uint16, keepdims=True)
        scale = d.view(np.float16).astype(np.float32) * (2 * bits(packed, (0, 3, 6, 9), 7) + 1).astype(
            np.float32
        )
        return scaled(scale, grid("iq1_s")[point] + shift[:, :, None])

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_iq._kernels", self.name, "q8_256")
