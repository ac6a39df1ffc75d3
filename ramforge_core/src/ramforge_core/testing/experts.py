"""Mixtures of experts for the conformance suite of backends: graphs, and the formula of what they give, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramforge_core.graph import Graph, GraphBuilder

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

TOKENS, WIDTH, INNER = 150, 60, 37

MIXTURES: dict[str, dict[str, Any]] = {
    "softmax": {"normalise": False},
    "normalised": {"normalise": True, "chosen": 3},
    "one of many": {"normalise": False, "chosen": 1, "experts": 40},
    "all of them": {"normalise": True, "chosen": 5, "experts": 5},
    "gelu": {"normalise": True, "act": "gelu"},
    "biases and clamps": {"normalise": True, "act": "swiglu_oai", "biases": True},
    "sigmoid, bias, scale": {
        "normalise": True,
        "chosen": 4,
        "scores": "sigmoid",
        "bias": "selection",
        "scale": 2.5,
    },
}
"""Options of `mixture_graph`."""


def mixture_graph(
    *,
    normalise: bool,
    chosen: int = 2,
    experts: int = 9,
    act: str = "silu",
    biases: bool = False,
    **routing: Any,
) -> tuple[Graph, dict[str, F32]]:
    """Routes and experts on embeddings "x" (TOKENS, WIDTH); returns the graph and random weights."""
    shapes: dict[str, tuple[int, ...]] = {
        "x": (TOKENS, WIDTH),
        "router": (experts, WIDTH),
        "gate": (experts, INNER, WIDTH),
        "up": (experts, INNER, WIDTH),
        "down": (experts, WIDTH, INNER),
    }
    if biases:
        shapes.update(gate_bias=(experts, INNER), up_bias=(experts, INNER), down_bias=(experts, WIDTH))
    if "bias" in routing:
        shapes["selection"] = (experts,)
    rng = np.random.default_rng(11)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    weights["router"] /= np.float32(4)
    g = GraphBuilder(shapes)
    with g.stage("only"):
        x = g.embed("x")
        routes = g.route(g.linear(x, "router"), chosen, normalise=normalise, **routing)
        names = {n: n for n in ("gate_bias", "up_bias", "down_bias") if biases}
        g.logits(g.moe(x, routes, "gate", "up", "down", act, **names))  # type: ignore[arg-type]
    return g.finish(), weights


def mixture_formula(
    weights: dict[str, F32],
    tokens: list[int],
    *,
    normalise: bool,
    chosen: int = 2,
    experts: int = 9,
    act: str = "silu",
    biases: bool = False,
    scores: str = "softmax",
    bias: str | None = None,
    scale: float = 1.0,
) -> F64:
    """What the graph gives, token by token and expert by expert."""
    w = {n: a.astype(np.float64) for n, a in weights.items()}
    out = np.zeros((len(tokens), WIDTH))
    for row, token in enumerate(tokens):
        x = w["x"][token]
        logits = w["router"] @ x
        s = _sigmoid(logits) if scores == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
        order = np.argsort(-(s + (w["selection"] if bias else 0)), kind="stable")[:chosen]
        total = s[order].sum() if normalise else 1.0
        for e in order:
            gate, up = w["gate"][e] @ x, w["up"][e] @ x
            if biases:
                gate, up = gate + w["gate_bias"][e], up + w["up_bias"][e]
            y = w["down"][e] @ _act(gate, up, act)
            out[row] += s[e] / total * scale * (y + (w["down_bias"][e] if biases else 0))
    return out


def _sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def _act(gate: F64, up: F64, act: str) -> F64:
    out: F64
    if act == "silu":
        out = gate * _sigmoid(gate) * up
    elif act == "gelu":
        out = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    else:
        low = np.minimum(gate, 7)
        out = (np.clip(up, -7, 7) + 1) * low * _sigmoid(1.702 * low)
    return out
