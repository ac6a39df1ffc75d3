"""IQ2_S: 256 values in 82 bytes, points of 8 values out of 1024, a scale for each 16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_iq._fields import bits, grid, half, scaled, signs


class IQ2_S(QuantFormat):
    """Bytes: d f16, low 8 bits of 32 point numbers, sign bits 32, high 2 bits 8, 16 scales s of 4 bits.

    value = d * (2s + 1) / 8 * (+- point).
    """

    name = "iq2_s"
    ggml_type = 22
    block_values = 256
    block_bytes = 82

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        point = blocks[:, 2:34] | bits(blocks[:, 66:74], (0, 2, 4, 6), 3) << 8
        scale = (
            half(blocks, 0) * (2 * bits(blocks[:, 74:], (0, 4), 15) + 1).astype(np.float32) / np.float32(8)
        )
        sign = signs(blocks[:, 34:66])
        return scaled(scale, grid("iq2_s")[point].reshape(sign.shape) * sign)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_iq._kernels", self.name, "q8_256")
