"""Q3_K: 256 values in 110 bytes, 6-bit scales of 16 groups, 3-bit steps around zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_k._fields import half, runs


class Q3_K(QuantFormat):
    """Bytes: high bits 32, low bits 64, scales 12, d f16. value = d * (scale - 32) * (q - 4)."""

    name = "q3_k"
    ggml_type = 11
    block_values = 256
    block_bytes = 110

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        low, high = runs(blocks[:, 32:96], 2, 32), runs(blocks[:, :32], 1, 32)
        q = (low | high << np.uint8(2)).reshape(len(blocks), 16, 16).astype(np.float32) - np.float32(4)
        packed = runs(blocks[:, 96:104], 4, 8) | runs(blocks[:, 104:108], 2, 4) << np.uint8(4)
        scale = packed[:, :, None].astype(np.float32) - np.float32(32)
        values: NDArray[np.float32] = half(blocks, 108) * scale * q
        return values.reshape(len(blocks), 256)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_k._kernels", self.name, "q8_256")
