"""NVFP4: 64 values in 36 bytes, an 8-bit float as scale of each 16 and 4-bit floats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_fp4._fields import numbers


class NVFP4(QuantFormat):
    """Bytes: 4 scales E4M3 (the sign is ignored, 0x7f is zero), nibbles 32. value = scale / 2 * E2M1[q].

    In each 8 bytes of nibbles all low ones come first. A scale of the whole tensor, which a file may hold as a
    tensor of its own, is not part of the format.
    """

    name = "nvfp4"
    ggml_type = 40
    block_values = 64
    block_bytes = 36

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        scales = blocks[:, :4]
        exponent, mantissa = (scales >> 3 & 15).astype(np.int32), (scales & 7).astype(np.float32)
        half = np.where(
            exponent > 0,
            np.ldexp(np.float32(1) + mantissa / np.float32(8), exponent - 8),
            np.ldexp(mantissa, -10),
        )
        half[scales == 0x7F] = 0
        values: NDArray[np.float32] = half[:, :, None] * numbers(blocks[:, 4:], 8)
        return values.reshape(len(blocks), 64)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_fp4._kernels", self.name, "q8_32")
