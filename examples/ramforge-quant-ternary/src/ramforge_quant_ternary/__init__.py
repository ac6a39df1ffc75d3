"""The ternary quant formats TQ1_0 and TQ2_0 for RAMforge."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.quant import QuantFormat
from ramforge_quant_ternary.tq1_0 import TQ1_0
from ramforge_quant_ternary.tq2_0 import TQ2_0


@hookimpl
def ramforge_quant_formats() -> Sequence[QuantFormat]:
    return [TQ1_0(), TQ2_0()]
