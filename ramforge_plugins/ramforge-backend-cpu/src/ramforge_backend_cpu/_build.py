"""Builds ``ramforge_backend_cpu._native``. ``csrc/api.h`` is both the C header and what cffi reads."""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI

SOURCES = Path(__file__).resolve().parent / "csrc"
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=off", "-Wno-psabi", "-pthread"]
ROOT = SOURCES.parents[2]  # setuptools wants paths relative to setup.py

ffi = FFI()
ffi.cdef("\n".join(line for line in (SOURCES / "api.h").read_text().splitlines() if not line.startswith("#")))
ffi.set_source(
    "ramforge_backend_cpu._native",
    '#include "api.h"',
    sources=[str(p.relative_to(ROOT)) for p in sorted(SOURCES.glob("*.c"))],
    include_dirs=[str(SOURCES)],
    depends=[str(p.relative_to(ROOT)) for p in sorted(SOURCES.glob("*.h"))],
    extra_compile_args=[]
    if sys.platform == "win32"
    else ["-O3", "-std=gnu11", "-ffp-contract=off", "-Wno-psabi", "-pthread"],
    extra_link_args=[] if sys.platform == "win32" else ["-pthread"],
    py_limited_api=True,
)
