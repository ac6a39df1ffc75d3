"""Builds ``ramforge_quant_iq._kernels``: the C files, one for each format, and the tables in ``grids.py``."""

from __future__ import annotations

import runpy
import sys
import sysconfig
from pathlib import Path
from typing import Any

from cffi import FFI

NAMES = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs")
SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parents[1]  # setuptools wants paths relative to setup.py

MACHINE = "" if sys.platform == "win32" else sysconfig.get_platform().rpartition("-")[2]
WIDER = {"x86_64": ("avx2", "avx512"), "aarch64": ("neon",), "arm64": ("neon",)}
ISAS = ("portable", *WIDER.get(MACHINE, ()))
MATMUL = (
    "int rf_{}_matmul_{}(const uint8_t *weights, int64_t row_bytes, int64_t n_rows, int64_t n_cols,"
    " const uint8_t *acts, int64_t act_bytes, int64_t n_acts, float *out, int64_t out_stride);\n"
)
DECLARATIONS = "".join(
    f"int rf_{name}_decode(const uint8_t *src, int64_t n_blocks, float *dst);\n"
    + "".join(MATMUL.format(name, isa) for isa in ISAS)
    for name in NAMES
)


def table(name: str, grid: Any) -> str:
    """C source of a grid: an integer for each point, made of the numbers of its levels as ``points.h`` says."""
    bits, at = {
        (3, 8): (16, (0, 2, 4, 6, 8, 10, 12, 14)),
        (8, 4): (16, (0, 8, 4, 12)),
    }[len(grid.levels), grid.width]
    if name == "iq1_s":
        bits, at = 32, (2, 10, 18, 26, 6, 14, 22, 30)
    codes = [
        sum(grid.levels.index(value) << bit for value, bit in zip(point, at, strict=True))
        for point in grid.points()
    ]
    return f"const uint{bits}_t rf_{name}_grid[{len(codes)}] = {{{','.join(f'{c}u' for c in codes)}}};\n"


TABLES = "".join(table(*item) for item in runpy.run_path(str(SOURCES / "grids.py"))["GRIDS"].items())

ffi = FFI()
ffi.cdef("#define RAMFORGE_KERNEL_ABI ...\n" + DECLARATIONS)
ffi.set_source(
    "ramforge_quant_iq._kernels",
    '#include "ramforge_kernel.h"\n#include "points.h"\n' + TABLES + DECLARATIONS,
    sources=[str((SOURCES / f"{name}.c").relative_to(ROOT)) for name in NAMES],
    include_dirs=[str(SOURCES)],
    depends=[str(p.relative_to(ROOT)) for p in sorted((*SOURCES.glob("*.h"), SOURCES / "grids.py"))],
    extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-g0", "-std=gnu11", "-ffp-contract=off"],
    optional=sys.platform == "win32",  # its compiler has no vector types; the formats then run through NumPy
    py_limited_api=True,
)
