"""Calls kernels from tests: packs activations with NumPy, wraps the C functions, says what this machine can run."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ramforge_core.quant import KernelFunctions, Packing

Bytes = NDArray[np.uint8]

PACKING_VALUES: dict[Packing, int] = {"f32": 1, "q8_32": 32, "q8_256": 256}
"""Values in one block of a packing."""

_Q8_32 = np.dtype([("q", "i1", 32), ("d", "<f4"), ("s", "<f4"), ("sum", "<i4")])
_Q8_256 = np.dtype([("q", "i1", 256), ("sum", "<i2", 16), ("d", "<f4")])
_ISA_FLAGS = {
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "fma", "f16c"},
    "avx2": {"avx2", "fma", "f16c"},
    "neon": {"asimddp"},
}


def pack(packing: Packing, x: NDArray[np.float32]) -> Bytes:
    """Pack activations float32 (n, columns) to uint8 (n, bytes), as ``ramforge_kernel.h`` says."""
    if packing == "f32":
        return np.ascontiguousarray(x, "<f4").view(np.uint8)
    dtype = _Q8_32 if packing == "q8_32" else _Q8_256
    n, columns = x.shape
    values = PACKING_VALUES[packing]
    blocks = x.astype(np.float32).reshape(n, columns // values, values)
    d = np.abs(blocks).max(axis=2, initial=0) / np.float32(127)
    q = np.rint(blocks / np.where(d > 0, d, np.float32(1))[..., None]).astype(np.int8)
    packed = np.zeros(d.shape, dtype)
    packed["q"], packed["d"] = q, d
    if packing == "q8_32":
        packed["sum"] = q.sum(axis=2, dtype=np.int32)
        packed["s"] = d * packed["sum"].astype(np.float32)
    else:
        packed["sum"] = q.reshape(*d.shape, 16, 16).sum(axis=3, dtype=np.int16)
    return packed.view(np.uint8).reshape(n, -1)


def unpack_q8(packing: Packing, acts: Bytes) -> NDArray[np.void]:
    """The blocks of packed activations with fields q, d, sum (and s): structured (n, blocks)."""
    return acts.view(_Q8_32 if packing == "q8_32" else _Q8_256)


def machine_isas() -> frozenset[str]:
    """Instruction sets of ``ramforge_core.quant.ISAS`` that this machine can run, as far as Linux says."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    lines = (line.split() for line in text.splitlines() if line.startswith(("flags", "Features")))
    flags = set(next(lines, []))
    return frozenset({"portable"} | {isa for isa, needs in _ISA_FLAGS.items() if needs <= flags})


@cache
def _ffi() -> tuple[Any, dict[str, Any]]:
    ffi = pytest.importorskip("cffi").FFI()
    return ffi, {t: ffi.typeof(t) for t in ("uint8_t *", "float *")}


def _pointer(ctype: str, array: NDArray[np.generic]) -> object:
    ffi, types = _ffi()
    return ffi.cast(types[ctype], array.ctypes.data)


def run_decode(functions: KernelFunctions, blocks: Bytes, block_values: int) -> NDArray[np.float32]:
    """Decode blocks uint8 (n, block_bytes) with the C function."""
    out = np.full((len(blocks), block_values), np.nan, np.float32)
    source = np.ascontiguousarray(blocks)
    code = functions.decode(_pointer("uint8_t *", source), len(blocks), _pointer("float *", out))
    if code != 0:
        raise ValueError(f"decode of {len(blocks)} blocks returned {code}")
    return out


def run_matmul(
    functions: KernelFunctions,
    weights: Bytes,
    columns: int,
    acts: Bytes,
    *,
    out: NDArray[np.float32] | None = None,
    wrong: Mapping[str, int] | None = None,
) -> NDArray[np.float32]:
    """Multiply rows uint8 (rows, row bytes) with packed activations uint8 (n, bytes); float32 (n, rows).

    wrong : sizes that replace the right ones, by the names of the C arguments. Raises ValueError if refused.
    """
    if out is None:
        out = np.full((len(acts), len(weights)), np.nan, np.float32)
    sizes = {
        "row_bytes": weights.shape[1],
        "n_rows": len(weights),
        "n_cols": columns,
        "n_acts": len(acts),
    } | dict(wrong or {})
    code = functions.matmul(
        _pointer("uint8_t *", weights),
        sizes["row_bytes"],
        sizes["n_rows"],
        sizes["n_cols"],
        _pointer("uint8_t *", acts),
        acts.shape[1],
        sizes["n_acts"],
        _pointer("float *", out),
        out.shape[1],
    )
    if code != 0:
        raise ValueError(f"matmul with {sizes} returned {code}")
    return out


@contextmanager
def guarded() -> Iterator[Callable[[Bytes], Bytes]]:
    """A function that copies an array to memory whose next page may not be read. Skips where that is not possible."""
    if sys.platform == "win32":
        pytest.skip("needs mprotect")
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None)
    locked: list[int] = []

    def place(array: Bytes) -> Bytes:
        room = -(-array.nbytes // page) * page
        memory = np.frombuffer(mmap.mmap(-1, room + page), np.uint8)
        end = memory.ctypes.data + room
        if libc.mprotect(ctypes.c_void_p(end), page, 0) != 0:
            pytest.skip("mprotect was refused")
        locked.append(end)
        copy = memory[room - array.nbytes : room].reshape(array.shape)
        copy[...] = array
        return copy

    yield place
    for end in locked:
        libc.mprotect(ctypes.c_void_p(end), page, mmap.PROT_READ | mmap.PROT_WRITE)
