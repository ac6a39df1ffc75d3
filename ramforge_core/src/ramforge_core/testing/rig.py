"""What tests of backends run: float32 weights without kernels, a compiled graph with caches, a tiny model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramforge_core.backend import Backend, Batch, Control, Limits, Program, WeightSpec
from ramforge_core.graph import Graph, GraphBuilder
from ramforge_core.kv import CHUNK_POSITIONS, KVCache, KVLayout, KVType
from ramforge_core.memory import allocate
from ramforge_core.quant import QuantFormat

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class PlainFloat32(QuantFormat):
    """Float32 as stored, without kernels."""

    name = "f32"
    ggml_type = 0
    block_values = 1
    block_bytes = 4

    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        return blocks.view("<f4").astype(np.float32, copy=False)


class Rig:
    """A compiled graph with its weights and one KV cache per sequence."""

    def __init__(
        self,
        backend: Backend,
        graph: Graph,
        weights: Mapping[str, F32],
        *,
        kv_type: KVType = "f32",
        max_tokens: int = 64,
        max_context: int = 2 * CHUNK_POSITIONS,
        threads: int = 0,
        formats: Mapping[str, QuantFormat] | None = None,
        data: Mapping[str, NDArray[np.uint8]] | None = None,
        missing: Mapping[str, F32] | None = None,
    ) -> None:
        """formats, data : for weights that are not float32: their format, and their bytes if these are not float32.
        missing : weights that are known, but not bound.
        """
        formats, data = formats or {}, data or {}
        known = {**(missing or {}), **weights}
        self.specs = {n: WeightSpec(n, w.shape, formats.get(n, PlainFloat32())) for n, w in known.items()}
        self.layout = KVLayout.of(graph.attentions, kv_type)
        limits = Limits(max_tokens, max_tokens, max_context, self.layout, threads)
        self.graph, self.weights = graph, weights
        self.caches: list[KVCache] = []
        self.control = Control()
        self.program: Program = backend.compile(graph, self.specs, limits)
        self.program.bind({n: data[n] if n in data else packed(w) for n, w in weights.items()})

    def batch(
        self,
        tokens: Sequence[int],
        positions: Sequence[int] | None = None,
        sequences: Sequence[int] | None = None,
        wanted: Sequence[bool] | None = None,
    ) -> Batch:
        """A batch, with caches that hold it."""
        n = len(tokens)
        batch = Batch(
            np.array(tokens, np.int32),
            np.array(range(n) if positions is None else positions, np.int32),
            np.array([0] * n if sequences is None else sequences, np.int32),
            np.array([True] * n if wanted is None else wanted, np.bool_),
        )
        while len(self.caches) <= batch.sequences.max():
            self.caches.append(KVCache(self.layout))
        for cache in self.caches:
            cache.reserve(int(batch.positions.max()) + 1)
        return batch

    def run(
        self,
        tokens: Sequence[int],
        positions: Sequence[int] | None = None,
        sequences: Sequence[int] | None = None,
        wanted: Sequence[bool] | None = None,
        cuts: Sequence[int] = (),
    ) -> F32:
        """One pass; ``cuts`` are the steps at which it is cut into several calls."""
        batch = self.batch(tokens, positions, sequences, wanted)
        logits = np.full((int(batch.wanted.sum()), self.graph.logits.width), 7e7, np.float32)
        if not cuts:
            self.program.run(batch, self.caches, logits, self.control)
        bounds = [0, *cuts, len(self.program.steps)]
        for start, stop in pairwise(bounds) if cuts else ():
            self.program.run(batch, self.caches, logits, self.control, range(start, stop))
        return logits


def packed(weight: F32) -> NDArray[np.uint8]:
    """Aligned bytes of a float32 array."""
    out = allocate(weight.nbytes)
    out[:] = np.ascontiguousarray(weight, np.float32).reshape(-1).view(np.uint8)
    return out


def tiny_llama(
    seed: int = 0, *, layers: int = 2, width: int = 64, heads: int = 4, kv_heads: int = 2, vocab: int = 50
) -> tuple[Graph, dict[str, F32]]:
    """A graph with every habit of a real decoder, and random weights for it."""
    head_width, ffn = width // heads, 3 * width // 2
    rng = np.random.default_rng(seed)
    weights: dict[str, F32] = {}

    def add(name: str, *shape: int) -> str:
        scale = 0.5 if len(shape) == 1 else 1.5 / np.sqrt(shape[1])
        weights[name] = (rng.standard_normal(shape) * scale + (len(shape) == 1)).astype(np.float32)
        return name

    add("embed", vocab, width), add("norm", width)
    for i in range(layers):
        for name in ("q", "o"):
            add(f"{i}.{name}", width, width)
        for name in ("k", "v"):
            add(f"{i}.{name}", kv_heads * head_width, width)
        add(f"{i}.bias", width), add(f"{i}.norm1", width), add(f"{i}.norm2", width)
        add(f"{i}.gate", ffn, width), add(f"{i}.up", ffn, width), add(f"{i}.down", width, ffn)
    g = GraphBuilder({name: w.shape for name, w in weights.items()})
    rope: dict[str, Any] = {
        "head_width": head_width,
        "rotary_width": head_width,
        "pairs": "adjacent",
        "base": 10000.0,
    }
    with g.stage("embed"):
        x = g.embed("embed")
    for i in range(layers):
        with g.stage(f"block {i}"):
            h = g.norm(x, f"{i}.norm1", 1e-5)
            q, k = g.rope(g.linear(h, f"{i}.q", f"{i}.bias"), **rope), g.rope(g.linear(h, f"{i}.k"), **rope)
            a = g.attention(
                q, k, g.linear(h, f"{i}.v"),
                heads=heads, kv_heads=kv_heads, key_width=head_width, value_width=head_width,
                scale=head_width**-0.5,
            )  # fmt: skip
            x = g.add(x, g.linear(a, f"{i}.o"))
            h = g.norm(x, f"{i}.norm2", 1e-5)
            x = g.add(x, g.linear(g.glu(g.linear(h, f"{i}.gate"), g.linear(h, f"{i}.up")), f"{i}.down"))
    with g.stage("head", rows="wanted"):
        g.logits(g.scale(g.linear(g.norm(x, "norm", 1e-5), "embed"), 0.5))
    return g.finish(), weights
