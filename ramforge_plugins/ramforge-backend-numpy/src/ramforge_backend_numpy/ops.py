"""Every op of the graph as one function: plain float32 NumPy, the definition that other backends are held to.

Letters: T tokens, D width of a value, H query heads, G key/value heads, K width of a key head, V width of a value
head, N positions that a token sees. All values are float32 (T, D). Nothing here knows about weights' formats.

Results do not depend on the other tokens of the batch: sums go along the last axis, `linear` shows BLAS always the
same shape, `attend` takes one token at a time.
"""

from __future__ import annotations

# mypy: disable-error-code=no-any-return
# NumPy's stubs lose the type of some array expressions.
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

BLAS_TOKENS = 32
BLAS_ROWS = 16
"""Tokens and rows of one matrix product; fewer are padded with zeros.

BLAS sums in an order that depends on the shape and on the place in it. With one shape a token's result is the same in
every batch, and a row's the same in every run of rows that begins at a multiple of `BLAS_ROWS`.
"""


def norm(x: Array, weight: Array, eps: float, kind: str, bias: Array | None = None) -> Array:
    """Normalise runs of ``len(weight)`` values, each by itself."""
    runs = x.reshape(len(x), x.shape[1] // len(weight), len(weight))
    if kind == "layer":
        runs = runs - runs.mean(axis=-1, keepdims=True)
    mean_square = (runs * runs).mean(axis=-1, keepdims=True)
    out = runs / np.sqrt(mean_square + np.float32(eps)) * weight
    if bias is not None:
        out = out + bias
    return out.reshape(x.shape)


def linear(x: Array, weight: Array) -> Array:
    """x (T, columns) @ weight (rows, columns).T"""
    rows, columns = weight.shape
    if rows % BLAS_ROWS:
        weight = np.pad(weight, ((0, -rows % BLAS_ROWS), (0, 0)))
    runs = weight.reshape(-1, BLAS_ROWS, columns).transpose(0, 2, 1)
    out = np.empty((len(x), rows), np.float32)
    for t in range(0, len(x), BLAS_TOKENS):
        block = np.zeros((BLAS_TOKENS, columns), np.float32)
        block[: len(x) - t] = x[t : t + BLAS_TOKENS]
        product = (block @ runs).transpose(1, 0, 2).reshape(BLAS_TOKENS, -1)
        out[t : t + BLAS_TOKENS] = product[: len(x) - t, :rows]
    return out


def heads_of(x: Array, heads: int) -> Array:
    """(T, heads, width of a head)"""
    return x.reshape(len(x), heads, x.shape[1] // heads)


def softcap(x: Array, cap: float) -> Array:
    return np.float32(cap) * np.tanh(x / np.float32(cap))


def glu(gate: Array, up: Array, act: str) -> Array:
    return (silu(gate) if act == "silu" else gelu(gate)) * up


def sigmoid(x: Array) -> Array:
    # exp may reach infinity, whose reciprocal is the right 0
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """0.5 x (1 + tanh(u)) = x sigmoid(2u), which keeps its digits where tanh is close to -1."""
    u = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return x * sigmoid(np.float32(2) * u)


def gate(x: Array, gate: Array) -> Array:
    return x * sigmoid(gate)


def route(
    logits: Array, chosen: int, scores: str, normalise: bool, scale: float, bias: Array | None
) -> Array:
    """(T, 2 * chosen): the numbers of the chosen experts, ascending, then their weights."""
    if scores == "softmax":
        s = np.exp(logits - logits.max(axis=1, keepdims=True))
        s = s / s.sum(axis=1, keepdims=True)
    else:
        s = sigmoid(logits)
    order = s if bias is None else s + bias
    order = np.where(np.isnan(order), np.inf, order)
    numbers = np.sort(np.argsort(-order, axis=1, kind="stable")[:, :chosen], axis=1)
    weights = np.take_along_axis(s, numbers, axis=1)
    if normalise:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.concatenate([numbers.astype(np.float32), weights * np.float32(scale)], axis=1)


def expert_act(gate: Array, up: Array, act: str) -> Array:
    if act != "swiglu_oai":
        return glu(gate, up, act)
    g, u = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
    return (u + np.float32(1)) * (g * sigmoid(np.float32(1.702) * g))


def rope(
    x: Array,
    positions: NDArray[np.int32],
    frequencies: Array,
    magnitude: float,
    head_width: int,
    pairs: str,
) -> Array:
    """Turn the pairs of each head; frequencies as from `ramforge_core.rope.rope_frequencies`."""
    half = len(frequencies)
    angles = positions[:, None].astype(np.float64) * frequencies.astype(np.float64)  # (T, half)
    cos = (np.cos(angles) * magnitude).astype(np.float32)[:, None]
    sin = (np.sin(angles) * magnitude).astype(np.float32)[:, None]
    out = x.reshape(len(x), x.shape[1] // head_width, head_width).copy()
    if pairs == "adjacent":
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out.reshape(x.shape)


def attend(
    q: Array,
    keys: Array,
    values: Array,
    scale: float,
    cap: float | None = None,
    sinks: Array | None = None,
) -> Array:
    """One token. q (H, K), keys (G, N, K) and values (G, N, V) of the positions it sees. Returns (H * V,)."""
    groups = len(keys)
    grouped = q.reshape(groups, -1, q.shape[-1])  # (G, H/G, K)
    scores = grouped @ keys.transpose(0, 2, 1) * np.float32(scale)  # (G, H/G, N)
    if cap is not None:
        scores = softcap(scores, cap)
    highest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        sink = sinks.reshape(groups, -1, 1)
        highest = np.maximum(highest, sink)
    weights = np.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - highest)
    out: Array = (weights / total) @ values  # (G, H/G, V)
    return out.reshape(-1)
