"""The contract of a quant format: what the bytes of a tensor mean, and how to multiply them.

A format is correct with a NumPy ``decode`` alone; C kernels make it fast. The C side of the contract is
``include/ramforge_kernel.h``: plain functions of fixed signatures and an ABI number.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from ramforge_core.errors import ShapeError

KERNEL_ABI = 1
"""Version of ``ramforge_kernel.h``; kernels of another version are refused at load."""

Packing = Literal["f32", "q8_32", "q8_256"]
"""How a kernel wants its activations; layouts in ``ramforge_kernel.h``."""

ISAS = ("avx512", "avx2", "neon", "portable")
"""Instruction sets that kernels may be written for, the widest first. avx512 means F, BW, DQ, VL and VNNI, avx2
means AVX2, FMA and F16C, neon means AArch64 with dot products of bytes."""


@frozen
class KernelFunctions:
    """The C functions of one format for one instruction set: cffi pointers, fetched with ``ffi.addressof``.

    decode : ``int (uint8_t *src, int64_t n_blocks, float *dst)``
    matmul : ``int (uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols, uint8_t *acts,
        int64_t act_bytes, int64_t n_acts, float *out, int64_t out_stride)``
    """

    decode: Any
    matmul: Any


@frozen
class QuantKernels:
    """All kernels of one format.

    abi : must equal `KERNEL_ABI`.
    packing : the activation layout that ``matmul`` reads.
    functions : by instruction set; ``portable`` is required.
    owner : whatever keeps the C library alive.
    """

    abi: int
    packing: Packing
    functions: Mapping[str, KernelFunctions]
    owner: Any = field(repr=False)

    def pick(self, isa: str) -> tuple[str, KernelFunctions]:
        """The functions for ``isa``, or for the next narrower instruction set that the format has."""
        order = ISAS[ISAS.index(isa) :] if isa in ISAS else ()
        name = next((i for i in order if i in self.functions and (i != "neon" or isa == "neon")), "portable")
        return name, self.functions[name]


def get_include() -> str:
    """The folder of the C headers: the contract ``ramforge_kernel.h`` and the optional ``ramforge_tile*.h``."""
    return str(Path(__file__).with_name("include"))


@cache
def _built(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        logging.getLogger("ramforge").warning(
            "%s is not built, so its formats run through NumPy, slower and right (%s)", module, error
        )
        return None


@cache
def cffi_kernels(module: str, name: str, packing: Packing) -> QuantKernels | None:
    """The kernels of format ``name`` in a cffi module; None, and one warning, where the module is not built.

    The module exports ``RAMFORGE_KERNEL_ABI``, ``rf_<name>_decode`` and ``rf_<name>_matmul_<isa>``.
    """
    built = _built(module)
    if built is None:
        return None
    lib, address = built.lib, built.ffi.addressof
    decode = address(lib, f"rf_{name}_decode")
    functions = {
        isa: KernelFunctions(decode, address(lib, f"rf_{name}_matmul_{isa}"))
        for isa in ISAS
        if hasattr(lib, f"rf_{name}_matmul_{isa}")
    }
    return QuantKernels(lib.RAMFORGE_KERNEL_ABI, packing, functions, built)


class QuantFormat(ABC):
    """One GGML tensor type. Instances are stateless and shared.

    name : lower-case ggml name, which is also the entry-point name (``q4_k``).
    ggml_type : the id in the file.
    block_values, block_bytes : values in a block, bytes in a block. Rows are whole blocks.
    """

    name: ClassVar[str]
    ggml_type: ClassVar[int]
    block_values: ClassVar[int]
    block_bytes: ClassVar[int]

    @abstractmethod
    def decode(self, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Decode whole blocks.

        blocks : uint8 (n, block_bytes), as stored, little-endian. Returns float32 (n, block_values).
        """

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.uint8] | None:
        """Encode float32 (n, block_values) to uint8 (n, block_bytes); None if the format cannot."""
        return None

    @property
    def kernels(self) -> QuantKernels | None:
        """The C kernels, or None: then backends decode and multiply in float32, slower and right."""
        return None

    def nbytes(self, n_values: int) -> int:
        """Bytes that ``n_values`` values take. Raises ShapeError if they are not whole blocks."""
        blocks, rest = divmod(n_values, self.block_values)
        if rest or n_values < 0:
            raise ShapeError(
                f"{n_values} values are not whole blocks of {self.name} ({self.block_values} values each)"
            )
        return blocks * self.block_bytes

    def decode_rows(self, data: NDArray[np.uint8], n_cols: int) -> NDArray[np.float32]:
        """Decode packed rows: uint8 (rows * row bytes,) to float32 (rows, n_cols)."""
        self.nbytes(n_cols)
        if data.size % self.block_bytes:
            raise ShapeError(
                f"{data.size} bytes are not whole blocks of {self.name} ({self.block_bytes} bytes each)"
            )
        return self.decode(data.reshape(-1, self.block_bytes)).reshape(-1, n_cols)
