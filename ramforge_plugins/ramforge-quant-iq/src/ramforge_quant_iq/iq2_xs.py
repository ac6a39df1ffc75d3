"""IQ2_XS: 256 values in 74 bytes, points of 8 values out of 512, a scale for each 16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_iq._fields import bits, grid, half, scaled, signs_with_parity, words


class IQ2_XS(QuantFormat):
    """Bytes: d f16, 32 u16 of 9 bits point number and 7 sign bits, 16 scales s of 4 bits.

    value = d * (2s + 1) / 8 * (+- point).
    """

    name = "iq2_xs"
    ggml_type = 17
    block_values = 256
    block_bytes = 74

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        packed = words(blocks, 2, 66, "<u2")
        scale = (
            half(blocks, 0) * (2 * bits(blocks[:, 66:], (0, 4), 15) + 1).astype(np.float32) / np.float32(8)
        )
        sign = signs_with_parity(bits(packed, (9,), 127))
        return scaled(scale, grid("iq2_xs")[packed & 511].reshape(sign.shape) * sign)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_iq._kernels", self.name, "q8_256")
