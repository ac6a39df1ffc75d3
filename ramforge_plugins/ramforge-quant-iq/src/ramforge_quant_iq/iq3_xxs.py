"""IQ3_XXS: 256 values in 98 bytes, points of 4 values out of 256, a scale for each 32."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_iq._fields import bits, grid, half, scaled, signs_with_parity, words


class IQ3_XXS(QuantFormat):
    """Bytes: d f16, 64 point numbers, then for each 32 values u32: 4 times 7 sign bits, scale s 4.

    value = d * (2s + 1) / 4 * (+- point).
    """

    name = "iq3_xxs"
    ggml_type = 18
    block_values = 256
    block_bytes = 98

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        rest = words(blocks, 66, 98, "<u4")
        scale = half(blocks, 0) * (2 * (rest >> 28) + 1).astype(np.float32) / np.float32(4)
        sign = signs_with_parity(bits(rest, (0, 7, 14, 21), 127))
        return scaled(scale, grid("iq3_xxs")[blocks[:, 2:66]].reshape(sign.shape) * sign)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_iq._kernels", self.name, "q8_256")
