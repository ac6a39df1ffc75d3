"""Q4_0: 32 values in 18 bytes, a scale and 4-bit steps around zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_legacy._fields import half, nibbles


class Q4_0(QuantFormat):
    """Bytes: d f16, nibbles 16. value = d * (q - 8)."""

    name = "q4_0"
    ggml_type = 2
    block_values = 32
    block_bytes = 18

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        values: NDArray[np.float32] = half(blocks, 0) * (
            nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)
        )
        return values

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_legacy._kernels", self.name, "q8_32")
