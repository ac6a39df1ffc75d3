"""IQ4_NL: 32 values in 18 bytes, a scale and 16 uneven steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_iq._fields import STEPS, half


class IQ4_NL(QuantFormat):
    """Bytes: d f16, nibbles 16 (all low ones first). value = d * STEPS[q]."""

    name = "iq4_nl"
    ggml_type = 20
    block_values = 32
    block_bytes = 18

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        q = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
        values: NDArray[np.float32] = half(blocks, 0) * STEPS[q]
        return values

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_iq._kernels", self.name, "q8_32")
