"""Q5_0: 32 values in 22 bytes, a scale and 5-bit steps around zero."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_legacy._fields import fifth_bits, half, nibbles


class Q5_0(QuantFormat):
    """Bytes: d f16, fifth bits u32, nibbles 16. value = d * (q - 16)."""

    name = "q5_0"
    ggml_type = 6
    block_values = 32
    block_bytes = 22

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        q = (nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6])).astype(np.float32) - np.float32(16)
        values: NDArray[np.float32] = half(blocks, 0) * q
        return values

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_legacy._kernels", self.name, "q8_32")
