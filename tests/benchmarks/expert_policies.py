"""Which experts should a layer keep? Hit rates of policies on routers with and without favourites.

    python tests/benchmarks/expert_policies.py

A router draws its experts without repetition: from equal chances, from a Zipf law (the n-th favourite 1/n), or from one
whose favourites change every 200 tokens. The cache is the one of a run, and reads nothing.
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from ramforge_core import expert_cache
from ramforge_core.expert_cache import _Layer
from ramforge_core.experts import ExpertExtent, ExpertLayer
from ramforge_core.graph import Moe, Value

EXPERTS, CHOSEN, TOKENS = 64, 8, 4000
EXTENTS = (ExpertExtent("", 0, 0, 1),) * 3


class Counted(_Layer):
    """What a run does: counts that halve after so many tokens."""

    half_life = expert_cache.HALF_LIFE

    def note(self, chosen, tokens):
        expert_cache.HALF_LIFE, before = self.half_life, expert_cache.HALF_LIFE
        super().note(chosen, tokens)
        expert_cache.HALF_LIFE = before


class Latest(_Layer):
    """LRU: worth is when it was chosen last."""

    def note(self, chosen, tokens):
        self.counts[chosen] = self.counts.max() + 1


class Pinned(Counted):
    """The favourites of the first 200 tokens, for good."""

    half_life, seen = 1e9, 0

    def note(self, chosen, tokens):
        self.seen += tokens
        if self.seen <= 200:
            super().note(chosen, tokens)


def half_life(tokens: float) -> type[_Layer]:
    return type("Counted", (Counted,), {"half_life": tokens})


POLICIES = {
    "LRU": Latest,
    "LFU": half_life(1e9),
    "pinned": Pinned,
    "16": half_life(16),
    "32": half_life(32),
    "64": half_life(64),
    "256": half_life(256),
}


def routers() -> dict[str, np.ndarray]:
    """By name, the experts of each token: (TOKENS, CHOSEN)."""
    rng = np.random.default_rng(1)

    def draw(chances):
        return rng.choice(EXPERTS, CHOSEN, replace=False, p=chances / chances.sum())

    zipf = 1 / np.arange(1, EXPERTS + 1)
    orders = [rng.permutation(EXPERTS) for _ in range(TOKENS // 200 + 1)]
    return {
        "equal": np.array([draw(np.ones(EXPERTS)) for _ in range(TOKENS)]),
        "favourites": np.array([draw(zipf[orders[0]]) for _ in range(TOKENS)]),
        "changing favourites": np.array([draw(zipf[orders[t // 200]]) for t in range(TOKENS)]),
    }


def hit_rate(layer: _Layer, tokens: np.ndarray) -> float:
    hits = 0
    for chosen in tokens:
        layer.note(chosen, 1)
        needed = sorted(chosen.tolist())
        for i, expert in enumerate(needed):
            if expert in layer.kept:
                hits += 1
            elif len(layer.kept) < layer.share.kept:
                layer.kept[expert] = 0
            elif (worse := layer.worse_than(expert, needed[i + 1 :])) is not None:
                layer.kept[expert] = layer.kept.pop(worse)
    return hits / tokens.size


def main() -> None:
    op = Moe(Value("", 1), Value("", 1), Value("", 2 * CHOSEN), "", "", "", EXPERTS, 1)
    share = ExpertLayer(op, 0, EXTENTS, 0)
    print(f"{'router':20} {'kept':>4} " + " ".join(f"{name:>7}" for name in POLICIES))
    for name, tokens in routers().items():
        for kept in (4, 8, 16, 32):
            rates = [hit_rate(policy(evolve(share, kept=kept)), tokens) for policy in POLICIES.values()]
            print(f"{name:20} {kept:4} " + " ".join(f"{100 * rate:6.1f}%" for rate in rates))


if __name__ == "__main__":
    main()
