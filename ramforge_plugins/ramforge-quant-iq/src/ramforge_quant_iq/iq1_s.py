"""IQ1_S: 256 values in 50 bytes, points of three levels and a shift for each 32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_iq._fields import bits, grid, half, scaled, words


class IQ1_S(QuantFormat):
    """Bytes: d f16, low 8 bits of 32 point numbers, then for each 32 values u16: 4 times 3 high bits, scale s 3,
    sign of the shift 1.

    value = d * (2s + 1) * (point +- 1/8).
    """

    name = "iq1_s"
    ggml_type = 19
    block_values = 256
    block_bytes = 50

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        qh = words(blocks, 34, 50, "<u2")
        point = blocks[:, 2:34] | bits(qh, (0, 3, 6, 9), 7) << 8
        shift = np.where(qh & 0x8000, np.float32(-0.125), np.float32(0.125)).repeat(4, axis=1)
        scale = half(blocks, 0) * (2 * (qh >> 12 & 7) + 1).astype(np.float32)
        return scaled(scale, grid("iq1_s")[point] + shift[:, :, None])

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_iq._kernels", self.name, "q8_256")
