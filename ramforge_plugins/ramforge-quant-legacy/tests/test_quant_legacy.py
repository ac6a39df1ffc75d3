"""The formats of 32 values: conformance, another implementation, hand-computed blocks, the stated expression."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ramforge_core.quant import QuantFormat
from ramforge_core.testing.kernels import machine_isas, pack, run_matmul, unpack_q8
from ramforge_core.testing.quant import QuantFormatTests, same_bits
from ramforge_quant_legacy import ramforge_quant_formats

FORMATS = {f.name: f for f in ramforge_quant_formats()}
MINIMUM = {"q4_1", "q5_1"}
"""Formats with a minimum m at byte 2; all have their scale d at byte 0."""


class TestLegacy(QuantFormatTests):
    @pytest.fixture(params=FORMATS)
    def quant_format(self, request: pytest.FixtureRequest) -> QuantFormat:
        return FORMATS[request.param]


def halves(*values: float) -> bytes:
    return np.array(values, "<f2").tobytes()


HAND_COMPUTED = {
    # nibbles 0x21: values 0..15 have q = 1, values 16..31 q = 2
    "q4_0": (halves(0.5) + b"\x21" * 16, [0.5 * (1 - 8)] * 16 + [0.5 * (2 - 8)] * 16),
    "q4_1": (halves(0.5, -3) + b"\x21" * 16, [0.5 * 1 - 3] * 16 + [0.5 * 2 - 3] * 16),
    # fifth bits: only of value 0 and of value 31
    "q5_0": (
        halves(0.5) + b"\x01\x00\x00\x80" + b"\x21" * 16,
        [0.5 * (17 - 16)] + [0.5 * (1 - 16)] * 15 + [0.5 * (2 - 16)] * 15 + [0.5 * (18 - 16)],
    ),
    "q5_1": (
        halves(0.5, -3) + b"\x01\x00\x00\x80" + b"\x21" * 16,
        [0.5 * 17 - 3] + [0.5 * 1 - 3] * 15 + [0.5 * 2 - 3] * 15 + [0.5 * 18 - 3],
    ),
    "q8_0": (
        halves(0.25) + bytes(range(16)) + bytes(range(240, 256)),
        [0.25 * q for q in (*range(16), *range(-16, 0))],
    ),
}


@pytest.mark.parametrize("name", HAND_COMPUTED)
def test_hand_computed_block(name: str) -> None:
    block, values = HAND_COMPUTED[name]
    decoded = FORMATS[name].decode(np.frombuffer(block, np.uint8)[None])
    assert decoded.tolist() == [values]


def random_blocks(fmt: QuantFormat, n: int, scale: float = 1.0) -> np.ndarray:
    """Random bytes with scales and minima of both signs, from subnormal to ``scale``."""
    rng = np.random.default_rng(7)
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), np.uint8)
    exponents = rng.integers(-24, 1, (n, 2)) if scale == 1.0 else np.zeros((n, 2))
    fields = (rng.uniform(-scale, scale, (n, 2)) * 2.0**exponents).astype("<f2").view(np.uint8)
    width = 4 if fmt.name in MINIMUM else 2
    blocks[:, :width] = fields[:, :width]
    return blocks


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_decode_equals_gguf(fmt: QuantFormat) -> None:
    kind = gguf.GGMLQuantizationType(fmt.ggml_type)
    assert kind.name.lower() == fmt.name
    assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block_values, fmt.block_bytes)
    blocks = random_blocks(fmt, 2000)
    assert same_bits(fmt.decode(blocks), gguf.quants.dequantize(blocks, kind))


def stated_product(fmt: QuantFormat, weights: np.ndarray, columns: int, acts: np.ndarray) -> np.ndarray:
    """The expression of ``ramforge_tile_q8_32.h`` in NumPy: exact integers inside a block, float32 across."""
    blocks = weights.reshape(-1, fmt.block_bytes).copy()
    shape = (len(weights), columns // 32)
    d = blocks[:, 0:2].copy().view("<f2").astype(np.float32).reshape(shape)
    m = blocks[:, 2:4].copy().view("<f2").astype(np.float32).reshape(shape)
    blocks[:, 0:2] = np.frombuffer(halves(1), np.uint8)
    if fmt.name in MINIMUM:
        blocks[:, 2:4] = 0
    q = fmt.decode(blocks).astype(np.int64).reshape(*shape, 32)  # with scale 1 and minimum 0 the steps remain
    packed = unpack_q8("q8_32", acts)
    t = np.einsum("rbi,abi->abr", q, packed["q"].astype(np.int64)).astype(np.float32)
    acc = np.zeros((len(acts), len(weights)), np.float32)
    for b in range(shape[1]):
        acc = acc + (d[:, b] * packed["d"][:, b, None]) * t[:, b]
        if fmt.name in MINIMUM:
            acc = acc + m[:, b] * packed["s"][:, b, None]
    return acc


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("columns", [32, 64, 576, 896])
def test_matmul_is_the_stated_expression(fmt: QuantFormat, columns: int) -> None:
    rows, rng = 37, np.random.default_rng(3)
    weights = random_blocks(fmt, rows * columns // 32).reshape(rows, -1)
    acts = pack("q8_32", rng.normal(size=(13, columns)).astype(np.float32))
    expected = stated_product(fmt, weights, columns, acts)
    assert fmt.kernels is not None
    for isa in machine_isas() & set(fmt.kernels.functions):
        assert same_bits(run_matmul(fmt.kernels.functions[isa], weights, columns, acts), expected), isa


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_extremes_do_not_saturate(fmt: QuantFormat) -> None:
    """All weight bits set or clear against full-size activations of one sign: the largest integer sums there are."""
    rows, columns = 16, 256
    assert fmt.kernels is not None
    for fill in (0, 127, 128, 255):
        weights = np.full((rows * 8, fmt.block_bytes), fill, np.uint8)
        weights[:, : 4 if fmt.name in MINIMUM else 2] = 0x3B  # a half of about 0.9
        weights = weights.reshape(rows, -1)
        for sign in (1, -1):
            acts = pack("q8_32", np.full((9, columns), 127 * sign, np.float32))
            expected = stated_product(fmt, weights, columns, acts)
            for isa in machine_isas() & set(fmt.kernels.functions):
                assert same_bits(run_matmul(fmt.kernels.functions[isa], weights, columns, acts), expected), (
                    isa,
                    fill,
                )
