"""Q5_1: 32 values in 24 bytes, a scale, a minimum and 5-bit steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_legacy._fields import fifth_bits, half, nibbles


class Q5_1(QuantFormat):
    """Bytes: d f16, m f16, fifth bits u32, nibbles 16. value = d * q + m."""

    name = "q5_1"
    ggml_type = 7
    block_values = 32
    block_bytes = 24

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        q = nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8])
        return half(blocks, 0) * q.astype(np.float32) + half(blocks, 2)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_legacy._kernels", self.name, "q8_32")
