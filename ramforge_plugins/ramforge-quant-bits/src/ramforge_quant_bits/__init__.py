"""The quant formats of one or two bits and a scale: Q1_0 and Q2_0."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.quant import QuantFormat
from ramforge_quant_bits.q1_0 import Q1_0
from ramforge_quant_bits.q2_0 import Q2_0


@hookimpl
def ramforge_quant_formats() -> Sequence[QuantFormat]:
    return (Q1_0(), Q2_0())
