"""Sampling: every filter by hand, and the field cases G01 to G09."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from ramforge_core.allotment import _SAMPLING_BYTES_PER_TOKEN
from ramforge_core.errors import NonFiniteError, ParameterError
from ramforge_core.sampling import Sampler, SamplingParameters, candidates, penalize

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def draws(n=2000, logits=LOGITS, history=(), **parameters):
    sampler = Sampler(
        SamplingParameters(
            **{"seed": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **parameters}
        )
    )
    return np.bincount([sampler(logits, history) for _ in range(n)], minlength=len(logits)) / n


def test_drawn_as_often_as_likely():
    assert np.abs(draws(20000) - np.exp(LOGITS)).max() < 0.015


def test_temperature_sharpens():
    cold = np.exp(LOGITS / 0.5)
    assert np.abs(draws(20000, temperature=0.5) - cold / cold.sum()).max() < 0.015


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-9])
def test_g01_zero_and_tiny_temperatures_take_the_largest_lowest_id(temperature):
    tie = np.array([1, 3, 3, 2], np.float32)
    assert draws(20, tie, temperature=temperature)[1] == 1


@pytest.mark.parametrize("temperature", [-1, math.nan, math.inf])
def test_g01_senseless_temperatures_are_refused(temperature):
    with pytest.raises(ParameterError, match="temperature is"):
        SamplingParameters(temperature=temperature)


@pytest.mark.parametrize(
    "bad",
    [
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 2},
        {"repeat_penalty": 0},
        {"repeat_last_n": -2},
        {"seed": -1},
    ],
)
def test_senseless_parameters_are_named(bad):
    with pytest.raises(ParameterError, match=next(iter(bad))):
        SamplingParameters(**bad)


@pytest.mark.parametrize("top_k", [0, -1, 4, 99])
def test_g02_top_k_off_or_larger_than_the_vocabulary_keeps_all(top_k):
    assert (draws(top_k=top_k) > 0).all()


def test_top_k_keeps_the_likeliest_and_lower_ids_on_ties():
    assert set(np.flatnonzero(draws(top_k=2))) == {1, 3}
    assert candidates(np.array([1, 2, 2, 2], np.float32), 2, 1.0, 0.0)[0].tolist() == [1, 2]


def test_top_p_keeps_at_least_its_share():
    assert candidates(LOGITS, 0, 0.65, 0.0)[0].tolist() == [1, 3]
    assert candidates(LOGITS, 0, 0.75, 0.0)[0].tolist() == [1, 3, 2]
    assert candidates(LOGITS, 0, 1e-6, 0.0)[0].tolist() == [1]


@pytest.mark.parametrize("size", [4, 63, 64, 65, 1000, 32003])
@pytest.mark.parametrize("steps", [3, 1000, 10**7])
def test_shortcuts_keep_what_sorting_everything_keeps(size, steps):
    """Few distinct logits, so that many are equal, or many."""
    rng = np.random.default_rng(size)
    logits = (rng.integers(0, steps, size) * np.float32(9 / steps)).astype(np.float32)
    order = np.argsort(-logits, kind="stable")
    p = np.exp(logits[order].astype(np.float64))
    for k in (1, 2, 40, 64, 999):
        assert candidates(logits, k, 1.0, 0.0)[0].tolist() == order[:k].tolist()
    for top_p, min_p in ((0.9, 0.0), (0.9, 0.05), (0.999, 0.3), (1.0, 0.3)):
        n = int(np.searchsorted(np.cumsum(p / p.sum()), top_p)) + 1 if top_p < 1 else size
        n = min(n, int(np.count_nonzero(p >= p[0] * min_p)))
        assert candidates(logits, 0, top_p, min_p)[0].tolist() == order[:n].tolist()


def test_min_p_is_relative_to_the_likeliest():
    assert candidates(LOGITS, 0, 1.0, 0.49)[0].tolist() == [1, 3, 2]
    assert candidates(LOGITS, 0, 1.0, 0.6)[0].tolist() == [1, 3]


def test_g04_penalty_makes_negative_logits_smaller():
    assert penalize(np.array([2, -2, 1], np.float32), [0, 1], 1.5, 64).tolist() == pytest.approx(
        [2 / 1.5, -3, 1]
    )


def test_g05_penalty_covers_the_last_n_each_token_once():
    history = [0] * 50 + [1, 2]
    logits = np.array([2, 2, 2], np.float32)
    assert penalize(logits, history, 2.0, 2).tolist() == [2, 1, 1]
    assert penalize(logits, history, 2.0, 64).tolist() == [1, 1, 1]
    assert penalize(logits, history, 2.0, -1).tolist() == [1, 1, 1]
    assert penalize(logits, history, 2.0, 0).tolist() == [2, 2, 2]
    assert logits.tolist() == [2, 2, 2]


def test_g06_the_seed_decides_and_is_reported():
    def series(seed):
        sampler = Sampler(SamplingParameters(seed=seed))
        return sampler.seed, [sampler(np.zeros(1000, np.float32), ()) for _ in range(8)]

    assert series(5) == series(5)
    assert series(5)[1] != series(6)[1]
    seed, drawn = series(None)
    assert series(seed)[1] == drawn


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_g09_non_finite_logits_are_an_error(at, value):
    logits = LOGITS.copy()
    logits[at] = value
    with pytest.raises(NonFiniteError, match=f"token {at}"):
        Sampler(SamplingParameters(temperature=0))(logits, ())


@pytest.mark.parametrize("top_p", [0.95, 1.0])
def test_e11_a_draw_from_the_whole_vocabulary_takes_no_more_than_budgets_leave_for_it(top_p):
    logits = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    sampler = Sampler(SamplingParameters(temperature=1, top_k=0, top_p=top_p, min_p=0, repeat_penalty=1.1))
    sampler(logits, [1, 2, 3])
    tracemalloc.start()
    sampler(logits, [1, 2, 3])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= (_SAMPLING_BYTES_PER_TOKEN + 0.5) * len(logits)
