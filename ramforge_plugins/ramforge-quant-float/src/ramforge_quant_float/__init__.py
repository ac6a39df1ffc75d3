"""F32, F16 and BF16: tensors that are not quantized, kept at their stored size."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.quant import QuantFormat
from ramforge_quant_float.bf16 import BF16
from ramforge_quant_float.f16 import F16
from ramforge_quant_float.f32 import F32


@hookimpl
def ramforge_quant_formats() -> Sequence[QuantFormat]:
    return (F32(), F16(), BF16())
