"""IQ4_XS: 256 values in 136 bytes, 6-bit scales of 8 groups, 16 uneven steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_iq._fields import STEPS, bits, half, scaled, words


class IQ4_XS(QuantFormat):
    """Bytes: d f16, high 2 bits of the scales u16, low 4 bits 4, nibbles 128. value = d * (scale - 32) * STEPS[q].

    Each 16 bytes of nibbles are 32 values, all low ones first.
    """

    name = "iq4_xs"
    ggml_type = 23
    block_values = 256
    block_bytes = 136

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        high = bits(words(blocks, 2, 4, "<u2"), tuple(range(0, 16, 2)), 3)
        scale = (bits(blocks[:, 4:8], (0, 4), 15) | high << 4).astype(np.float32) - np.float32(32)
        packed = blocks[:, 8:].reshape(len(blocks), 8, 16)
        q = np.concatenate([packed & 15, packed >> 4], axis=2)
        return scaled(half(blocks, 0) * scale, STEPS[q])

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_iq._kernels", self.name, "q8_256")
