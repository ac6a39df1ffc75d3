"""The quant formats whose values come from tables: IQ1_S to IQ3_S (points of a lattice), IQ4_NL and IQ4_XS (steps)."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.hookspecs import hookimpl
from ramforge_core.quant import QuantFormat
from ramforge_quant_iq.iq1_m import IQ1_M
from ramforge_quant_iq.iq1_s import IQ1_S
from ramforge_quant_iq.iq2_s import IQ2_S
from ramforge_quant_iq.iq2_xs import IQ2_XS
from ramforge_quant_iq.iq2_xxs import IQ2_XXS
from ramforge_quant_iq.iq3_s import IQ3_S
from ramforge_quant_iq.iq3_xxs import IQ3_XXS
from ramforge_quant_iq.iq4_nl import IQ4_NL
from ramforge_quant_iq.iq4_xs import IQ4_XS


@hookimpl
def ramforge_quant_formats() -> Sequence[QuantFormat]:
    return (IQ1_S(), IQ1_M(), IQ2_XXS(), IQ2_XS(), IQ2_S(), IQ3_XXS(), IQ3_S(), IQ4_NL(), IQ4_XS())
