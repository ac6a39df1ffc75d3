"""Q5_K: 256 values in 176 bytes, 6-bit scales and minima of 8 groups, 5-bit steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_k._fields import half, runs, scales_and_minima


class Q5_K(QuantFormat):
    """Bytes: d f16, dmin f16, scales and minima 12, fifth bits 32, nibbles 128. value = d * scale * q - dmin * min."""

    name = "q5_k"
    ggml_type = 13
    block_values = 256
    block_bytes = 176

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        steps = runs(blocks[:, 48:], 4, 32) | runs(blocks[:, 16:48], 1, 32) << np.uint8(4)
        q = steps.reshape(len(blocks), 8, 32).astype(np.float32)
        scale, minimum = scales_and_minima(blocks[:, 4:16])
        values: NDArray[np.float32] = half(blocks, 0) * scale * q - half(blocks, 2) * minimum
        return values.reshape(len(blocks), 256)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_k._kernels", self.name, "q8_256")
