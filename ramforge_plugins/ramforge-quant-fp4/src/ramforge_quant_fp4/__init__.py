"""The quant formats of 4-bit floating-point numbers: MXFP4 and NVFP4."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.quant import QuantFormat
from ramforge_quant_fp4.mxfp4 import MXFP4
from ramforge_quant_fp4.nvfp4 import NVFP4


@hookimpl
def ramforge_quant_formats() -> Sequence[QuantFormat]:
    return (MXFP4(), NVFP4())
