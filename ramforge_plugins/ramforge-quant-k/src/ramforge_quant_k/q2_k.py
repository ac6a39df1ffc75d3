"""Q2_K: 256 values in 84 bytes, 4-bit scales and minima of 16 groups, 2-bit steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_k._fields import half, runs


class Q2_K(QuantFormat):
    """Bytes: scales (low) and minima (high nibble) 16, q 64, d f16, dmin f16. value = d * scale * q - dmin * min."""

    name = "q2_k"
    ggml_type = 10
    block_values = 256
    block_bytes = 84

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        q = runs(blocks[:, 16:80], 2, 32).reshape(len(blocks), 16, 16).astype(np.float32)
        scale = (blocks[:, :16, None] & np.uint8(15)).astype(np.float32)
        minimum = (blocks[:, :16, None] >> np.uint8(4)).astype(np.float32)
        values: NDArray[np.float32] = half(blocks, 80) * scale * q - half(blocks, 82) * minimum
        return values.reshape(len(blocks), 256)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_k._kernels", self.name, "q8_256")
