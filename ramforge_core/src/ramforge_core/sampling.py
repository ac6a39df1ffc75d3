"""From logits to the next token. Pure NumPy; the order of the filters is llama.cpp's:
repetition penalty, top-k, top-p, min-p, temperature, draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from attrs import define, field, frozen
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from ramforge_core.errors import NonFiniteError, ParameterError

GREEDY_BELOW = 1e-5
"""Temperatures below this take the largest logit: dividing by them would only overflow."""

_GROUP = 64
"""Logits of which only the largest is looked at, in the search for the top k."""


@frozen(kw_only=True)
class SamplingParameters:
    """How the next token is chosen.

    temperature : 0 takes the largest logit, the lowest id on ties.
    top_k : keep this many; 0 or less keeps all.
    top_p : keep the likeliest tokens whose probabilities sum to at least this; 1 keeps all.
    min_p : drop tokens less likely than this share of the likeliest; 0 keeps all.
    repeat_penalty : logits of recent tokens are divided by it when positive, multiplied when negative; 1 is off.
    repeat_last_n : how many of the last tokens count as recent; 0 is off, -1 takes all.
    seed : of the random numbers; None picks one.
    Raises ParameterError naming the value that makes no sense.
    """

    temperature: float = 0.2
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None

    def __attrs_post_init__(self) -> None:
        def check(name: str, low: float, high: float = math.inf, *, above: bool = False) -> None:
            value = getattr(self, name)
            if not math.isfinite(value) or value < low or value > high or (above and value == low):
                bound = f"above {low:g}" if above else f"at least {low:g}"
                limit = "" if high == math.inf else f" and at most {high:g}"
                raise ParameterError(f"{name} is {value}, expected a number {bound}{limit}")

        check("temperature", 0)
        check("top_p", 0, 1, above=True)
        check("min_p", 0, 1)
        check("repeat_penalty", 0.01, 100)
        check("repeat_last_n", -1)
        if self.seed is not None and self.seed < 0:
            raise ParameterError(f"seed is {self.seed}, expected a number from 0 up")


@define
class Sampler:
    """Draws tokens. One per answer: the same seed gives the same draws."""

    parameters: SamplingParameters
    seed: int = field(init=False)
    _random: Generator = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        seed = self.parameters.seed
        self.seed = int(SeedSequence().generate_state(1)[0]) if seed is None else seed
        self._random = default_rng(self.seed)

    def __call__(
        self,
        logits: NDArray[np.float32],
        history: Sequence[int],
        allow: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None,
    ) -> int:
        """The next token.

        logits : float32 (vocab,), not changed. history : all tokens so far, the prompt's included.
        allow : gives the logits with what may not be drawn at -inf.
        Raises NonFiniteError if a logit is NaN or infinite.
        """
        if not np.isfinite(logits).all():
            at = int(np.flatnonzero(~np.isfinite(logits))[0])
            raise NonFiniteError(
                f"the model gave {logits[at]} as logit of token {at}; its weights are damaged or overflow"
            )
        if allow is not None:
            logits = allow(logits)
        p = self.parameters
        logits = penalize(logits, history, p.repeat_penalty, p.repeat_last_n)
        if p.temperature < GREEDY_BELOW:
            return int(np.argmax(logits))
        ids, kept = candidates(logits, p.top_k, p.top_p, p.min_p)
        total = np.cumsum(_softmax(kept / p.temperature))
        drawn = np.searchsorted(total, self._random.random() * total[-1], side="right")
        return int(ids[min(int(drawn), len(ids) - 1)])


def penalize(
    logits: NDArray[np.float32], history: Sequence[int], penalty: float, last_n: int
) -> NDArray[np.float32]:
    """Make each distinct token among the last ``last_n`` of ``history`` less likely, once."""
    if penalty == 1.0 or last_n == 0:
        return logits
    recent = list(set(history if last_n < 0 else history[-last_n:]))
    if not recent:
        return logits
    out: NDArray[np.float32] = logits.copy()
    out[recent] = np.where(out[recent] > 0, out[recent] / penalty, out[recent] * penalty)
    return out


def candidates(
    logits: NDArray[np.float32], top_k: int, top_p: float, min_p: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids and logits (float64) of the tokens that may be drawn, the likeliest first, lower ids first on ties."""
    highest, limited = logits.max(), 0 < top_k < logits.size
    if limited:
        ids = _largest(logits, top_k)
    elif min_p > 0.0:  # sorting these only is a hundred times faster; the exact bound is applied below
        ids = np.flatnonzero(logits >= highest + np.float32(math.log(min_p) - 1e-3))
    else:
        ids = np.arange(logits.size)
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    ids = ids[:top_k] if limited else ids
    kept = logits[ids].astype(np.float64)
    if top_p < 1.0:
        weights = np.exp(kept - kept[0])
        everything = weights if limited else np.exp(logits - highest)
        n = int(np.searchsorted(np.cumsum(weights / everything.sum(dtype=np.float64)), top_p)) + 1
        ids, kept = ids[:n], kept[:n]
    if min_p > 0.0:
        n = int(np.count_nonzero(kept >= kept[0] + math.log(min_p)))
        ids, kept = ids[:n], kept[:n]
    return ids, kept


def _largest(logits: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Ids, ascending, of the k largest values and of all that equal the smallest of them."""
    groups = max(k, logits.size // _GROUP)
    whole = logits.size // groups * groups
    # k groups have a value of at least the k-th largest maximum of a group, so the k largest values are none below
    peaks = logits[:whole].reshape(-1, groups).max(axis=0)
    ids = np.flatnonzero(logits >= np.partition(peaks, -k)[-k])
    values = logits[ids]
    return np.asarray(ids[values >= np.partition(values, -k)[-k]])


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(logits - logits.max())
    return np.asarray(e / e.sum())
