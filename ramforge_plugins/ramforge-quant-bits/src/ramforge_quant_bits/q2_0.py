"""Q2_0: 64 values in 18 bytes, a scale and one of four steps, -1 to 2."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels


class Q2_0(QuantFormat):
    """Bytes: d f16, 2-bit q 16, lowest bits first. value = d * (q - 1)."""

    name = "q2_0"
    ggml_type = 42
    block_values = 64
    block_bytes = 18

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
        q = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & np.uint8(3)
        values: NDArray[np.float32] = d * (q.reshape(len(blocks), 64).astype(np.float32) - np.float32(1))
        return values

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_bits._kernels", self.name, "q8_32")
