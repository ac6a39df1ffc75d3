"""TQ2_0: 256 ternary values in 66 bytes, two bits each and one scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_ternary._ternary import scale, ternary

SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


class TQ2_0(QuantFormat):
    """Bytes: q 64, d f16. Byte l of a run of 32 holds values l, l + 32, l + 64, l + 96. value = d * (q - 1).

    Source: ggml, ggml-common.h block_tq2_0 and ggml-quants.c dequantize_row_tq2_0.
    """

    name = "tq2_0"
    ggml_type = 35
    block_values = 256
    block_bytes = 66

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        q = blocks[:, :64].reshape(-1, 2, 1, 32) >> SHIFTS & np.uint8(3)
        values: NDArray[np.float32] = scale(blocks) * (q.reshape(-1, 256).astype(np.float32) - np.float32(1))
        return values

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        q, d = ternary(values)
        packed = np.bitwise_or.reduce(q.reshape(-1, 2, 4, 32) << SHIFTS, axis=2)
        return np.concatenate([packed.reshape(-1, 64), d], axis=1)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_ternary._kernels", self.name, "q8_256")
