"""TQ1_0: 256 ternary values in 54 bytes, five to a byte and one scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat, QuantKernels, cffi_kernels
from ramforge_quant_ternary._ternary import scale, ternary

POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
RUNS = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
"""First byte, byte after the last one, and digits in each byte. All first digits of a run come first."""


class TQ1_0(QuantFormat):
    """Bytes: q 52, d f16. Byte b is a fraction in base 3: its digit n is ``(b * 3^n mod 256) * 3 / 256``.

    value = d * (digit - 1). Source: ggml, ggml-common.h block_tq1_0 and ggml-quants.c dequantize_row_tq1_0.
    """

    name = "tq1_0"
    ggml_type = 34
    block_values = 256
    block_bytes = 54

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        runs = [
            (blocks[:, None, first:end] * POWERS[:digits]).reshape(len(blocks), (end - first) * digits)
            for first, end, digits in RUNS
        ]
        rest = np.concatenate(runs, axis=1)  # b * 3^n mod 256: uint8 wraps around
        digit = (rest.astype(np.uint16) * np.uint16(3) >> np.uint16(8)).astype(np.float32)
        values: NDArray[np.float32] = scale(blocks) * (digit - np.float32(1))
        return values

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        q, d = ternary(values)
        packed, start = [], 0
        for first, end, digits in RUNS:
            run = q[:, start : start + digits * (end - first)].reshape(len(q), digits, end - first)
            number = (run * POWERS[::-1][:digits].astype(np.uint16)).sum(axis=1)  # the first digit weighs 81
            packed.append(((number * 256 + 242) // 243).astype(np.uint8))  # up, so that no digit is lost
            start += digits * (end - first)
        return np.concatenate([*packed, d], axis=1)

    @property
    def kernels(self) -> QuantKernels | None:
        return cffi_kernels("ramforge_quant_ternary._kernels", self.name, "q8_256")
