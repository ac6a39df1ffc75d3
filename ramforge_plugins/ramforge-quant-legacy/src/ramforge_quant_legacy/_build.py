"""Builds ``ramforge_quant_legacy._kernels`` from the package's C files, one for each format."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from cffi import FFI

NAMES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
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

ffi = FFI()
ffi.cdef("#define RAMFORGE_KERNEL_ABI ...\n" + DECLARATIONS)
ffi.set_source(
    "ramforge_quant_legacy._kernels",
    '#include "ramforge_kernel.h"\n' + DECLARATIONS,
    sources=[str((SOURCES / f"{name}.c").relative_to(ROOT)) for name in NAMES],
    include_dirs=[str(SOURCES)],
    depends=[str(p.relative_to(ROOT)) for p in sorted(SOURCES.glob("*.h"))],
    extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-g0", "-std=gnu11", "-ffp-contract=off"],
    optional=sys.platform == "win32",  # its compiler has no vector types; the formats then run through NumPy
    py_limited_api=True,
)
