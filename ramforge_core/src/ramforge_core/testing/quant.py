"""The conformance suite of quant formats, and what tests of kernels need: activation packing and calls of C functions.

A plugin's test is a subclass that says which format it is about::

    class TestQ4K(QuantFormatTests):
        @pytest.fixture
        def quant_format(self) -> QuantFormat:
            return Q4_K()

The NumPy ``decode`` is the definition that everything else is held against; that it is the right one is the
business of the plugin's own tests (a hand-computed block, another implementation). ``docs/conformance.md`` lists the
clauses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from ramforge_core.errors import ShapeError
from ramforge_core.quant import ISAS, KERNEL_ABI, KernelFunctions, QuantFormat, QuantKernels
from ramforge_core.testing.kernels import (
    PACKING_VALUES,
    guarded,
    machine_isas,
    pack,
    run_decode,
    run_matmul,
)

Bytes = NDArray[np.uint8]
MAX_BATCH = 40
LARGE_BATCHES = (63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300, 384, 511, 512, 513, 599, 600)
"""Rows and activations up to which every count is tried: past every tile that kernels work in."""


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Equal bit for bit, but any not-a-number equals any other."""
    nan = np.isnan(a)
    return bool(
        a.shape == b.shape
        and np.array_equal(nan, np.isnan(b))
        and np.array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan])
    )


