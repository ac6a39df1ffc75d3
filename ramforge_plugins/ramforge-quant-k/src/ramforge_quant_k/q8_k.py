"""Q8_K: 256 values in 292 bytes, one float32 scale and int8 steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels


class Q8_K(QuantFormat):
    """Bytes: d f32, q 256 int8, sums of 16 q each 16 int16 (not read). value = d * q."""

    name = "q8_k"
    ggml_type = 15
    block_values = 256
    block_bytes = 292

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        d = np.ascontiguousarray(blocks[:, :4]).view("<f4").astype(np.float32)
        return d * blocks[:, 4:260].view(np.int8).astype(np.float32)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_k._kernels", self.name, "q8_256")
