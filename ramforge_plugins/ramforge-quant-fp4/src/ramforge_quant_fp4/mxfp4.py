"""MXFP4: 32 values in 17 bytes, a power of two and 4-bit floats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_fp4._fields import numbers


class MXFP4(QuantFormat):
    """Bytes: exponent e, nibbles 16 (all low ones first). value = 2^(e - 128) * E2M1[q]."""

    name = "mxfp4"
    ggml_type = 39
    block_values = 32
    block_bytes = 17

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        d = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
        values: NDArray[np.float32] = d * numbers(blocks[:, 1:], 16).reshape(len(blocks), 32)
        return values

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_fp4._kernels", self.name, "q8_32")
