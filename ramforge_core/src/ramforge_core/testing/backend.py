"""Conformance suite of backends: subclass `BackendTests` and give it the fixture ``backend``.

Formulas are stated anew here, in float64 NumPy, and weights are float32 without kernels; so the suite tests the ops
and not a number format. Clauses are numbered in ``docs/conformance.md``.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from ramforge_core.backend import Backend, Batch, Control, Limits, Program, WeightSpec
from ramforge_core.errors import Interrupted, ParameterError, ShapeError
from ramforge_core.graph import Graph, GraphBuilder, Moe, Rope, RopeScaling, Route, Value
from ramforge_core.kv import CHUNK_POSITIONS, KV_TYPES, KVCache, KVLayout, KVType
from ramforge_core.memory import allocate
from ramforge_core.quant import QuantFormat
from ramforge_core.rope import rope_frequencies
from ramforge_core.testing.experts import MIXTURES, TOKENS, mixture_formula, mixture_graph

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


def _sigmoid(x: F64) -> F64:
    return 1 / (1 + np.exp(-x))


def _rms(x: F64, w: F64, eps: float) -> F64:
    out: F64 = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w
    return out


def _attend(
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


_OPS: dict[str, tuple[Callable[[GraphBuilder, Value, Value], Value], Callable[[F64, F64, dict[str, F64]], F64]]] = {
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
    "slice": (lambda g, x, y: g.slice(x, 7, 33), lambda x, y, w: x[:, 7:40]),
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

_ROPES: dict[str, dict[str, Any]] = {
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

_ATTENTIONS: dict[str, dict[str, Any]] = {
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


class BackendTests:
    """Tests that every backend must pass. Override the fixture ``backend``."""

    tolerance: ClassVar[float] = 3e-6
    """Largest error of an op, as a share of the largest value of its result."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError("override the fixture `backend` and return the backend under test")

    def close(self, got: F32, wanted: F64) -> None:
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max() <= self.tolerance * np.abs(wanted).max()

    def test_says_what_it_is(self, backend: Backend) -> None:
        """B1: it has a key, is available here, and tells its instruction set and threads."""
        assert backend.key
        assert backend.available() is None
        assert {"isa", "threads"} <= set(backend.describe())

    def test_steps_are_the_ops(self, backend: Backend) -> None:
        """B2: there is one step for every op, in order, with the weights that it reads."""
        graph, weights = tiny_llama()
        steps = Rig(backend, graph, weights).program.steps
        assert [s.op for s in steps] == list(range(len(graph.ops)))
        assert steps[0].weights == ("embed",)
        assert steps[2].weights == ("0.q", "0.bias")
        assert [s.stage for s in steps][-1] == "head"

    @pytest.mark.parametrize("name", _OPS)
    def test_op(self, backend: Backend, name: str) -> None:
        """B3: every op gives what its formula says, for one token and for many, whatever the width."""
        build, formula = _OPS[name]
        rng = np.random.default_rng(5)
        shapes = {
            "x": (40, 60),
            "y": (40, 60),
            "v": (60,),
            "u": (60,),
            "group": (20,),
            "m": (71, 60),
            "mb": (71,),
        }
        weights = {n: rng.standard_normal(s).astype(np.float32) * 2 for n, s in shapes.items()}
        g = GraphBuilder(shapes)
        with g.stage("only"):
            g.logits(build(g, g.embed("x"), g.embed("y")))
        rig = Rig(backend, g.finish(), weights)
        exact = {n: w.astype(np.float64) for n, w in weights.items()}
        for tokens in ([3], list(range(39, -1, -1))):
            self.close(rig.run(tokens), formula(exact["x"][tokens], exact["y"][tokens], exact))

    @pytest.mark.parametrize("name", _ROPES)
    def test_rope(self, backend: Backend, name: str) -> None:
        """B4: rope turns the pairs that are meant by the angles of `rope_frequencies`, at far positions too."""
        options = {"head_width": 16, "rotary_width": 16, "base": 1000.0, **_ROPES[name]}
        rng = np.random.default_rng(6)
        weights = {
            "x": rng.standard_normal((7, 48)).astype(np.float32),
            "factors": np.array([1, 1, 2, 2, 3, 4, 4, 8], np.float32),
            "long": np.array([1, 3, 3, 5, 9, 20, 30, 60], np.float32),
        }
        g = GraphBuilder({n: w.shape for n, w in weights.items()})
        with g.stage("only"):
            out = g.rope(g.embed("x"), **options)
        g.logits(out)
        rig = Rig(backend, g.finish(), weights, max_context=200_000)
        positions = [0, 1, 2, 77, 4095, 131_071, 199_999]
        got = rig.run(range(7), positions)

        op = next(op for op in g.finish().ops if isinstance(op, Rope))
        divisors = "long" if name == "factors of a long context" else op.factors
        frequencies, magnitude = rope_frequencies(op, weights[divisors] if divisors else None)
        turns = np.exp(1j * np.outer(positions, frequencies.astype(np.float64)))[:, None] * magnitude
        heads = weights["x"].astype(np.float64).reshape(7, 3, 16)
        pair, half = op.rotary_width, op.rotary_width // 2
        first, second = (
            (slice(0, pair, 2), slice(1, pair, 2))
            if op.pairs == "adjacent"
            else (slice(0, half), slice(half, pair))
        )
        turned = (heads[..., first] + 1j * heads[..., second]) * turns
        wanted = heads.copy()
        wanted[..., first], wanted[..., second] = turned.real, turned.imag
        self.close(got, wanted.reshape(7, 48))

    @pytest.mark.parametrize("name", _ATTENTIONS)
    @pytest.mark.parametrize("kv_type", KV_TYPES)
    def test_attention(self, backend: Backend, name: str, kv_type: KVType) -> None:
        """B5: attention gives what its formula says, on keys and values rounded to the cache's type."""
        options = {
            "heads": 6,
            "kv_heads": 6,
            "key_width": 32 if kv_type == "q8_0" else 16,
            "value_width": 32 if kv_type == "q8_0" else 16,
            "scale": 0.3,
            **_ATTENTIONS[name],
        }
        if kv_type == "q8_0" and (options["key_width"] % 32 or options["value_width"] % 32):
            pytest.skip("q8_0 holds whole blocks of 32 values")
        heads, kv_heads, key, value = (options[n] for n in ("heads", "kv_heads", "key_width", "value_width"))
        shapes = {
            "q": (70, heads * key),
            "k": (70, kv_heads * key),
            "v": (70, kv_heads * value),
            "sinks": (heads,),
        }
        rng = np.random.default_rng(7)
        weights = {n: (rng.standard_normal(s) * 1.5).astype(np.float32) for n, s in shapes.items()}
        g = GraphBuilder(shapes)
        with g.stage("only"):
            g.logits(g.attention(g.embed("q"), g.embed("k"), g.embed("v"), **options))
        rig = Rig(backend, g.finish(), weights, kv_type=kv_type, max_tokens=70)
        q, k, v, sinks = (weights[n].astype(np.float64) for n in shapes)
        k, v = (
            rig.layout.unpack(rig.layout.pack(x.astype(np.float32).reshape(70, kv_heads, -1)))
            .reshape(70, -1)
            .astype(np.float64)
            for x in (k, v)
        )
        wanted = _attend(
            q, k, v, heads, kv_heads, 0.3,
            options.get("window"), options.get("softcap"), sinks if "sinks" in options else None,
        )  # fmt: skip
        self.close(rig.run(range(70)), wanted)

    def test_keys_are_stored_where_the_layout_says(self, backend: Backend) -> None:
        """B6: keys and values lie in the cache where `KVLayout` says, and no other position is written."""
        graph, weights = tiny_llama()
        rig = Rig(backend, graph, weights, kv_type="f16")
        rig.caches = [KVCache(rig.layout), KVCache(rig.layout)]
        for cache in rig.caches:
            cache.reserve(CHUNK_POSITIONS)
            cache.chunks[0][:] = 77
        rig.run([4, 9], [0, 1], [1, 1])
        assert (rig.caches[0].chunks[0] == 77).all()
        for (kv_heads, *widths), offsets in zip(rig.layout.layers, rig.layout.offsets(), strict=True):
            for at, width in zip(offsets, widths, strict=True):
                part = rig.caches[1].chunks[0][at : at + kv_heads * CHUNK_POSITIONS * width * 2]
                rows = part.reshape(kv_heads, CHUNK_POSITIONS, width * 2)
                assert (rows[:, :2] != 77).any(axis=2).all()
                assert (rows[:, 2:] == 77).all()

    def test_chunks_give_the_same_bits(self, backend: Backend) -> None:
        """B7: a prompt in one pass, in chunks, or token by token gives the same bits, across chunks of the cache
        too."""
        graph, weights = tiny_llama()
        tokens = np.random.default_rng(1).integers(0, 50, CHUNK_POSITIONS + 30).tolist()
        whole = Rig(backend, graph, weights, kv_type="f16", max_tokens=len(tokens)).run(tokens)
        assert np.isfinite(whole).all()
        for size in (1, 7, 64):
            rig = Rig(backend, graph, weights, kv_type="f16")
            parts = [
                rig.run(tokens[at : at + size], range(at, min(at + size, len(tokens))))
                for at in range(0, len(tokens), size)
            ]
            np.testing.assert_array_equal(np.concatenate(parts), whole)

    def test_sequences_do_not_meet(self, backend: Backend) -> None:
        """B8: sequences in one batch, interleaved and of different ages, give the bits that each gives alone."""
        graph, weights = tiny_llama()
        a, b = [1, 2, 3, 4, 5, 6], [9, 8, 7]
        alone = [Rig(backend, graph, weights).run(s) for s in (a, b)]
        rig = Rig(backend, graph, weights)
        rig.run(a[:3], wanted=[False] * 3)
        both = rig.run([a[3], b[0], a[4], b[1], b[2], a[5]], [3, 0, 4, 1, 2, 5], [0, 1, 0, 1, 1, 0])
        np.testing.assert_array_equal(both[[0, 2, 5]], alone[0][3:])
        np.testing.assert_array_equal(both[[1, 3, 4]], alone[1])

    def test_wanted_rows(self, backend: Backend) -> None:
        """B9: logits hold the wanted tokens in batch order; nothing is written when none is wanted."""
        graph, weights = tiny_llama()
        whole = Rig(backend, graph, weights).run([5, 6, 7, 8])
        some = Rig(backend, graph, weights).run([5, 6, 7, 8], wanted=[False, True, False, True])
        np.testing.assert_array_equal(some, whole[[1, 3]])
        assert Rig(backend, graph, weights).run([5, 6], wanted=[False, False]).shape == (0, 50)

    def test_a_pass_may_be_cut(self, backend: Backend) -> None:
        """B10: a pass cut into runs over consecutive steps gives the same bits as one run."""
        graph, weights = tiny_llama()
        whole = Rig(backend, graph, weights).run([5, 6, 7], wanted=[True, False, True])
        every = range(1, len(graph.ops))
        for cuts in ([1], [4, 17], list(every)):
            got = Rig(backend, graph, weights).run([5, 6, 7], wanted=[True, False, True], cuts=cuts)
            np.testing.assert_array_equal(got, whole)

    def test_threads_give_the_same_bits(self, backend: Backend) -> None:
        """B11: the number of threads changes no bit, and neither does running again."""
        graph, weights = tiny_llama(width=512, heads=8, kv_heads=4)
        tokens = list(range(48))
        rig = Rig(backend, graph, weights, threads=1)
        one = rig.run(tokens)
        np.testing.assert_array_equal(rig.run(tokens), one)
        two = Rig(backend, graph, weights, threads=2)
        for _ in range(5):
            np.testing.assert_array_equal(two.run(tokens), one)

    def test_stop(self, backend: Backend) -> None:
        """B12: with the stop flag raised a run ends with Interrupted; afterwards the program works as before."""
        graph, weights = tiny_llama()
        rig = Rig(backend, graph, weights)
        before = rig.run([1, 2, 3])
        rig.control.stop()
        with pytest.raises(Interrupted):
            rig.run([1, 2, 3])
        rig.control.reset()
        np.testing.assert_array_equal(rig.run([1, 2, 3]), before)

    def test_progress(self, backend: Backend) -> None:
        """B13: after a run ``control.done`` is the number of its steps."""
        graph, weights = tiny_llama()
        rig = Rig(backend, graph, weights)
        rig.run([1, 2, 3])
        assert rig.control.done == len(graph.ops)
        rig.run([1, 2, 3], cuts=[5])
        assert rig.control.done == len(graph.ops) - 5

    def test_workspace_is_stated(self, backend: Backend) -> None:
        """B14: what compile and run allocate is never more than ``workspace_bytes`` says, apart from small objects."""
        graph, weights = tiny_llama(width=512, heads=8, kv_heads=4, layers=1)
        for n in (64, 512):
            tokens = [i % 50 for i in range(n)]
            Rig(backend, graph, weights, max_tokens=n).run(tokens[:2])  # imports and caches of its own
            stated = Rig(backend, graph, weights, max_tokens=n).program.workspace_bytes(n)
            tracemalloc.start()
            try:
                rig = Rig(backend, graph, weights, max_tokens=n, max_context=512)
                rig.run(tokens)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            others = (
                sum(w.nbytes for w in weights.values())
                + n * 50 * 4
                + rig.caches[0].capacity * rig.layout.bytes_per_token
            )
            assert peak - others <= rig.program.workspace_bytes(n) + (1 << 18)
            assert stated >= rig.program.workspace_bytes(n // 2)

    def test_bind_checks_sizes(self, backend: Backend) -> None:
        """B15: a weight of a wrong size is refused by name; a weight may be bound anew."""
        graph, weights = tiny_llama()
        rig = Rig(backend, graph, weights)
        with pytest.raises(ShapeError, match=r"1\.down"):
            rig.program.bind({"1.down": packed(weights["1.down"])[:-4]})
        before = rig.run([1, 2])
        rig.program.bind({"norm": packed(weights["norm"] * 2), "embed": packed(weights["embed"])})
        np.testing.assert_allclose(rig.run([1, 2]), 2 * before, rtol=1e-6)

    @pytest.mark.parametrize("name", ["0.norm1", "0.q", "0.v", "1.down"])
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_what_is_not_finite_is_not_lost(self, backend: Backend, name: str, bad: float) -> None:
        """B16: a weight that is no number makes logits that are no numbers; nothing hides it."""
        graph, weights = tiny_llama()
        weights[name].reshape(-1)[5] = bad
        assert not np.isfinite(Rig(backend, graph, weights).run([1, 2, 3])).all(axis=1).any()

    @pytest.mark.parametrize("name", MIXTURES)
    def test_experts(self, backend: Backend, name: str) -> None:
        """B17: route and moe give what their formulas say, for one token and for many."""
        graph, weights = mixture_graph(**MIXTURES[name])
        rig = Rig(backend, graph, weights, max_tokens=TOKENS)
        for tokens in ([3], list(range(TOKENS))):
            self.close(rig.run(tokens), mixture_formula(weights, tokens, **MIXTURES[name]))

    def test_equal_scores(self, backend: Backend) -> None:
        """B18: of experts with equal scores the lower number is chosen, and what is not a number is not lost."""
        graph, weights = mixture_graph(normalise=True, chosen=3)
        weights["router"][:] = weights["router"][0]
        route = next(op for op in graph.ops if isinstance(op, Route))
        cut = graph.ops.index(route) + 1
        rig = Rig(backend, graph, weights)
        batch = rig.batch([4, 5])
        logits = np.empty((2, graph.logits.width), np.float32)
        rig.program.run(batch, rig.caches, logits, rig.control, range(cut))
        np.testing.assert_array_equal(rig.program.read(route.out)[:, :3], [[0, 1, 2]] * 2)
        np.testing.assert_allclose(rig.program.read(route.out)[:, 3:], 1 / 3, rtol=1e-6)
        weights["router"][7, 0] = np.nan
        assert np.isnan(Rig(backend, graph, weights).run([4])).all()

    def test_experts_may_come_later(self, backend: Backend) -> None:
        """B19: experts taken in several runs, or by several threads, or for some tokens only, give the same bits."""
        graph, weights = mixture_graph(normalise=True, chosen=3)
        moe = next(i for i, op in enumerate(graph.ops) if isinstance(op, Moe))
        whole = Rig(backend, graph, weights, max_tokens=TOKENS, threads=1).run(range(TOKENS))
        rig = Rig(backend, graph, weights, max_tokens=TOKENS, threads=2)
        np.testing.assert_array_equal(rig.run(range(TOKENS)), whole)
        np.testing.assert_array_equal(rig.run([7, 100, 7]), whole[[7, 100, 7]])
        for bounds in ([0, 4, 9], [0, 1, 2, 8, 9]):
            batch, logits = rig.batch(range(TOKENS)), np.empty_like(whole)
            rig.program.run(batch, rig.caches, logits, rig.control, range(moe))
            for start, stop in pairwise(bounds):
                experts, step = range(start, stop), range(moe, moe + 1)
                rig.program.run(batch, rig.caches, logits, rig.control, step, experts)
            np.testing.assert_array_equal(logits, whole)

    def test_only_chosen_experts_are_needed(self, backend: Backend) -> None:
        """B20: experts are bound one by one; one that is chosen and not bound is a ParameterError, others are not
        missed."""
        graph, weights = mixture_graph(normalise=True)
        route = next(op for op in graph.ops if isinstance(op, Route))
        rig = Rig(backend, graph, weights)
        whole = rig.run([5])
        cut = graph.ops.index(route) + 1
        batch, logits = rig.batch([5]), np.empty_like(whole)
        rig.program.run(batch, rig.caches, logits, rig.control, range(cut))
        chosen = [int(e) for e in rig.program.read(route.out)[0, :2]]
        rest = Rig(
            backend,
            graph,
            {n: w for n, w in weights.items() if n not in ("gate", "up", "down")},
            missing=weights,
        )
        for name in ("gate", "up", "down"):
            with pytest.raises(ParameterError):
                rest.run([5])
            rest.program.bind_experts(name, {e: packed(weights[name][e]) for e in chosen})
        np.testing.assert_array_equal(rest.run([5]), whole)
        with pytest.raises(ShapeError, match="gate"):
            rest.program.bind_experts("gate", {0: packed(weights["gate"][0])[:-4]})
