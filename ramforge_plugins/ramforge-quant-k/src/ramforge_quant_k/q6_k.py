"""Q6_K: 256 values in 210 bytes, int8 scales of 16 groups, 6-bit steps around zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_k._fields import half, runs


class Q6_K(QuantFormat):
    """Bytes: low nibbles 128, high bits 64, scales 16 int8, d f16. value = d * scale * (q - 32)."""

    name = "q6_k"
    ggml_type = 14
    block_values = 256
    block_bytes = 210

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        low, high = runs(blocks[:, :128], 4, 64), runs(blocks[:, 128:192], 2, 32)
        q = (low | high << np.uint8(4)).reshape(len(blocks), 16, 16).astype(np.float32) - np.float32(32)
        scale = blocks[:, 192:208].view(np.int8).astype(np.float32)[:, :, None]
        values: NDArray[np.float32] = half(blocks, 208) * scale * q
        return values.reshape(len(blocks), 256)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_k._kernels", self.name, "q8_256")
