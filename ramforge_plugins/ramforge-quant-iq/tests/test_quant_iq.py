"""The IQ formats: conformance, another implementation, its tables, hand-computed blocks, the stated expression."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ramforge_core.quant import QuantFormat
from ramforge_core.testing.kernels import machine_isas, pack, run_matmul, unpack_q8
from ramforge_core.testing.quant import QuantFormatTests, same_bits
from ramforge_quant_iq import ramforge_quant_formats
from ramforge_quant_iq.grids import GRIDS

FORMATS = {f.name: f for f in ramforge_quant_formats()}
UNIT = {"iq2_xxs": 8, "iq2_xs": 8, "iq2_s": 8, "iq3_xxs": 4, "iq1_s": 8, "iq1_m": 8}
"""How many times a value is an integer when d is 1: what is multiplied is that integer, and d / UNIT."""


class TestIQ(QuantFormatTests):
    @pytest.fixture(params=FORMATS)
    def quant_format(self, request: pytest.FixtureRequest) -> QuantFormat:
        return FORMATS[request.param]


def set_d(fmt: QuantFormat, blocks: np.ndarray, d: np.ndarray | float) -> None:
    half = np.broadcast_to(d, len(blocks)).astype("<f2")
    if fmt.name == "iq1_m":  # a nibble on top of each of four u16
        for i in range(4):
            nibble = (half.view("<u2") >> 4 * i & 15).astype(np.uint8)
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | nibble << 4
    else:
        blocks[:, :2] = half.view(np.uint8).reshape(-1, 2)


def random_blocks(fmt: QuantFormat, n: int, d: np.ndarray) -> np.ndarray:
    blocks = np.random.default_rng(7).integers(0, 256, (n, fmt.block_bytes), np.uint8)
    set_d(fmt, blocks, d)
    return blocks


def random_d(n: int) -> np.ndarray:
    """Scales of both signs, from subnormal to 1, as a half holds them."""
    rng = np.random.default_rng(8)
    return (rng.uniform(-1, 1, n) * 2.0 ** rng.integers(-24, 1, n)).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_decode_equals_gguf(fmt: QuantFormat) -> None:
    kind = gguf.GGMLQuantizationType(fmt.ggml_type)
    assert kind.name.lower() == fmt.name
    assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block_values, fmt.block_bytes)
    blocks = random_blocks(fmt, 2000, random_d(2000))
    assert same_bits(fmt.decode(blocks), gguf.quants.dequantize(blocks, kind))


@pytest.mark.parametrize("name", GRIDS)
def test_grid_equals_gguf(name: str) -> None:
    """Every point: random blocks need not meet each of 2048."""
    theirs = getattr(gguf.quants, name.upper())
    theirs.init_grid()
    assert np.array_equal(theirs.grid.reshape(theirs.grid_shape), GRIDS[name].points())


def test_hand_computed_iq4_xs() -> None:
    """Group 5: low bits of its scale are 9, high bits 2: 41 - 32 = 9. Its nibbles 0xF2 are -83 and 113."""
    block = np.zeros(136, np.uint8)
    block[:2] = np.array([0.5], "<f2").view(np.uint8)
    block[3], block[4 + 2] = 2 << 2, 9 << 4
    block[8 + 5 * 16 : 8 + 6 * 16] = 0xF2
    values = FORMATS["iq4_xs"].decode(block[None])[0]
    assert (values[160:176] == 0.5 * 9 * -83).all()
    assert (values[176:192] == 0.5 * 9 * 113).all()
    assert (values[:32] == 0.5 * -32 * -127).all()


def test_hand_computed_iq2_xxs() -> None:
    """Group 1: s = 3, so (2s + 1) / 8; signs 0b0000001 of its first point, the eighth makes them even. Point 0 is 8."""
    block = np.zeros(66, np.uint8)
    block[:2] = np.array([0.5], "<f2").view(np.uint8)
    block[2 + 8 + 4], block[2 + 8 + 7] = 1, 3 << 4
    values = FORMATS["iq2_xxs"].decode(block[None])[0]
    assert (values[:32] == 0.5 / 8 * 8).all()
    assert values[32] == values[39] == -0.5 * 7 / 8 * 8
    assert (values[33:39] == 0.5 * 7 / 8 * 8).all()
    assert (values[40:64] == 0.5 * 7 / 8 * 8).all()


def test_hand_computed_iq1_m() -> None:
    """d = 1 (0x3C00) spread over four nibbles; group 6 (values 96..111): s = 5, its second point shifted down."""
    block = np.zeros(56, np.uint8)
    block[53], block[55] = 0xC0, 0x30
    block[50:52] = np.array([5 << 6], "<u2").view(np.uint8)  # group 4 + 2: bits 6..8 of the second u16
    block[32 + 6] = 8 << 4
    values = FORMATS["iq1_m"].decode(block[None])[0]
    assert (values[:96] == -1 + 0.125).all()  # point 0 is all -1
    assert (values[96:104] == 11 * (-1 + 0.125)).all()
    assert (values[104:112] == 11 * (-1 - 0.125)).all()
    assert (values[112:] == -1 + 0.125).all()


def stated_product(
    fmt: QuantFormat, weights: np.ndarray, columns: int, acts: np.ndarray, d: np.ndarray
) -> np.ndarray:
    """The expression of the tile headers in NumPy: exact integers inside a block, float32 across."""
    assert fmt.kernels is not None
    shape, unit = (len(weights), columns // fmt.block_values), UNIT.get(fmt.name, 1)
    blocks = weights.reshape(-1, fmt.block_bytes).copy()
    set_d(fmt, blocks, 1)
    steps = (fmt.decode(blocks) * np.float32(unit)).astype(np.int64).reshape(*shape, fmt.block_values)
    packed = unpack_q8(fmt.kernels.packing, acts)
    sums = np.einsum("rbi,abi->abr", steps, packed["q"].astype(np.int64)).astype(np.float32)
    scale = (d / np.float32(unit)).astype(np.float32).reshape(shape)
    acc = np.zeros((len(acts), len(weights)), np.float32)
    for b in range(shape[1]):
        acc = acc + (scale[:, b] * packed["d"][:, b, None]) * sums[:, b]
    return acc


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("columns", [256, 768])
def test_matmul_is_the_stated_expression(fmt: QuantFormat, columns: int) -> None:
    rows, rng = 37, np.random.default_rng(3)
    n = rows * columns // fmt.block_values
    d = random_d(n)
    weights = random_blocks(fmt, n, d).reshape(rows, -1)
    assert fmt.kernels is not None
    acts = pack(fmt.kernels.packing, rng.normal(size=(13, columns)).astype(np.float32))
    expected = stated_product(fmt, weights, columns, acts, d)
    for isa in machine_isas() & set(fmt.kernels.functions):
        assert same_bits(run_matmul(fmt.kernels.functions[isa], weights, columns, acts), expected), isa


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_extremes_do_not_saturate(fmt: QuantFormat) -> None:
    """All weight bits set or clear against full-size activations of one sign: the largest integer sums there are."""
    assert fmt.kernels is not None
    rows, columns = 16, 256
    n = rows * columns // fmt.block_values
    for fill in (0, 127, 128, 255):
        weights = np.full((n, fmt.block_bytes), fill, np.uint8)
        d = np.full(n, 0.90234375, np.float32)
        set_d(fmt, weights, d)
        for sign in (1, -1):
            acts = pack(fmt.kernels.packing, np.full((9, columns), 127 * sign, np.float32))
            expected = stated_product(fmt, weights.reshape(rows, -1), columns, acts, d)
            for isa in machine_isas() & set(fmt.kernels.functions):
                product = run_matmul(fmt.kernels.functions[isa], weights.reshape(rows, -1), columns, acts)
                assert same_bits(product, expected), (isa, fill, sign)
