"""How fast threads of this machine read memory and do nothing with it: the roof of all that multiplies by weights."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

_CHUNK_BYTES = 8 << 20
"""What a thread reads at once: so much that handing it out costs nothing, so little that none waits for another."""


def read_rate(buffers: Iterable[NDArray[np.uint8]], threads: int, seconds: float = 0.05) -> float:
    """Bytes per second at which ``threads`` threads read all buffers, uint8 (n,), aligned to 8 bytes.

    The best of as many rounds as ``seconds`` hold. To measure memory and no cache, the buffers must be larger than it.
    """
    words = [buffer[: len(buffer) // 8 * 8].view(np.uint64) for buffer in buffers]
    step = _CHUNK_BYTES // 8
    chunks = [w[at : at + step] for w in words for at in range(0, len(w), step)]
    nbytes = sum(chunk.nbytes for chunk in chunks)
    best, began = 0.0, time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.bitwise_or.reduce, chunks))  # threads start, pages come in
        while not best or time.perf_counter() - began < seconds:
            round_began = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, chunks))
            best = max(best, nbytes / (time.perf_counter() - round_began))
    return best
