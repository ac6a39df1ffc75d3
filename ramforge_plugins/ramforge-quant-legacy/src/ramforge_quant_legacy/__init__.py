"""The quant formats of 32 values: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.quant import QuantFormat
from ramforge_quant_legacy.q4_0 import Q4_0
from ramforge_quant_legacy.q4_1 import Q4_1
from ramforge_quant_legacy.q5_0 import Q5_0
from ramforge_quant_legacy.q5_1 import Q5_1
from ramforge_quant_legacy.q8_0 import Q8_0


@hookimpl
def ramforge_quant_formats() -> Sequence[QuantFormat]:
    return (Q4_0(), Q4_1(), Q5_0(), Q5_1(), Q8_0())
