"""F32, F16, BF16: conformance, every bit pattern, the stated order of sums."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ramforge_core.quant import QuantFormat
from ramforge_core.testing.kernels import machine_isas, pack, run_decode, run_matmul
from ramforge_core.testing.quant import QuantFormatTests, same_bits
from ramforge_quant_float import ramforge_quant_formats

FORMATS = {f.name: f for f in ramforge_quant_formats()}


class TestFloat(QuantFormatTests):
    product_tolerance = 1e-5

    @pytest.fixture(params=["f32", "f16"])
    def quant_format(self, request: pytest.FixtureRequest) -> QuantFormat:
        return FORMATS[request.param]


class TestBF16(QuantFormatTests):
    product_tolerance = 3e-3  # activations are rounded to 8 bits

    @pytest.fixture
    def quant_format(self) -> QuantFormat:
        return FORMATS["bf16"]


def all_patterns(fmt: QuantFormat) -> np.ndarray:
    """Every 16-bit pattern; of F32 as many random ones."""
    if fmt.block_bytes == 2:
        return np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    rng = np.random.default_rng(1)
    return rng.integers(0, 1 << 32, 1 << 16, np.uint32).astype("<u4").view(np.uint8).reshape(-1, 4)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_every_pattern_decodes(fmt: QuantFormat) -> None:
    kind = gguf.GGMLQuantizationType(fmt.ggml_type)
    assert kind.name.lower() == fmt.name
    assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block_values, fmt.block_bytes)
    blocks = all_patterns(fmt)
    values = fmt.decode(blocks)
    assert same_bits(values.ravel(), gguf.quants.dequantize(blocks, kind).ravel())
    assert fmt.kernels is not None
    for isa in machine_isas() & set(fmt.kernels.functions):
        assert same_bits(run_decode(fmt.kernels.functions[isa], blocks, 1), values), isa


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_every_finite_pattern_multiplies(fmt: QuantFormat) -> None:
    """One column: the product with 1 is the value itself, converted in the vector code of the instruction set."""
    blocks = all_patterns(fmt)
    values = fmt.decode(blocks)
    finite = np.isfinite(values[:, 0])
    rows = np.repeat(blocks[finite], 16, axis=1).reshape(-1, fmt.block_bytes, 16).transpose(0, 2, 1)
    rows = np.ascontiguousarray(rows).reshape(len(rows), -1)  # each value 16 times
    x = np.zeros((1, 16), np.float32)
    x[0, 5] = 1
    expected = values[finite].reshape(1, -1) + np.float32(0)  # a sum that starts at +0 cannot give -0
    if fmt.name == "bf16":
        expected[abs(expected) < 2.0**-126] = 0
    assert fmt.kernels is not None
    for isa in machine_isas() & set(fmt.kernels.functions):
        assert same_bits(run_matmul(fmt.kernels.functions[isa], rows, 16, pack("f32", x)), expected), isa


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of float32, rounded once: an exact product in float64 and a sum that is rounded to odd."""
    product = a.astype(np.float64) * b
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    bits = total.view(np.int64)
    other = bits + np.where((error > 0) == (total > 0), 1, -1)
    return np.where((error != 0) & (bits & 1 == 0), other, bits).view(np.float64).astype(np.float32)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32, rounded to the nearest BF16, the even one of two."""
    bits = x.view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def reduced(s: np.ndarray) -> np.ndarray:
    s = s[..., :8] + s[..., 8:]
    s = s[..., :4] + s[..., 4:]
    s = s[..., :2] + s[..., 2:]
    return s[..., 0] + s[..., 1]


def stated_product(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The order of ``float_rows.h`` in NumPy: 16 partial sums, then the fixed tree."""
    columns = w.shape[1]
    s = np.zeros((len(x), len(w), 16), np.float32)
    for k in range(0, columns, 16):
        a, b = x[:, None, k : k + 16], w[None, :, k : k + 16]
        n = a.shape[2]
        s[..., :n] = fma(a, b, s[..., :n])
    return reduced(s)


def stated_pairs(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The order of ``bf16_rows.h``: 16 partial sums of pairs, the odd value of a pair first."""
    fill = [(0, 0), (0, -w.shape[1] % 32)]
    w, x = np.pad(w, fill), np.pad(to_bf16(x), fill)
    s = np.zeros((len(x), len(w), 16), np.float32)
    for k in range(0, w.shape[1], 32):
        a, b = x[:, None, k : k + 32], w[None, :, k : k + 32]
        s = fma(a[..., 0::2], b[..., 0::2], fma(a[..., 1::2], b[..., 1::2], s))
    return reduced(s)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("columns", [1, 15, 16, 576, 1003])
@pytest.mark.parametrize("spread", [0, 12])
def test_matmul_is_the_stated_expression(fmt: QuantFormat, columns: int, spread: int) -> None:
    """spread : powers of two that values are apart at most, so that products meet sums of any size."""
    rng = np.random.default_rng(columns)
    values = rng.normal(size=(19, columns)) * np.exp2(rng.integers(-spread, spread + 1, (19, columns)))
    values = values.astype(np.float32)
    weights = (
        values.astype("<f2").view(np.uint8) if fmt.name == "f16" else values.astype("<f4").view(np.uint8)
    )
    if fmt.name == "bf16":
        weights = np.ascontiguousarray(weights.view("<u2")[:, 1::2]).view(np.uint8)
    x = rng.normal(size=(101, columns)).astype(np.float32)
    stated = stated_pairs if fmt.name == "bf16" else stated_product
    expected = stated(fmt.decode_rows(weights.reshape(-1), columns), x)
    assert fmt.kernels is not None
    for isa in machine_isas() & set(fmt.kernels.functions):
        assert same_bits(
            run_matmul(fmt.kernels.functions[isa], weights, columns, pack("f32", x)), expected
        ), isa
