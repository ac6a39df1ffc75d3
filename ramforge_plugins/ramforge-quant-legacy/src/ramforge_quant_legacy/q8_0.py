"""Q8_0: 32 values in 34 bytes, a scale and int8 steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_legacy._fields import half


class Q8_0(QuantFormat):
    """Bytes: d f16, q 32 int8. value = d * q."""

    name = "q8_0"
    ggml_type = 8
    block_values = 32
    block_bytes = 34

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        q = blocks[:, 2:].view(np.int8)
        return half(blocks, 0) * q.astype(np.float32)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_legacy._kernels", self.name, "q8_32")
