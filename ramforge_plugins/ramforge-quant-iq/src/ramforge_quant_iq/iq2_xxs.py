"""IQ2_XXS: 256 values in 66 bytes, points of 8 values out of 256, a scale for each 32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_iq._fields import bits, grid, half, scaled, signs_with_parity, words


class IQ2_XXS(QuantFormat):
    """Bytes: d f16, then for each 32 values 4 point numbers and u32: 4 times 7 sign bits, scale s 4.

    value = d * (2s + 1) / 8 * (+- point).
    """

    name = "iq2_xxs"
    ggml_type = 16
    block_values = 256
    block_bytes = 66

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        packed = words(blocks, 2, 66, "<u4")
        point, rest = bits(packed[:, ::2], (0, 8, 16, 24), 255), packed[:, 1::2]
        scale = half(blocks, 0) * (2 * (rest >> 28) + 1).astype(np.float32) / np.float32(8)
        sign = signs_with_parity(bits(rest, (0, 7, 14, 21), 127))
        return scaled(scale, grid("iq2_xxs")[point].reshape(sign.shape) * sign)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_iq._kernels", self.name, "q8_256")
