"""Rotation frequencies of rotary position embeddings, shared by all backends. Not the rotation itself."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ramforge_core.graph import Rope, RopeScaling


def rope_factors(rope: Rope, context: int) -> str | None:
    """Name of the weight that divides the frequencies in a program of so many positions; None if none does."""
    if rope.long_factors is not None and rope.scaling is not None and context > rope.scaling.original_context:
        return rope.long_factors
    return rope.factors


def rope_frequencies(
    rope: Rope, factors: NDArray[np.float32] | None = None
) -> tuple[NDArray[np.float32], float]:
    """Angle per position of every pair, and the magnitude that cos and sin are multiplied by.

    factors : float32 (rotary_width / 2,), the decoded weight that `rope_factors` names; each divides the frequency of
        its pair.
    Returns float32 (rotary_width / 2,), in radians per position, and the magnitude (1.0 but for yarn and longrope).

    A backend turns pair i of the token at ``position`` by ``float64(position) * float64(frequencies[i])`` and
    rounds cos and sin to float32 only after the multiplication with the magnitude.
    """
    pairs = rope.rotary_width // 2
    frequencies = float(rope.base) ** (-np.arange(pairs, dtype=np.float64) * 2 / rope.rotary_width)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    magnitude = 1.0
    if rope.scaling is not None:
        if rope.scaling.kind == "linear":
            frequencies = frequencies / rope.scaling.factor
        elif rope.scaling.kind == "longrope":
            magnitude = rope.scaling.attention_factor
        else:
            kept = _yarn_kept_share(rope.scaling, rope.rotary_width, float(rope.base))
            frequencies = frequencies / rope.scaling.factor * (1 - kept) + frequencies * kept
            magnitude = rope.scaling.attention_factor
    return frequencies.astype(np.float32), magnitude


def _yarn_kept_share(scaling: RopeScaling, width: int, base: float) -> NDArray[np.float64]:
    """Share of the unstretched frequency by pair: 1 for the fastest pairs, 0 for the slowest, a ramp between.

    The ramp begins and ends at whole pairs (ggml_rope_yarn_corr_dims in ggml.c; transformers with ``truncate``).
    """

    def pair_with_turns(turns: float) -> float:
        """Which pair makes this many turns over the original context."""
        return width * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(pair_with_turns(scaling.beta_fast)))
    high = min(width - 1, math.ceil(pair_with_turns(scaling.beta_slow)))
    ramp = (np.arange(width // 2) - low) / max(high - low, 0.001)
    return 1 - np.clip(ramp, 0, 1)
