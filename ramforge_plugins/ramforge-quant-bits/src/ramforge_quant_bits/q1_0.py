"""Q1_0: 128 values in 18 bytes, a scale and a sign each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels


class Q1_0(QuantFormat):
    """Bytes: d f16, bits 16, lowest first. value = d where the bit is set, else -d."""

    name = "q1_0"
    ggml_type = 41
    block_values = 128
    block_bytes = 18

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        d = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
        bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
        return np.where(bits, d, -d)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_bits._kernels", self.name, "q8_32")
