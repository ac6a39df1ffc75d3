"""`ramforge_core.rope` against numbers worked out by hand and the formulas of the papers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ramforge_core.graph import Rope, RopeScaling, Value
from ramforge_core.rope import rope_factors, rope_frequencies


def rope(width=8, base=10000.0, scaling=None):
    value = Value("x", width)
    return Rope(value, value, width, width, "half", base, scaling)


def test_plain_frequencies():
    frequencies, magnitude = rope_frequencies(rope())
    assert frequencies.dtype == np.float32
    np.testing.assert_allclose(frequencies, [1, 0.1, 0.01, 0.001], rtol=1e-6)
    assert magnitude == 1


def test_factors_divide():
    frequencies, _ = rope_frequencies(rope(), np.float32([1, 2, 4, 8]))
    np.testing.assert_allclose(frequencies, [1, 0.05, 0.0025, 0.000125], rtol=1e-6)


def test_linear_divides_all():
    frequencies, magnitude = rope_frequencies(rope(scaling=RopeScaling("linear", 4.0)))
    np.testing.assert_allclose(frequencies, [0.25, 0.025, 0.0025, 0.00025], rtol=1e-6)
    assert magnitude == 1


def test_yarn_keeps_the_fast_and_stretches_the_slow():
    width, base, original, factor = 64, 10000.0, 4096, 8.0
    scaling = RopeScaling("yarn", factor, original, attention_factor=1.2)
    frequencies, magnitude = rope_frequencies(rope(width, base, scaling))
    plain = base ** (-np.arange(width // 2) * 2 / width)
    turns = original * plain / (2 * math.pi)  # of a pair over the original context
    np.testing.assert_allclose(frequencies[turns > 40], plain[turns > 40], rtol=1e-6)
    np.testing.assert_allclose(frequencies[turns < 0.7], plain[turns < 0.7] / factor, rtol=1e-6)
    between = (turns < 25) & (turns > 1.3)
    assert between.sum() > 5
    assert (frequencies[between] < plain[between]).all()
    assert (frequencies[between] > plain[between] / factor).all()
    assert magnitude == pytest.approx(1.2)


def test_yarn_ramp_worked_out_by_hand():
    """8 pairs, base 10000: the pair with n turns over 32 positions is 8 log(32 / (2 pi n)) / log(10000)."""
    scaling = RopeScaling("yarn", 4.0, 32, beta_fast=32.0, beta_slow=1.0)
    frequencies, _ = rope_frequencies(rope(16, 10000.0, scaling))
    plain = 10000.0 ** (-np.arange(8) / 8)
    # 32 turns: pair -1.6, so the ramp begins at 0; one turn: pair 1.41, so it ends at 2
    kept = np.array([1, 0.5, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(frequencies, plain * kept + plain / 4 * (1 - kept), rtol=1e-6)


def test_longrope_multiplies_and_takes_the_divisors_of_its_context():
    value = Value("x", 8)
    scaling = RopeScaling("longrope", 1.0, 4096, attention_factor=1.19)
    longrope = Rope(value, value, 8, 8, "half", 10000.0, scaling, "short", "long")
    assert [rope_factors(longrope, n) for n in (1, 4096, 4097)] == ["short", "short", "long"]
    frequencies, magnitude = rope_frequencies(longrope, np.float32([1, 2, 4, 8]))
    np.testing.assert_allclose(frequencies, [1, 0.05, 0.0025, 0.000125], rtol=1e-6)
    assert magnitude == pytest.approx(1.19)
    assert rope_factors(rope(), 10**6) is None
