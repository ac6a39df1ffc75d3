"""Q4_1: 32 values in 20 bytes, a scale, a minimum and 4-bit steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_legacy._fields import half, nibbles


class Q4_1(QuantFormat):
    """Bytes: d f16, m f16, nibbles 16. value = d * q + m."""

    name = "q4_1"
    ggml_type = 3
    block_values = 32
    block_bytes = 20

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        q = nibbles(blocks[:, 4:])
        return half(blocks, 0) * q.astype(np.float32) + half(blocks, 2)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_legacy._kernels", self.name, "q8_32")
