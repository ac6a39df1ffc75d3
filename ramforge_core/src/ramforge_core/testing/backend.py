"""Conformance suite of backends: subclass `BackendTests` and give it the fixture ``backend``.

Weights are float32 without kernels, so the suite tests the ops, by their formulas, and not a number format. Clauses are
numbered in ``docs/conformance.md``.
"""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest

from ramforge_core.backend import Backend, ExpertRun
from ramforge_core.errors import Interrupted, ParameterError, ShapeError
from ramforge_core.graph import GRAPH_VERSION, GraphBuilder, Moe, Rope, Route
from ramforge_core.kv import CHUNK_POSITIONS, KV_TYPES, KVCache, KVType
from ramforge_core.rope import rope_frequencies
from ramforge_core.testing.experts import MIXTURES, TOKENS, mixture_formula, mixture_graph
from ramforge_core.testing.formulas import ATTENTIONS, F64, OPS, ROPES, attend
from ramforge_core.testing.rig import F32, Rig, packed, tiny_llama


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

    def test_graph_version(self, backend: Backend) -> None:
        """B21: graph_version is that of this suite, which tries all its ops."""
        assert type(backend.graph_version) is int
        assert backend.graph_version == GRAPH_VERSION

    def test_steps_are_the_ops(self, backend: Backend) -> None:
        """B2: there is one step for every op, in order, with the weights that it reads."""
        graph, weights = tiny_llama()
        steps = Rig(backend, graph, weights).program.steps
        assert [s.op for s in steps] == list(range(len(graph.ops)))
        assert steps[0].weights == ("embed",)
        assert steps[2].weights == ("0.q", "0.bias")
        assert [s.stage for s in steps][-1] == "head"

    @pytest.mark.parametrize("name", OPS)
    def test_op(self, backend: Backend, name: str) -> None:
        """B3: every op gives what its formula says, for one token and for many, whatever the width."""
        build, formula = OPS[name]
        rng = np.random.default_rng(5)
        shapes = {
            "x": (40, 60),
            "y": (40, 60),
            "v": (60,),
            "u": (60,),
            "group": (20,),
            "m": (71, 60),
            "mb": (71,),
            "hm": (3, 33, 20),
        }
        weights = {n: rng.standard_normal(s).astype(np.float32) * 2 for n, s in shapes.items()}
        g = GraphBuilder(shapes)
        with g.stage("only"):
            g.logits(build(g, g.embed("x"), g.embed("y")))
        rig = Rig(backend, g.finish(), weights)
        exact = {n: w.astype(np.float64) for n, w in weights.items()}
        for tokens in ([3], list(range(39, -1, -1))):
            self.close(rig.run(tokens), formula(exact["x"][tokens], exact["y"][tokens], exact))

    @pytest.mark.parametrize("name", ROPES)
    def test_rope(self, backend: Backend, name: str) -> None:
        """B4: rope turns the pairs that are meant by the angles of `rope_frequencies`, at far positions too."""
        options = {"head_width": 16, "rotary_width": 16, "base": 1000.0, **ROPES[name]}
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

    @pytest.mark.parametrize("name", ATTENTIONS)
    @pytest.mark.parametrize("kv_type", KV_TYPES)
    def test_attention(self, backend: Backend, name: str, kv_type: KVType) -> None:
        """B5: attention gives what its formula says, on keys and values rounded to the cache's type."""
        options = {
            "heads": 6,
            "kv_heads": 6,
            "key_width": 32 if kv_type == "q8_0" else 16,
            "value_width": 32 if kv_type == "q8_0" else 16,
            "scale": 0.3,
            **ATTENTIONS[name],
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
        wanted = attend(
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
        """B19: experts taken in several runs, or by several threads, or for some tokens only, give the same bits.

        Hidden values may come in any order before the sums that they are for.
        """
        graph, weights = mixture_graph(normalise=True, chosen=3)
        moe = next(i for i, op in enumerate(graph.ops) if isinstance(op, Moe))
        whole = Rig(backend, graph, weights, max_tokens=TOKENS, threads=1).run(range(TOKENS))
        rig = Rig(backend, graph, weights, max_tokens=TOKENS, threads=2)
        np.testing.assert_array_equal(rig.run(range(TOKENS)), whole)
        np.testing.assert_array_equal(rig.run([7, 100, 7]), whole[[7, 100, 7]])
        together = [
            [ExpertRun(range(a, b), range(a, b)) for a, b in pairwise(cut)] for cut in ([0, 4, 9], range(10))
        ]
        none = range(0)
        apart = [
            ExpertRun([8, 2, 5], none),
            ExpertRun([0, 1], range(3)),
            ExpertRun([7], range(3, 3)),
            ExpertRun([6, 4, 3], range(3, 3)),
            ExpertRun([], range(3, 9)),
        ]
        for runs in (*together, apart, [ExpertRun([e], none) for e in range(9)] + [ExpertRun([], range(9))]):
            batch, logits = rig.batch(range(TOKENS)), np.empty_like(whole)
            rig.program.run(batch, rig.caches, logits, rig.control, range(moe))
            for experts in runs:
                rig.program.run(batch, rig.caches, logits, rig.control, range(moe, moe + 1), experts)
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
