"""The K-quants: conformance, another implementation, hand-computed blocks, the stated expression."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ramforge_core.quant import QuantFormat
from ramforge_core.testing.kernels import machine_isas, pack, run_matmul, unpack_q8
from ramforge_core.testing.quant import QuantFormatTests, same_bits
from ramforge_quant_k import ramforge_quant_formats

FORMATS = {f.name: f for f in ramforge_quant_formats()}
SCALES = {"q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
"""Bytes at which d and, where there is one, dmin lie, both halves. Q8_K has a float32 at byte 0 instead."""


class TestK(QuantFormatTests):
    @pytest.fixture(params=FORMATS)
    def quant_format(self, request: pytest.FixtureRequest) -> QuantFormat:
        return FORMATS[request.param]


def set_scales(fmt: QuantFormat, blocks: np.ndarray, d: np.ndarray | float, dmin: np.ndarray | float) -> None:
    if fmt.name == "q8_k":
        blocks[:, :4] = np.broadcast_to(d, len(blocks)).astype("<f4").view(np.uint8).reshape(-1, 4)
        return
    for at, value in zip(SCALES[fmt.name], (d, dmin), strict=False):
        blocks[:, at : at + 2] = (
            np.broadcast_to(value, len(blocks)).astype("<f2").view(np.uint8).reshape(-1, 2)
        )


def get_scales(fmt: QuantFormat, blocks: np.ndarray) -> list[np.ndarray]:
    if fmt.name == "q8_k":
        return [blocks[:, :4].copy().view("<f4")[:, 0]]
    return [blocks[:, at : at + 2].copy().view("<f2")[:, 0].astype(np.float32) for at in SCALES[fmt.name]]


def random_blocks(fmt: QuantFormat, n: int) -> np.ndarray:
    """Random bytes with scales of both signs, from subnormal to 1."""
    rng = np.random.default_rng(7)
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), np.uint8)
    d, dmin = rng.uniform(-1, 1, (2, n)) * 2.0 ** rng.integers(-24, 1, (2, n))
    set_scales(fmt, blocks, d, dmin)
    return blocks


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_decode_equals_gguf(fmt: QuantFormat) -> None:
    kind = gguf.GGMLQuantizationType(fmt.ggml_type)
    assert kind.name.lower() == fmt.name
    assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block_values, fmt.block_bytes)
    if fmt.name == "q8_k":
        pytest.skip("gguf does not decode Q8_K")
    blocks = random_blocks(fmt, 500)
    assert same_bits(fmt.decode(blocks), gguf.quants.dequantize(blocks, kind))


def test_hand_computed_q4_k() -> None:
    """Group 0: scale 3, min 5; group 7: scale 3 + 16 * 2 = 35, min 1 + 16 * 1 = 17; the others zero."""
    block = np.zeros(144, np.uint8)
    block[:4] = np.array([0.5, 0.25], "<f2").view(np.uint8)
    block[4 + 0], block[4 + 4] = 3, 5
    block[4 + 3], block[4 + 7], block[4 + 11] = 2 << 6, 1 << 6, 1 << 4 | 3
    block[16:48] = 0x0A  # group 0: q = 10
    block[112:144] = 0x70  # group 7: q = 7
    values = FORMATS["q4_k"].decode(block[None])[0]
    assert (values[:32] == 0.5 * 3 * 10 - 0.25 * 5).all()
    assert (values[32:224] == 0).all()
    assert (values[224:] == 0.5 * 35 * 7 - 0.25 * 17).all()


def test_hand_computed_q6_k() -> None:
    """Group 5 (values 80..95): low nibbles are the low ones of ql[48..63], high bits are bits 2, 3 of qh[16..31]."""
    block = np.zeros(210, np.uint8)
    block[48:64], block[128 + 16 : 128 + 32] = 0x09, 2 << 4
    block[192 + 5] = 0xFD  # scale -3
    block[208:] = np.array([0.5], "<f2").view(np.uint8)
    values = FORMATS["q6_k"].decode(block[None])[0]
    assert (values[80:96] == 0.5 * -3 * (0 + 16 * 2 - 32)).all()
    block[192 + 3] = (
        2  # group 3 (values 48..63) takes the low nibbles of ql[48..63], and bits 2, 3 of qh[16..31]
    )
    assert (FORMATS["q6_k"].decode(block[None])[0][48:64] == 0.5 * 2 * (9 - 32)).all()


def test_hand_computed_q8_k() -> None:
    block = np.zeros(292, np.uint8)
    block[:4] = np.array([0.3], "<f4").view(np.uint8)
    block[4], block[259], block[260:] = 128, 127, 99  # the sums are not read
    values = FORMATS["q8_k"].decode(block[None])[0]
    assert values[0] == np.float32(0.3) * np.float32(-128)
    assert values[255] == np.float32(0.3) * np.float32(127)
    assert not values[1:255].any()


def stated_product(fmt: QuantFormat, weights: np.ndarray, columns: int, acts: np.ndarray) -> np.ndarray:
    """The expression of ``ramforge_tile_q8_256.h`` in NumPy: exact integers inside a superblock, float32 across."""
    blocks = weights.reshape(-1, fmt.block_bytes).copy()
    shape = (len(weights), columns // 256)
    scales = [s.reshape(shape) for s in get_scales(fmt, blocks)]
    packed = unpack_q8("q8_256", acts)
    set_scales(fmt, blocks, 1, 0)  # what remains of a value is scale * q, a small integer
    q = fmt.decode(blocks).astype(np.int64).reshape(*shape, 256)
    isum = np.einsum("rbi,abi->abr", q, packed["q"].astype(np.int64)).astype(np.float32)
    set_scales(fmt, blocks, 0, -1)
    minimum = fmt.decode(blocks).astype(np.int64).reshape(*shape, 256)
    msum = np.einsum("rbi,abi->abr", minimum, packed["q"].astype(np.int64)).astype(np.float32)
    acc = np.zeros((len(acts), len(weights)), np.float32)
    for b in range(shape[1]):
        da = packed["d"][:, b, None]
        acc = acc + (scales[0][:, b] * da) * isum[:, b]
        if len(scales) == 2:
            acc = acc - (scales[1][:, b] * da) * msum[:, b]
    return acc


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("columns", [256, 768])
def test_matmul_is_the_stated_expression(fmt: QuantFormat, columns: int) -> None:
    rows, rng = 37, np.random.default_rng(3)
    weights = random_blocks(fmt, rows * columns // 256).reshape(rows, -1)
    acts = pack("q8_256", rng.normal(size=(13, columns)).astype(np.float32))
    expected = stated_product(fmt, weights, columns, acts)
    assert fmt.kernels is not None
    for isa in machine_isas() & set(fmt.kernels.functions):
        assert same_bits(run_matmul(fmt.kernels.functions[isa], weights, columns, acts), expected), isa


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_extremes_do_not_saturate(fmt: QuantFormat) -> None:
    """All weight bits set or clear against full-size activations of one sign: the largest integer sums there are."""
    assert fmt.kernels is not None
    for fill in (0, 127, 128, 255):
        weights = np.full((16, fmt.block_bytes), fill, np.uint8)
        set_scales(fmt, weights, 0.9, -0.7)
        for sign in (1, -1):
            acts = pack("q8_256", np.full((9, 256), 127 * sign, np.float32))
            expected = stated_product(fmt, weights, 256, acts)
            for isa in machine_isas() & set(fmt.kernels.functions):
                assert same_bits(run_matmul(fmt.kernels.functions[isa], weights, 256, acts), expected), (
                    isa,
                    fill,
                )
