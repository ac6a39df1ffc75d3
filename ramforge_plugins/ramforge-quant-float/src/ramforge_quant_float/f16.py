"""F16: one IEEE half in 2 bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels


class F16(QuantFormat):
    name = "f16"
    ggml_type = 1
    block_values = 1
    block_bytes = 2

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Rounds to nearest even; values beyond the halves become infinite."""
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(values, "<f2").view(np.uint8)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_float._kernels", self.name, "f32")
