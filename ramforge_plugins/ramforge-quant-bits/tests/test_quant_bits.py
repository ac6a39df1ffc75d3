"""Q1_0 and Q2_0: conformance, hand-computed blocks, the stated expression. The package gguf does not decode them."""

from __future__ import annotations

import numpy as np
import pytest

from ramforge_core.gguf.types import GGML_TYPES
from ramforge_core.quant import QuantFormat
from ramforge_core.testing.kernels import machine_isas, pack, run_matmul, unpack_q8
from ramforge_core.testing.quant import QuantFormatTests, same_bits
from ramforge_quant_bits import ramforge_quant_formats

FORMATS = {f.name: f for f in ramforge_quant_formats()}


class TestBits(QuantFormatTests):
    @pytest.fixture(params=FORMATS)
    def quant_format(self, request: pytest.FixtureRequest) -> QuantFormat:
        return FORMATS[request.param]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_size_facts(fmt: QuantFormat) -> None:
    known = GGML_TYPES[fmt.ggml_type]
    assert (known.name, known.block_values, known.block_bytes) == (
        fmt.name,
        fmt.block_values,
        fmt.block_bytes,
    )


def test_hand_computed_q1_0() -> None:
    block = np.zeros(18, np.uint8)
    block[:2], block[2], block[17] = np.array([0.5], "<f2").view(np.uint8), 0b101, 0x80
    expected = np.full(128, -0.5, np.float32)
    expected[[0, 2, 127]] = 0.5
    assert same_bits(FORMATS["q1_0"].decode(block[None])[0], expected)


def test_hand_computed_q2_0() -> None:
    block = np.full(18, 0b01010101, np.uint8)
    block[:2], block[2], block[17] = np.array([0.5], "<f2").view(np.uint8), 0b11100100, 0b11010101
    expected = np.zeros(64, np.float32)
    expected[:4], expected[63] = [-0.5, 0, 0.5, 1], 1
    assert same_bits(FORMATS["q2_0"].decode(block[None])[0], expected)


def stated_product(fmt: QuantFormat, blocks: np.ndarray, rows: int, acts: np.ndarray) -> np.ndarray:
    """The expression of ``ramforge_tile_q8_32_wide.h``: exact integers in 32 values, float32 across."""
    d = (
        blocks[:, :2]
        .copy()
        .view("<f2")
        .astype(np.float32)
        .repeat(fmt.block_values // 32, axis=1)
        .reshape(rows, -1)
    )
    plain = blocks.copy()
    plain[:, :2] = np.array([1], "<f2").view(np.uint8)
    steps = fmt.decode(plain).astype(np.int64).reshape(rows, -1, 32)
    packed = unpack_q8("q8_32", acts)
    t = np.einsum("rbi,abi->abr", steps, packed["q"].astype(np.int64)).astype(np.float32)
    acc = np.zeros((len(acts), rows), np.float32)
    for b in range(d.shape[1]):
        acc = acc + (d[:, b] * packed["d"][:, b, None]) * t[:, b]
    return acc


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("columns", [128, 896])
@pytest.mark.parametrize("fill", [None, 0, 255])
def test_matmul_is_the_stated_expression(fmt: QuantFormat, columns: int, fill: int | None) -> None:
    """With random bits; and with all bits alike against full-size activations, the largest sums there are."""
    rows, rng = 37, np.random.default_rng(3)
    n = rows * columns // fmt.block_values
    blocks = rng.integers(0, 256, (n, 18), np.uint8) if fill is None else np.full((n, 18), fill, np.uint8)
    blocks[:, :2] = (
        (rng.uniform(-1, 1, n) * 2.0 ** rng.integers(-24, 1, n)).astype("<f2").view(np.uint8).reshape(-1, 2)
    )
    x = rng.normal(size=(13, columns)) if fill is None else np.full((13, columns), 127.0)
    acts = pack("q8_32", x.astype(np.float32))
    expected = stated_product(fmt, blocks, rows, acts)
    assert fmt.kernels is not None
    for isa in machine_isas() & set(fmt.kernels.functions):
        product = run_matmul(fmt.kernels.functions[isa], blocks.reshape(rows, -1), columns, acts)
        assert same_bits(product, expected), isa