class QuantFormatTests:
    """What every quant format must keep. Subclass, and override `quant_format`; see the module's example.

    product_tolerance : largest relative error (root mean square) that the kernel's product may have against the float64
        product of the decoded weights; the int8 rounding of the activations takes most of it.
    """

    product_tolerance: ClassVar[float] = 1e-2

    @pytest.fixture
    def quant_format(self) -> QuantFormat:
        raise NotImplementedError("override the fixture quant_format with your format")

    @pytest.fixture
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(20)

    def sample(self, fmt: QuantFormat, rng: np.random.Generator, n: int) -> Bytes:
        """``n`` random blocks, uint8 (n, block_bytes), whose values are finite and not larger than 1e6."""
        kept: list[Bytes] = []
        while sum(map(len, kept)) < n:
            blocks = rng.integers(0, 256, (max(n, 64), fmt.block_bytes), np.uint8)
            with np.errstate(all="ignore"):
                sane = (np.abs(fmt.decode(blocks)) <= 1e6).all(axis=1)
            if not sane.any():
                raise NotImplementedError(f"no random block of {fmt.name} is sane: override sample()")
            kept.append(blocks[sane])
        return np.concatenate(kept)[:n]

    @pytest.fixture
    def kernels(self, quant_format: QuantFormat) -> QuantKernels:
        kernels = quant_format.kernels
        if kernels is None:
            pytest.skip(f"{quant_format.name} has no kernels here")
        return kernels

    @pytest.fixture
    def functions(self, kernels: QuantKernels) -> dict[str, KernelFunctions]:
        """The kernels that this machine can run, by instruction set."""
        usable = machine_isas()
        return {isa: f for isa, f in kernels.functions.items() if isa in usable}

    @pytest.fixture
    def unit(self, quant_format: QuantFormat, kernels: QuantKernels) -> int:
        """Rows of this many columns, and of multiples of it, are whole blocks of weights and of activations."""
        return math.lcm(quant_format.block_values, PACKING_VALUES[kernels.packing])

    def matrix(self, fmt: QuantFormat, rng: np.random.Generator, rows: int, columns: int) -> Bytes:
        """Random packed rows, uint8 (rows, row bytes)."""
        return self.sample(fmt, rng, rows * columns // fmt.block_values).reshape(rows, fmt.nbytes(columns))

    def test_identity(self, quant_format: QuantFormat) -> None:
        """Q1: name is lower-case, ggml_type, block_values and block_bytes are plain non-negative integers."""
        fmt = quant_format
        assert fmt.name == fmt.name.lower()
        assert fmt.name.isascii()
        assert fmt.name.strip()
        assert type(fmt.ggml_type) is int
        assert fmt.ggml_type >= 0
        assert type(fmt.block_values) is int
        assert fmt.block_values > 0
        assert type(fmt.block_bytes) is int
        assert fmt.block_bytes > 0

    def test_nbytes(self, quant_format: QuantFormat) -> None:
        """Q2: nbytes of whole blocks is their number times block_bytes; anything else is a ShapeError."""
        fmt = quant_format
        assert fmt.nbytes(0) == 0
        assert fmt.nbytes(7 * fmt.block_values) == 7 * fmt.block_bytes
        with pytest.raises(ShapeError):
            fmt.nbytes(-fmt.block_values)
        if fmt.block_values > 1:
            with pytest.raises(ShapeError):
                fmt.nbytes(fmt.block_values + 1)

    def test_decode_shape(self, quant_format: QuantFormat, rng: np.random.Generator) -> None:
        """Q3: decode gives float32 (n, block_values), for no block too, and leaves its input alone."""
        fmt = quant_format
        blocks = self.sample(fmt, rng, 5)
        before = blocks.copy()
        blocks.setflags(write=False)
        values = fmt.decode(blocks)
        assert values.dtype == np.float32
        assert values.shape == (5, fmt.block_values)
        assert fmt.decode(blocks[:0]).shape == (0, fmt.block_values)
        assert np.array_equal(blocks, before)

    def test_decode_by_block(self, quant_format: QuantFormat, rng: np.random.Generator) -> None:
        """Q4: a block's values depend on its bytes alone: neighbours, order and strides do not matter."""
        fmt = quant_format
        blocks = self.sample(fmt, rng, 9)
        values = fmt.decode(blocks)
        for i in range(9):
            assert same_bits(fmt.decode(blocks[i : i + 1])[0], values[i])
        assert same_bits(fmt.decode(blocks[::-2]), values[::-2])

    def test_decode_rows(self, quant_format: QuantFormat, rng: np.random.Generator) -> None:
        """Q5: decode_rows decodes packed rows, and refuses bytes that are no whole blocks."""
        fmt = quant_format
        blocks = self.sample(fmt, rng, 6)
        rows = fmt.decode_rows(blocks.reshape(-1), 3 * fmt.block_values)
        assert same_bits(rows, fmt.decode(blocks).reshape(2, -1))
        if fmt.block_bytes > 1:
            with pytest.raises(ShapeError):
                fmt.decode_rows(blocks.reshape(-1)[:-1], fmt.block_values)

    def test_encode(self, quant_format: QuantFormat, rng: np.random.Generator) -> None:
        """Q6: encode, where there is one, gives blocks, and what was decoded survives another round unchanged."""
        fmt = quant_format
        values = rng.normal(size=(4, fmt.block_values)).astype(np.float32)
        blocks = fmt.encode(values)
        if blocks is None:
            pytest.skip(f"{fmt.name} does not encode")
        assert blocks.dtype == np.uint8
        assert blocks.shape == (4, fmt.block_bytes)
        decoded = fmt.decode(blocks)
        again = fmt.encode(decoded)
        assert again is not None
        assert np.allclose(fmt.decode(again), decoded, rtol=1e-3)

    def test_kernels_fit(self, kernels: QuantKernels) -> None:
        """Q7: kernels have this ABI, a known packing, known instruction sets, and portable C among them."""
        assert kernels.abi == KERNEL_ABI
        assert kernels.packing in PACKING_VALUES
        assert "portable" in kernels.functions
        assert set(kernels.functions) <= set(ISAS)

    def test_kernel_decode(
        self, quant_format: QuantFormat, functions: dict[str, KernelFunctions], rng: np.random.Generator
    ) -> None:
        """Q8: the C decode equals the NumPy one bit for bit, for any bytes (a not-a-number is one as well)."""
        fmt = quant_format
        sound, any_bytes = self.sample(fmt, rng, 300), rng.integers(0, 256, (300, fmt.block_bytes), np.uint8)
        plain = np.repeat(np.array([[0], [255]], np.uint8), fmt.block_bytes, axis=1)
        blocks = np.concatenate([sound, any_bytes, plain])
        with np.errstate(all="ignore"):
            expected = fmt.decode(blocks)
        for isa, f in functions.items():
            assert same_bits(run_decode(f, blocks, fmt.block_values), expected), isa

    def test_same_on_every_isa(
        self,
        quant_format: QuantFormat,
        kernels: QuantKernels,
        functions: dict[str, KernelFunctions],
        unit: int,
        rng: np.random.Generator,
    ) -> None:
        """Q9: matmul gives the same bits on every instruction set, zero blocks and zero activations included, for
        short and long rows, one activation and many."""
        fmt = quant_format
        for columns in (unit, 3 * unit, unit * (600 // unit + 2), unit * (17000 // unit + 1)):
            weights = self.matrix(fmt, rng, 21, columns)
            weights[3] = 0
            x = rng.normal(size=(11, columns)).astype(np.float32)
            x[4] = 0
            x[5, 1:] = 0
            acts = pack(kernels.packing, x)
            expected = run_matmul(functions["portable"], weights, columns, acts)
            for isa, f in functions.items():
                assert same_bits(run_matmul(f, weights, columns, acts), expected), (isa, columns)
                assert same_bits(run_matmul(f, weights, columns, acts[:1]), expected[:1]), (isa, columns)

    def test_batch_invariant(
        self,
        quant_format: QuantFormat,
        kernels: QuantKernels,
        functions: dict[str, KernelFunctions],
        unit: int,
        rng: np.random.Generator,
    ) -> None:
        """Q10: one row times one activation is the same number alone and among 1 to 40 rows and 1 to 600
        activations."""
        fmt, columns = quant_format, unit * max(1, 288 // unit)
        weights = self.matrix(fmt, rng, MAX_BATCH, columns)
        acts = pack(kernels.packing, rng.normal(size=(MAX_BATCH, columns)).astype(np.float32))
        for isa, f in functions.items():
            alone = [[run_matmul(f, w[None], columns, a[None])[0, 0] for w in weights] for a in acts]
            expected = np.array(alone, np.float32)
            for n in range(1, MAX_BATCH + 1):
                some_rows = run_matmul(f, weights[:n], columns, acts)
                assert same_bits(some_rows, expected[:, :n]), (isa, n, "rows")
                some_acts = run_matmul(f, weights, columns, acts[:n])
                assert same_bits(some_acts, expected[:n]), (isa, n, "activations")
            for n in LARGE_BATCHES:
                order = rng.integers(0, MAX_BATCH, n)
                many_acts = run_matmul(f, weights, columns, acts[order])
                assert same_bits(many_acts, expected[order]), (isa, n, "activations")

    def test_product(
        self,
        quant_format: QuantFormat,
        kernels: QuantKernels,
        functions: dict[str, KernelFunctions],
        unit: int,
        rng: np.random.Generator,
    ) -> None:
        """Q11: matmul is close to the product of the decoded weights (`product_tolerance`), and not exact by luck."""
        fmt, columns = quant_format, unit * (700 // unit + 1)
        weights = self.matrix(fmt, rng, 50, columns)
        x = rng.uniform(-1, 1, (17, columns)).astype(np.float32)
        exact = x.astype(np.float64) @ fmt.decode_rows(weights.reshape(-1), columns).astype(np.float64).T
        for isa, f in functions.items():
            error = run_matmul(f, weights, columns, pack(kernels.packing, x)) - exact
            assert np.sqrt(np.mean(error**2) / np.mean(exact**2)) < self.product_tolerance, isa

    def test_empty_and_broken_calls(
        self,
        quant_format: QuantFormat,
        kernels: QuantKernels,
        functions: dict[str, KernelFunctions],
        unit: int,
    ) -> None:
        """Q12: no rows, activations or blocks is a call like any other; senseless sizes give a negative number."""
        fmt = quant_format
        weights = np.zeros((3, fmt.nbytes(unit)), np.uint8)
        acts = pack(kernels.packing, np.ones((2, unit), np.float32))
        for f in functions.values():
            assert run_decode(f, weights.reshape(-1, fmt.block_bytes)[:0], fmt.block_values).size == 0
            assert run_matmul(f, weights[:0], unit, acts).shape == (2, 0)
            assert run_matmul(f, weights, unit, acts[:0]).shape == (0, 3)
            assert not run_matmul(f, weights[:, :0], 0, acts[:, :0]).any()
            for bad in (
                {"n_rows": -1},
                {"n_acts": -1},
                {"n_cols": -unit},
                {"row_bytes": fmt.nbytes(unit) - 1},
            ):
                with pytest.raises(ValueError, match="returned"):
                    run_matmul(f, weights, unit, acts, wrong=bad)
            if fmt.block_values > 1:
                with pytest.raises(ValueError, match="returned"):
                    run_matmul(f, weights, unit, acts, wrong={"n_cols": unit - 1})

    def test_writes_only_its_results(
        self,
        quant_format: QuantFormat,
        kernels: QuantKernels,
        functions: dict[str, KernelFunctions],
        unit: int,
        rng: np.random.Generator,
    ) -> None:
        """Q13: matmul writes out[a * out_stride + r] and nothing between; rows and activations may lie apart."""
        fmt, gap = quant_format, 5
        wide = np.zeros((19, fmt.nbytes(unit) + gap), np.uint8)
        wide[:, : fmt.nbytes(unit)] = self.matrix(fmt, rng, 19, unit)
        acts = pack(kernels.packing, rng.normal(size=(9, unit)).astype(np.float32))
        apart = np.zeros((9, acts.shape[1] + 8), np.uint8)
        apart[:, : acts.shape[1]] = acts
        for isa, f in functions.items():
            expected = run_matmul(f, np.ascontiguousarray(wide[:, :-gap]), unit, acts)
            out = np.full((9, 19 + gap), 7, np.float32)
            run_matmul(f, wide, unit, apart, out=out)
            assert same_bits(np.ascontiguousarray(out[:, :19]), expected), isa
            assert (out[:, 19:] == 7).all(), isa

    @pytest.fixture
    def at_the_end(self) -> Iterator[Any]:
        """Copies arrays to memory that ends where readable memory ends."""
        with guarded() as place:
            yield place

    def test_reads_only_its_operands(
        self,
        quant_format: QuantFormat,
        kernels: QuantKernels,
        functions: dict[str, KernelFunctions],
        unit: int,
        rng: np.random.Generator,
        at_the_end: Any,
    ) -> None:
        """Q14: nothing is read past the last byte of weights, activations and blocks (else this test dies)."""
        fmt, columns = quant_format, unit * (300 // unit | 1)  # an odd number of blocks
        for rows in (1, 15, 16, 35):
            weights = at_the_end(self.matrix(fmt, rng, rows, columns))
            for n in (1, 3, 8):
                acts = at_the_end(pack(kernels.packing, rng.normal(size=(n, columns)).astype(np.float32)))
                for f in functions.values():
                    run_matmul(f, weights, columns, acts)
        blocks = at_the_end(self.sample(fmt, rng, 3))
        for f in functions.values():
            run_decode(f, blocks, fmt.block_values)

    def test_any_bytes_from_any_address(
        self,
        quant_format: QuantFormat,
        kernels: QuantKernels,
        functions: dict[str, KernelFunctions],
        unit: int,
        rng: np.random.Generator,
    ) -> None:
        """Q15: any bytes, with scales that are extreme, infinite or not numbers, and weights at any address give the
        same on every instruction set (a not-a-number is one as well), and spoil no other row."""
        fmt, rows = quant_format, 37
        sound = self.matrix(fmt, rng, rows, 3 * unit)
        wild = rng.integers(0, 256, sound.shape, np.uint8)
        wild[0], wild[1], wild[2::2] = 0, 255, sound[2::2]
        acts = pack(kernels.packing, rng.normal(size=(5, 3 * unit)).astype(np.float32))
        expected = run_matmul(functions["portable"], wild, 3 * unit, acts)
        assert same_bits(
            np.ascontiguousarray(expected[:, 2::2]),
            run_matmul(functions["portable"], np.ascontiguousarray(sound[2::2]), 3 * unit, acts),
        )
        for shift in (0, 1, 3, 30):
            moved = np.empty(wild.nbytes + shift, np.uint8)[shift:].reshape(wild.shape)
            moved[...] = wild
            for isa, f in functions.items():
                assert same_bits(run_matmul(f, moved, 3 * unit, acts), expected), (isa, shift)
                blocks = moved.reshape(-1, fmt.block_bytes)
                with np.errstate(all="ignore"):
                    assert same_bits(run_decode(f, blocks, fmt.block_values), fmt.decode(blocks)), (
                        isa,
                        shift,
                    )
