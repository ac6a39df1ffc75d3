"""BF16: the upper half of an IEEE single in 2 bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels


class BF16(QuantFormat):
    name = "bf16"
    ggml_type = 30
    block_values = 1
    block_bytes = 2

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_float._kernels", self.name, "f32")
