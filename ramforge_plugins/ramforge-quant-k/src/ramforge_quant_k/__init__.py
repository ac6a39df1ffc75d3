"""The K-quant formats of 256 values: Q2_K to Q6_K, and Q8_K, which no real file holds."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.quant import QuantFormat
from ramforge_quant_k.q2_k import Q2_K
from ramforge_quant_k.q3_k import Q3_K
from ramforge_quant_k.q4_k import Q4_K
from ramforge_quant_k.q5_k import Q5_K
from ramforge_quant_k.q6_k import Q6_K
from ramforge_quant_k.q8_k import Q8_K


@hookimpl
def ramforge_quant_formats() -> Sequence[QuantFormat]:
    return (Q2_K(), Q3_K(), Q4_K(), Q5_K(), Q6_K(), Q8_K())
