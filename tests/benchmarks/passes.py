"""What a pass over several tokens costs beside one over a single token. Prints medians in milliseconds, and ratios.

    uv run python tests/benchmarks/passes.py MODEL.gguf --threads 2

All logits are wanted, as for tokens that were guessed and are to be checked. The passes take turns.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import ramforge_core

TOKENS = (1, 2, 4, 8, 16)
BEFORE = 64
"""Tokens in the KV cache that the passes begin after."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    a = parser.parse_args()
    with ramforge_core.open(a.model, threads=a.threads) as m:
        cache = m.engine.cache()
        m.engine.prefill(list(range(300, 300 + BEFORE)), cache)
        taken: dict[int, list[float]] = {n: [] for n in TOKENS}
        for lap in range(a.rounds + 1):
            for n in TOKENS:
                began = time.perf_counter()
                m.engine.run(list(range(400, 400 + n)), BEFORE, cache, [True] * n)
                if lap:  # the first one warms up
                    taken[n].append(time.perf_counter() - began)
    one = median(taken[1])
    for n in TOKENS:
        spent = median(taken[n])
        print(f"{n:3d} tokens {spent * 1e3:7.1f} ms, {spent / one:.2f} times one")


if __name__ == "__main__":
    main()
