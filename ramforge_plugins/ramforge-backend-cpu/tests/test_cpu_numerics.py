"""The arithmetic of the C part: our own functions, packing, and the same bits on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from python_kernels import packed_as_kernels_see_it

from ramforge_backend_cpu import CpuBackend
from ramforge_backend_cpu.machine import ISA_VARIABLE, instruction_sets, native
from ramforge_core.graph import GraphBuilder
from ramforge_core.memory import allocate
from ramforge_core.testing.rig import Rig, tiny_llama

ISAS = list(instruction_sets())
HERE = [i for i, is_here in enumerate(instruction_sets().values()) if is_here]
FUNCTIONS = {"exp": np.exp, "tanh": np.tanh, "sin": np.sin, "cos": np.cos}


def computed(isa, name, x):
    ffi, lib = native().ffi, native().lib
    out = np.empty_like(x)
    args = ffi.from_buffer("float[]", x), len(x), ffi.from_buffer("float[]", out, require_writable=True)
    assert lib.rf_test_math(isa, list(FUNCTIONS).index(name), *args) == 0
    return out


@pytest.mark.parametrize(
    ("name", "low", "high", "ulps"),
    [("exp", -87, 88, 2), ("tanh", -20, 20, 3), ("sin", 0, 3e5, 0.51), ("cos", 0, 3e5, 0.51)],
)
def test_functions_are_right_and_alike(name, low, high, ulps):
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.uniform(low, high, 200_001), rng.uniform(-1e-3, 1e-3, 5000), [0, low, high, 0.625, -0.625]]
    )
    x = x.astype(np.float32)
    exact = FUNCTIONS[name](x.astype(np.float64))
    results = [computed(isa, name, x) for isa in HERE]
    for got in results[1:]:
        np.testing.assert_array_equal(got, results[0])
    assert (np.abs(results[0] - exact) / np.spacing(np.abs(exact).astype(np.float32))).max() <= ulps


def test_functions_at_the_edges():
    x = np.float32([-np.inf, -1000, -88, 0, np.nan])
    for isa in HERE:
        np.testing.assert_array_equal(computed(isa, "exp", x), np.float32([0, 0, 0, 1, np.nan]))
        x2 = np.float32([-np.inf, -50, 0, 50, np.inf, np.nan])
        np.testing.assert_array_equal(computed(isa, "tanh", x2), np.float32([-1, -1, 0, 1, 1, np.nan]))


def logits(monkeypatch, isa, graph, weights, **options):
    monkeypatch.setenv(ISA_VARIABLE, isa)
    return Rig(CpuBackend(), graph, weights, **options).run([(7 * i) % 50 for i in range(61)])


@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_i04_every_instruction_set_gives_the_same_bits(monkeypatch, kv_type):
    graph, weights = tiny_llama(width=60, heads=5, kv_heads=5)  # widths that are no whole number of lanes
    results = [logits(monkeypatch, ISAS[i], graph, weights, kv_type=kv_type) for i in HERE]
    assert np.isfinite(results[0]).all()
    for got in results[1:]:
        np.testing.assert_array_equal(got, results[0])


@pytest.mark.parametrize("bits", [range(0x0000, 0x10000, 7), range(0x0420), range(0x7BF0, 0x7C10)])
def test_f16_is_read_and_written_exactly(monkeypatch, bits):
    """Values that the cache holds come back: one token that sees only itself gets its own value rounded to f16."""
    exact = np.array(bits, np.uint16).view(np.float16).astype(np.float32)
    exact = exact[np.isfinite(exact)]
    exact = np.concatenate([exact, np.nextafter(exact, np.float32(np.inf)), exact * np.float32(1 + 2.0**-11)])
    exact = np.resize(exact, (-(-len(exact) // 40), 40)).astype(np.float32)
    rows = {"v": exact, "q": np.zeros((len(exact), 8), np.float32)}
    g = GraphBuilder({n: w.shape for n, w in rows.items()})
    with g.stage("only"):
        q = g.embed("q")
        g.logits(
            g.attention(
                q, q, g.embed("v"), heads=1, kv_heads=1, key_width=8, value_width=40, scale=1.0, window=1
            )
        )
    for isa in HERE:
        monkeypatch.setenv(ISA_VARIABLE, ISAS[isa])
        rig = Rig(
            CpuBackend(), g.finish(), rows, kv_type="f16", max_tokens=len(exact), max_context=len(exact)
        )
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(
                rig.run(range(len(exact))), exact.astype(np.float16).astype(np.float32)
            )


def packed_by_numpy(x, size):
    """Blocks as in ramforge_kernel.h: d and q."""
    blocks = x.reshape(-1, size)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    q = np.rint(blocks / np.where(d == 0, np.float32(1), d)[:, None])
    return d, np.clip(q, -127, 127).astype(np.int8)


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize(("packing", "size"), [("q8_32", 32), ("q8_256", 256)])
def test_packing(isa, packing, size, monkeypatch):
    """Activations reach a kernel as the header says; halves go to even, tiny and zero blocks are sound."""
    monkeypatch.setenv(ISA_VARIABLE, ISAS[isa])
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((9, 512)) * 10.0 ** rng.integers(-3, 4, (9, 1))).astype(np.float32)
    x[1] = 0
    x[2, :256] = np.arange(256) % 128 - 0.5  # halves, with d = 1
    x[2, 0::32] = 127
    x[3] *= np.float32(1e-43)
    x[4, 5] = -np.abs(x[4]).max() * 2
    acts = packed_as_kernels_see_it(packing, x)
    d, q = packed_by_numpy(x, size)
    sums = q.astype(np.int32).reshape(len(q), -1, 16).sum(axis=2)
    layout = {"q8_32": [("q", "i1", 32), ("d", "<f4"), ("s", "<f4"), ("sum", "<i4")],
              "q8_256": [("q", "i1", 256), ("sum", "<i2", 16), ("d", "<f4")]}[packing]  # fmt: skip
    rows = np.ascontiguousarray(acts[:, : 512 // size * np.dtype(layout).itemsize])
    got = rows.view(np.dtype(layout)).reshape(-1)
    np.testing.assert_array_equal(got["d"], d)
    np.testing.assert_array_equal(got["q"], q)
    if packing == "q8_256":
        np.testing.assert_array_equal(got["sum"], sums)
    else:
        np.testing.assert_array_equal(got["sum"], sums.sum(axis=1))
        np.testing.assert_array_equal(got["s"], d * sums.sum(axis=1).astype(np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("packing", ["q8_32", "q8_256"])
def test_packing_keeps_what_is_not_finite(packing, bad):
    x = np.ones((1, 256), np.float32)
    x[0, 77] = bad
    acts = packed_as_kernels_see_it(packing, x)
    at = 2 * 44 + 32 if packing == "q8_32" else 288
    assert not np.isfinite(acts[0, at : at + 4].copy().view("<f4")[0])


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q4_k", "q6_k", "f16"])
def test_quantized_weights_give_the_same_bits_in_every_way(monkeypatch, name):
    """Batches of any size, any number of threads and every instruction set: one result."""
    module = pytest.importorskip({"q4_0": "ramforge_quant_legacy", "q8_0": "ramforge_quant_legacy"}.get(
        name, "ramforge_quant_float" if name == "f16" else "ramforge_quant_k"))  # fmt: skip
    quant = next(f for f in module.ramforge_quant_formats() if f.name == name)
    graph, weights = tiny_llama(width=512, layers=1, heads=4, kv_heads=2)
    rng = np.random.default_rng(8)
    blocks = {n: quantized(quant, w.shape, rng) for n, w in weights.items() if w.ndim == 2}
    results = []
    for isa in HERE:
        for threads, size in ((1, 1), (2, 3), (2, 64)):
            monkeypatch.setenv(ISA_VARIABLE, ISAS[isa])
            rig = Rig(
                CpuBackend(),
                graph,
                weights,
                threads=threads,
                formats=dict.fromkeys(blocks, quant),
                data=blocks,
            )
            tokens = range(20)
            parts = [rig.run(tokens[at : at + size], tokens[at : at + size]) for at in range(0, 20, size)]
            results.append(np.concatenate(parts))
    assert np.isfinite(results[0]).all()
    for got in results[1:]:
        np.testing.assert_array_equal(got, results[0])


def quantized(quant, shape, rng):
    """Random blocks with sane scales: aligned uint8."""
    n = int(np.prod(shape)) // quant.block_values
    raw = rng.integers(0, 256, (n, quant.block_bytes), dtype=np.uint8)
    small = np.frombuffer(np.float16(0.004).tobytes(), np.uint8)
    if quant.name == "f16":
        raw = rng.standard_normal((n, 1)).astype(np.float16).view(np.uint8)
    at = {"q6_k": [208], "q4_k": [0, 2]}.get(quant.name, [0] if quant.name != "f16" else [])
    for offset in at:
        raw[:, offset : offset + 2] = small
    out = allocate(raw.size)
    out[:] = raw.reshape(-1)
    return out


def attention_over(kv_type, options, rng):
    """A graph of attention alone: token t has row t of the queries, keys and values. 4 heads share 2 of width 32."""
    n = 1300
    rows = {
        "q": rng.standard_normal((n, 128)),
        "k": rng.standard_normal((n, 64)),
        "v": rng.standard_normal((n, 96)),
    }
    weights = {name: w.astype(np.float32) for name, w in rows.items()} | {
        "sinks": np.float32([0.5, -1, 3, 0])
    }
    g = GraphBuilder({name: w.shape for name, w in weights.items()})
    with g.stage("only"):
        q, k, v = (g.embed(name) for name in "qkv")
        widths = {"heads": 4, "kv_heads": 2, "key_width": 32, "value_width": 48 if kv_type != "q8_0" else 32}
        if kv_type == "q8_0":
            v = g.slice(v, 0, 64)
        g.logits(g.attention(q, k, v, scale=0.4, **widths, **options))
    return g.finish(), weights, n


@pytest.mark.parametrize("options", [{}, {"window": 600, "softcap": 3.0}, {"window": 40, "sinks": "sinks"}],
                         ids=["whole", "window", "sinks"])  # fmt: skip
@pytest.mark.parametrize("kv_type", ["f16", "f32", "q8_0"])
def test_attention_over_many_ranges_of_keys(monkeypatch, kv_type, options):
    """Whoever computes which range beside whatever other tokens, on any instruction set: the same bits, and right."""
    graph, weights, n = attention_over(kv_type, options, np.random.default_rng(4))
    used = [w for w in weights if w != "sinks" or "sinks" in options]
    weights = {name: weights[name] for name in used}
    last = range(n - 7, n)
    results = []
    for isa in HERE:
        for threads, ways in ((1, [(7,)]), (2, [(1,) * 7, (3, 4), (7,)])):
            monkeypatch.setenv(ISA_VARIABLE, ISAS[isa])
            rig = Rig(
                CpuBackend(), graph, weights, kv_type=kv_type, threads=threads, max_tokens=n, max_context=n
            )
            rig.run(range(n - 7))
            for sizes in ways:
                starts = [last.start + sum(sizes[:i]) for i in range(len(sizes))]
                parts = [range(at, at + size) for at, size in zip(starts, sizes, strict=True)]
                results.append(np.concatenate([rig.run(part, part) for part in parts]))
    for got in results[1:]:
        np.testing.assert_array_equal(got, results[0])
    reference = pytest.importorskip("ramforge_backend_numpy").NumpyBackend()
    oracle = Rig(reference, graph, weights, kv_type=kv_type, max_tokens=n, max_context=n)
    np.testing.assert_allclose(results[0], oracle.run(range(n))[-7:], rtol=2e-5, atol=2e-5)


def test_the_end_of_a_stopped_pass_does_not_reach_into_the_next():
    """What is counted of a pass that stopped among its ranges is forgotten."""
    graph, weights, n = attention_over("f16", {}, np.random.default_rng(5))
    weights.pop("sinks")
    rig = Rig(CpuBackend(), graph, weights, kv_type="f16", threads=2, max_tokens=n, max_context=n)
    rig.run(range(n - 1))
    right = rig.run([n - 1], [n - 1])
    rig.program._alive["parts_done"][:] = 1
    np.testing.assert_array_equal(rig.run([n - 1], [n - 1]), right)
