"""F32: one IEEE single in 4 bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels


class F32(QuantFormat):
    name = "f32"
    ggml_type = 0
    block_values = 1
    block_bytes = 4

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.ascontiguousarray(values, "<f4").view(np.uint8)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_float._kernels", self.name, "f32")
