"""Builds the extension module ``ramforge_tokenizer_spm._kernels``."""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCES = [(HERE / name).relative_to(ROOT).as_posix() for name in ("spm.c",)]

ffi = FFI()
ffi.cdef((HERE / "kernels.cdef.h").read_text(encoding="utf-8"))
ffi.set_source(
    "ramforge_tokenizer_spm._kernels",
    '#include "spm.h"',
    sources=SOURCES,
    include_dirs=[HERE.relative_to(ROOT).as_posix()],
    depends=[path.relative_to(ROOT).as_posix() for path in HERE.glob("*.h")],
    extra_compile_args=["-O3", "-ffp-contract=off"],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffi.compile(verbose=True)
