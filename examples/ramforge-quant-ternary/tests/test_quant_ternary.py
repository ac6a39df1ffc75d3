"""The conformance suite, blocks computed by hand, and gguf's numbers where that package is installed."""

from __future__ import annotations

import numpy as np
import pytest

from ramforge_core.quant import QuantFormat
from ramforge_core.testing import QuantFormatTests
from ramforge_core.testing.quant import same_bits
from ramforge_quant_ternary import TQ1_0, TQ2_0

FORMATS = {f.name: f for f in (TQ1_0(), TQ2_0())}


class TestTernary(QuantFormatTests):
    @pytest.fixture(params=FORMATS)
    def quant_format(self, request: pytest.FixtureRequest) -> QuantFormat:
        return FORMATS[request.param]


def test_hand_computed_tq2_0() -> None:
    block = np.zeros((1, 66), np.uint8)
    block[0, 64:] = np.array([0.5], "<f2").view(np.uint8)
    block[0, 32 + 5] = 2 << 4 | 1  # values 128 + 5 and 128 + 64 + 5
    values = TQ2_0().decode(block)[0]
    assert values[133] == 0
    assert values[197] == 0.5
    assert np.delete(values, [133, 197]).max() == -0.5


def test_hand_computed_tq1_0() -> None:
    block = np.zeros((1, 54), np.uint8)
    block[0, 52:] = np.array([0.5], "<f2").view(np.uint8)
    block[0, 32 + 5] = -(-(2 * 27 + 1 * 3) * 256 // 243)  # digits 0 2 0 1 0: values 160 + 5 + 16 and + 48
    values = TQ1_0().decode(block)[0]
    assert values[160 + 5 + 16] == 0.5
    assert values[160 + 5 + 48] == 0
    assert np.delete(values, [160 + 5 + 16, 160 + 5 + 48]).max() == -0.5


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_equals_gguf(fmt: QuantFormat) -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType(fmt.ggml_type)
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (200, fmt.block_bytes), np.uint8)
    blocks[:, -2:] = np.linspace(-2, 2, 200, dtype="<f2").view(np.uint8).reshape(-1, 2)
    assert same_bits(fmt.decode(blocks), gguf.quants.dequantize(blocks, kind))
    values = rng.normal(size=(200, 256)).astype(np.float32)
    assert np.array_equal(fmt.encode(values), gguf.quants.quantize(values, kind))


def test_the_kernels_are_built() -> None:
    for fmt in FORMATS.values():
        assert fmt.kernels is not None, "no C compiler was found, or the C files do not compile"
