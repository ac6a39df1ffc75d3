"""What ops give, stated anew in float64 NumPy, and the cases in which backends are held against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramforge_core.graph import GraphBuilder, RopeScaling, Value

F64 = NDArray[np.float64]


def _sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def _rms(x: F64, w: F64, eps: float) -> F64:
    out: F64 = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w
    return out


def attend(
    q: F64,
    k: F64,
    v: F64,
    heads: int,
    kv_heads: int,
    scale: float,
    window: int | None,
    cap: float | None,
    sinks: F64 | None,
) -> F64:
    """One sequence from position 0: q (T, H*K), k (T, G*K), v (T, G*V), a loop over tokens and heads."""
    n, key, value = len(q), q.shape[1] // heads, v.shape[1] // kv_heads
    out = np.zeros((n, heads, value))
    for t in range(n):
        for h in range(heads):
            g = h // (heads // kv_heads)
            low = 0 if window is None else max(0, t + 1 - window)
            s = k[low : t + 1, g * key : (g + 1) * key] @ q[t, h * key : (h + 1) * key] * scale
            s = s if cap is None else cap * np.tanh(s / cap)
            top = s.max() if sinks is None else max(s.max(), sinks[h])
            e = np.exp(s - top)
            total = e.sum() + (0 if sinks is None else np.exp(sinks[h] - top))
            out[t, h] = e / total @ v[low : t + 1, g * value : (g + 1) * value]
    return out.reshape(n, -1)


OPS: dict[str, tuple[Callable[[GraphBuilder, Value, Value], Value], Callable[[F64, F64, dict[str, F64]], F64]]] = {
    "embed": (lambda g, x, y: x, lambda x, y, w: x),
    "norm rms": (lambda g, x, y: g.norm(x, "v", 1e-2), lambda x, y, w: _rms(x, w["v"], 1e-2)),
    "norm rms of groups": (
        lambda g, x, y: g.norm(x, "group", 1e-6, group=20),
        lambda x, y, w: _rms(x.reshape(len(x), 3, 20), w["group"], 1e-6).reshape(x.shape),
    ),
    "norm layer": (
        lambda g, x, y: g.norm(x, "v", 1e-3, "layer", bias="u"),
        lambda x, y, w: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3) * w["v"] + w["u"],
    ),
    "linear": (lambda g, x, y: g.linear(x, "m"), lambda x, y, w: x @ w["m"].T),
    "linear with bias": (lambda g, x, y: g.linear(x, "m", "mb"), lambda x, y, w: x @ w["m"].T + w["mb"]),
    "head linear": (
        lambda g, x, y: g.head_linear(x, "hm"),
        lambda x, y, w: np.concatenate([x[:, i * 20 : i * 20 + 20] @ w["hm"][i].T for i in range(3)], axis=1),
    ),
    "slice": (lambda g, x, y: g.slice(x, 7, 33), lambda x, y, w: x[:, 7:40]),
    "slice of heads": (
        lambda g, x, y: g.slice(x, 3, 9, heads=4),
        lambda x, y, w: x.reshape(len(x), 4, 15)[:, :, 3:12].reshape(len(x), 36),
    ),
    "join": (lambda g, x, y: g.join(x, y), lambda x, y, w: np.concatenate([x, y], axis=1)),
    "join of heads": (
        lambda g, x, y: g.join(x, g.slice(y, 0, 40), heads=5),
        lambda x, y, w: np.concatenate(
            [x.reshape(len(x), 5, 12), y[:, :40].reshape(len(x), 5, 8)], axis=2
        ).reshape(len(x), 100),
    ),
    "add": (lambda g, x, y: g.add(x, y), lambda x, y, w: x + y),
    "mul": (lambda g, x, y: g.mul(x, y), lambda x, y, w: x * y),
    "scale": (lambda g, x, y: g.scale(x, -1.5), lambda x, y, w: x * -1.5),
    "softcap": (lambda g, x, y: g.softcap(x, 1.25), lambda x, y, w: 1.25 * np.tanh(x / 1.25)),
    "glu silu": (lambda g, x, y: g.glu(x, y), lambda x, y, w: x * _sigmoid(x) * y),
    "glu gelu": (
        lambda g, x, y: g.glu(x, y, "gelu"),
        lambda x, y, w: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) * y,
    ),
    "gate": (lambda g, x, y: g.gate(x, y), lambda x, y, w: x * _sigmoid(y)),
    "gate of a row": (
        lambda g, x, y: g.gate(x, g.slice(y, 9, 1)),
        lambda x, y, w: x * _sigmoid(y[:, 9:10]),
    ),
    "a value used again": (
        lambda g, x, y: g.add(g.mul(g.scale(x, 2.0), y), g.scale(x, 3.0)),
        lambda x, y, w: 2 * x * y + 3 * x,
    ),
}  # fmt: skip

ROPES: dict[str, dict[str, Any]] = {
    "adjacent": {"pairs": "adjacent"},
    "half": {"pairs": "half"},
    "part of a head": {"pairs": "half", "rotary_width": 12},
    "part of a head, adjacent": {"pairs": "adjacent", "rotary_width": 6},
    "factors": {"pairs": "adjacent", "factors": "factors"},
    "factors of a short context": {
        "pairs": "half",
        "factors": "factors",
        "long_factors": "long",
        "scaling": RopeScaling("longrope", 1.0, 200_000, 1.19),
    },
    "factors of a long context": {
        "pairs": "half",
        "factors": "factors",
        "long_factors": "long",
        "scaling": RopeScaling("longrope", 1.0, 199_999, 1.19),
    },
    "linear": {"pairs": "half", "scaling": RopeScaling("linear", 4.0)},
    "yarn": {"pairs": "adjacent", "scaling": RopeScaling("yarn", 4.0, 32, 1.1386)},
}

ATTENTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped heads": {"kv_heads": 2},
    "one key head": {"kv_heads": 1},
    "wider values": {"kv_heads": 2, "value_width": 24},
    "odd widths": {"kv_heads": 3, "key_width": 9, "value_width": 5},
    "window": {"kv_heads": 2, "window": 5},
    "window past a tile": {"window": 37},
    "softcap": {"softcap": 2.0},
    "sinks": {"kv_heads": 2, "sinks": "sinks"},
    "everything": {"kv_heads": 3, "value_width": 40, "window": 19, "softcap": 1.5, "sinks": "sinks"},
}
