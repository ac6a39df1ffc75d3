"""MXFP4 and NVFP4: conformance, another implementation, hand-computed blocks, the stated expression."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ramforge_core.quant import QuantFormat
from ramforge_core.testing.kernels import machine_isas, pack, run_matmul, unpack_q8
from ramforge_core.testing.quant import QuantFormatTests, same_bits
from ramforge_quant_fp4 import ramforge_quant_formats

FORMATS = {f.name: f for f in ramforge_quant_formats()}
SCALES = {"mxfp4": 1, "nvfp4": 4}
"""Bytes of scales, at the front of a block."""
ONE = {"mxfp4": 128, "nvfp4": 0x40}
"""The byte of a scale that leaves the doubled 4-bit floats as they are."""


class TestFP4(QuantFormatTests):
    @pytest.fixture(params=FORMATS)
    def quant_format(self, request: pytest.FixtureRequest) -> QuantFormat:
        return FORMATS[request.param]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_decode_equals_gguf(fmt: QuantFormat) -> None:
    """Every byte there is as a scale, with every nibble."""
    kind = gguf.GGMLQuantizationType(fmt.ggml_type)
    assert kind.name.lower() == fmt.name
    assert gguf.GGML_QUANT_SIZES[kind] == (fmt.block_values, fmt.block_bytes)
    blocks = np.random.default_rng(7).integers(0, 256, (2048, fmt.block_bytes), np.uint8)
    blocks[:, : SCALES[fmt.name]] = np.arange(256, dtype=np.uint8).repeat(8)[:, None]
    with np.errstate(over="ignore"):  # the largest power of two is more than a float32 holds
        theirs = gguf.quants.dequantize(blocks, kind).astype(np.float32)
        assert same_bits(fmt.decode(blocks), theirs)


def test_hand_computed_mxfp4() -> None:
    """2^(130 - 127) = 8 times 4-bit floats 0.5 (low nibbles 1) and -6 (high nibbles 15)."""
    values = FORMATS["mxfp4"].decode(np.array([[130] + [0xF1] * 16], np.uint8))[0]
    assert values.tolist() == [4.0] * 16 + [-48.0] * 16


def test_hand_computed_nvfp4() -> None:
    """Scales 1 (0x38), 1.25 * 2 (0x42), 3 * 2^-9 (0x03), none (0x7f); 1 (low nibbles 2) and -3 (high nibbles 13)."""
    values = FORMATS["nvfp4"].decode(np.array([[0x38, 0x42, 0x03, 0x7F] + [0xD2] * 32], np.uint8))[0]
    for i, scale in enumerate((1, 2.5, 3 * 2.0**-9, 0)):
        assert (values[16 * i : 16 * i + 8] == scale).all()
        assert (values[16 * i + 8 : 16 * i + 16] == -3 * scale).all()


def stated_product(fmt: QuantFormat, blocks: np.ndarray, rows: int, acts: np.ndarray) -> np.ndarray:
    """The expression of the tile headers in NumPy: exact integers in 16 or 32 values, float32 across."""
    n = SCALES[fmt.name]
    group = fmt.block_values // n
    plain, unit = blocks.copy(), blocks.copy()
    plain[:, :n] = ONE[fmt.name]
    unit[:, n:] = 0x22  # each value is twice the scale
    steps = fmt.decode(plain).astype(np.int64).reshape(rows, -1, group)
    d = (fmt.decode(unit)[:, ::group] / np.float32(2)).reshape(rows, -1)
    packed = unpack_q8("q8_32", acts)
    q = packed["q"].astype(np.int64).reshape(len(acts), -1, group)
    da = packed["d"].repeat(32 // group, axis=1)
    t = np.einsum("rbi,abi->abr", steps, q).astype(np.float32)
    acc = np.zeros((len(acts), rows), np.float32)
    for b in range(d.shape[1]):
        acc = acc + (d[:, b] * da[:, b, None]) * t[:, b]
    return acc


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("columns", [64, 576])
@pytest.mark.parametrize("fill", [None, 0x77, 0xFF])
def test_matmul_is_the_stated_expression(fmt: QuantFormat, columns: int, fill: int | None) -> None:
    """With random bits; and with the largest numbers against full-size activations, the largest sums there are."""
    rows, rng = 37, np.random.default_rng(3)
    n = rows * columns // fmt.block_values
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), np.uint8)
    if fill is not None:
        blocks[:] = fill
    if fmt.name == "mxfp4":
        blocks[:, 0] = rng.integers(0, 160, n)
    else:
        blocks[:, :4] = rng.integers(0, 256, (n, 4))
    x = rng.normal(size=(13, columns)) if fill is None else np.full((13, columns), 127.0)
    acts = pack("q8_32", x.astype(np.float32))
    expected = stated_product(fmt, blocks, rows, acts)
    assert fmt.kernels is not None
    for isa in machine_isas() & set(fmt.kernels.functions):
        product = run_matmul(fmt.kernels.functions[isa], blocks.reshape(rows, -1), columns, acts)
        assert same_bits(product, expected), isa
