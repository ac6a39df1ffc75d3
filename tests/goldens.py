"""Reading of the golden sets of real models, and the distances that they are judged by. All in float64."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ROWS = 32
"""Positions compared at a time: a large vocabulary takes megabytes for each."""


def golden_prompts(folder: Path) -> list[dict[str, Any]]:
    with gzip.open(folder / "prompts.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    out: NDArray[np.float64] = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return out


def kl(logits: NDArray[np.float32], exact: NDArray[np.float32]) -> NDArray[np.float64]:
    """KL(ours || exact) in nats; logits (n, vocab) -> (n,)."""
    out = []
    for i in range(0, len(logits), _ROWS):
        p, q = log_softmax(logits[i : i + _ROWS]), log_softmax(exact[i : i + _ROWS])
        out.append((np.exp(p) * (p - q)).sum(axis=-1))
    return np.concatenate(out)


def judge_top1(model: Any, rows: list[dict[str, Any]], margin: float = 0.75) -> int:
    """Fed llama.cpp's greedy path, top-1 is that path at every step with a larger margin. Returns how many."""
    judged = 0
    for row in rows:
        path, sure = np.array(row["greedy_ids"]), np.array(row["greedy_margin"]) > margin
        logits = model.logits([*row["prompt_ids"], *row["greedy_ids"][:-1]])
        top1 = logits[len(row["prompt_ids"]) - 1 :].argmax(axis=1)
        assert np.array_equal(top1[sure], path[sure]), row["id"]
        judged += int(sure.sum())
    return judged
