"""IQ3_S: 256 values in 110 bytes, points of 4 values out of 512, a scale for each 32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_iq._fields import bits, grid, half, scaled, signs


class IQ3_S(QuantFormat):
    """Bytes: d f16, low 8 bits of 64 point numbers, high bits 8, sign bits 32, 8 scales s of 4 bits.

    value = d * (2s + 1) * (+- point).
    """

    name = "iq3_s"
    ggml_type = 21
    block_values = 256
    block_bytes = 110

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        point = blocks[:, 2:66] | bits(blocks[:, 66:74], tuple(range(8)), 1) << 8
        scale = half(blocks, 0) * (2 * bits(blocks[:, 106:], (0, 4), 15) + 1).astype(np.float32)
        sign = signs(blocks[:, 74:106])
        return scaled(scale, grid("iq3_s")[point].reshape(sign.shape) * sign)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_iq._kernels", self.name, "q8_256")
