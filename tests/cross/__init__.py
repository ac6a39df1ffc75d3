"""The C of all kernels, built for AArch64 with a cross compiler and run under qemu-user.

Products of every quant format, portable and NEON, and the arithmetic of the backend must be the bits that the kernels
installed on this machine give. Only not-a-number may be another one: processors differ in which they make.

``python -m cross`` in the folder ``tests`` does it all, ``python -m cross q4_k ...`` some formats, without the backend.
Formats that are not installed are compiled only.
Debian: ``apt-get install gcc-aarch64-linux-gnu qemu-user``.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from ramforge_core.quant import QuantFormat
from ramforge_core.testing.kernels import PACKING_VALUES, machine_isas, pack, run_decode, run_matmul

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
STRICT = ("-Wall", "-Wextra", "-Werror")
ISAS = ("portable", "neon")
BACKEND = "ramforge_backend_cpu"
ROWS = 19


@frozen
class Package:
    """What ``_build.py`` of a distribution compiles."""

    name: str
    sources: tuple[Path, ...]
    include: Path
    preamble: str
    flags: tuple[str, ...]

    @staticmethod
    def read(build: Path) -> Package:
        _, preamble, _, options = runpy.run_path(str(build))["ffi"]._assigned_source
        root = build.parents[2]
        sources = tuple(root / source for source in options["sources"])
        return Package(
            build.parent.name, sources, sources[0].parent, preamble, tuple(options["extra_compile_args"])
        )


def missing() -> str | None:
    """Which tool is not here, or None."""
    return next((f"{tool} is not installed" for tool in (COMPILER, EMULATOR) if not shutil.which(tool)), None)


def packages() -> list[Package]:
    """All distributions with kernels, the example of the documentation among them."""
    headers = [
        *ROOT.glob("ramforge_plugins/*/src/*/**/ramforge_kernel.h"),
        *ROOT.glob("examples/*/src/*/ramforge_kernel.h"),
    ]
    folders = sorted({h.parent if (h.parent / "_build.py").exists() else h.parents[1] for h in headers})
    return [Package.read(folder / "_build.py") for folder in folders]


def formats(package: Package) -> list[QuantFormat]:
    """Those formats of a package whose kernels are installed here."""
    try:
        found = import_module(package.name).ramforge_quant_formats()
    except (ImportError, AttributeError):
        return []
    return [f for f in found if f.kernels is not None]


def run(*command: str | Path) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} returned {done.returncode}\n{done.stderr}")


def compile_all(found: Sequence[Package], work: Path) -> dict[str, list[Path]]:
    """Objects by package, all compiled with the flags of the package and strict warnings."""
    jobs: list[tuple[Package, Path, Path]] = []
    for package in found:
        tables = work / f"{package.name}.c"  # what cffi compiles beside the sources
        tables.write_text(package.preamble)
        jobs += [(package, s, work / f"{package.name}-{s.stem}.o") for s in (*package.sources, tables)]

    def one(job: tuple[Package, Path, Path]) -> None:
        package, source, target = job
        run(COMPILER, *package.flags, *STRICT, f"-I{package.include}", "-c", source, "-o", target)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(one, jobs))
    return {p.name: [target for package, _, target in jobs if package is p] for p in found}


def blocks(rng: np.random.Generator, quant: QuantFormat, n: int) -> NDArray[np.uint8]:
    """Random blocks whose values are finite and of a size that sums can bear."""
    kept = np.empty((0, quant.block_bytes), np.uint8)
    while len(kept) < n:
        some = rng.integers(0, 256, (4 * n, quant.block_bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            sizes = np.abs(quant.decode(some)).max(axis=1)
        kept = np.concatenate([kept, some[sizes < 1e6]])
    return kept[:n]


def cases(quant: QuantFormat) -> Iterator[tuple[NDArray[np.uint8], int, NDArray[np.uint8]]]:
    """Rows, columns and packed activations; the bytes of the last row are random, not-a-number and all."""
    assert quant.kernels is not None
    rng = np.random.default_rng(quant.ggml_type)
    values = PACKING_VALUES[quant.kernels.packing]
    shapes = [(3100, 1), (1037, 131)] if values == 1 else [(9 * max(values, quant.block_values), 1)]
    shapes += [(3 * max(values, quant.block_values), n) for n in (2, 13, 131) if values > 1]
    for columns, n_acts in shapes:
        per_row = columns // quant.block_values
        rows = blocks(rng, quant, ROWS * per_row).reshape(ROWS, -1)
        rows[-1] = rng.integers(0, 256, rows.shape[1])
        yield (
            rows,
            columns,
            pack(quant.kernels.packing, rng.standard_normal((n_acts, columns)).astype(np.float32)),
        )


def bits(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The bits, with one and the same not-a-number."""
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.uint32)


def check(work: Path, names: Sequence[str] = ()) -> list[str]:
    """Compile and compare in the folder ``work``: everything, or the formats of these names. Returns what was done.

    Raises RuntimeError if something does not compile or run, AssertionError if results differ.
    """
    found = packages()
    if names:
        found = [evolve(p, sources=tuple(s for s in p.sources if s.stem in names)) for p in found]
        found = [p for p in found if p.sources]
    objects = compile_all(found, work)
    quants = [(p, q) for p in found for q in formats(p) if not names or q.name in names]
    linked = [o for p in found if any(p is owner for owner, _ in quants) for o in objects[p.name]]
    check_formats([q for _, q in quants], linked, work)
    backends = [p for p in found if p.name == BACKEND]
    for package in backends:
        check_backend(objects[package.name], package, work)
    return [
        f"compiled: {', '.join(p.name for p in found)}",
        f"the same bits, {' and '.join(ISAS)}: {', '.join([q.name for _, q in quants] + [p.name for p in backends])}",
    ]


def check_formats(chosen: Sequence[QuantFormat], objects: Sequence[Path], work: Path) -> None:
    """Run the cases of all formats in one program, and compare."""
    (work / "formats.h").write_text(f"#define FORMATS(F) {' '.join(f'F({q.name})' for q in chosen)}\n")
    program = work / "kernels"
    include = ROOT / "ramforge_core/src/ramforge_core/include"
    flags = ("-O1", "-std=gnu11", *STRICT, f"-I{work}", f"-I{include}", "-static")
    run(COMPILER, *flags, HERE / "kernels.c", *objects, "-o", program)
    expected: list[tuple[str, NDArray[np.float32]]] = []
    with (work / "cases").open("wb") as file:
        for number, quant in enumerate(chosen):
            for rows, columns, acts in cases(quant):
                assert quant.kernels is not None
                functions = quant.kernels.functions
                decoded = run_decode(
                    functions["portable"], rows.reshape(-1, quant.block_bytes), quant.block_values
                )
                here = {
                    isa: run_matmul(functions[isa], rows, columns, acts)
                    for isa in machine_isas() & functions.keys()
                }
                for isa, product in here.items():
                    same(f"{quant.name} {isa} on this machine", bits(product), bits(here["portable"]))
                for isa in range(len(ISAS)):
                    sizes = (number, isa, len(rows), columns, rows.shape[1], len(acts), acts.shape[1])
                    file.write(
                        np.array([*sizes, quant.block_values], "<i8").tobytes()
                        + rows.tobytes()
                        + acts.tobytes()
                    )
                    label = f"{quant.name} {ISAS[isa]}, {columns} columns, {len(acts)} activations"
                    expected.append((label + ", decoded", decoded.ravel()))
                    expected.append((label, here["portable"].ravel()))
    run(EMULATOR, program, work / "cases", work / "results")
    results = np.fromfile(work / "results", "<f4")
    assert len(results) == sum(len(e) for _, e in expected)
    for label, values in expected:
        same(label, bits(results[: len(values)]), bits(values))
        results = results[len(values) :]


def same(label: str, got: NDArray[np.uint32], expected: NDArray[np.uint32]) -> None:
    """Raise unless float32 results, as bits, are the same."""
    wrong = np.flatnonzero(got != expected)
    if len(wrong):
        i = wrong[0]
        values = [x.ravel().view(np.float32)[i] for x in (got, expected)]
        raise AssertionError(
            f"{label}: {len(wrong)} of {got.size} results differ, number {i} is {values[0]!r}, not {values[1]!r}"
        )


def check_backend(objects: Sequence[Path], package: Package, work: Path) -> None:
    """The units of ``backend.c`` on AArch64, by every instruction set, and in the installed library."""
    native = import_module(f"{BACKEND}._native").__file__
    ctypes.CDLL(native, mode=ctypes.RTLD_GLOBAL)  # its functions are what the library below calls
    flags = ("-std=gnu11", "-ffp-contract=off", *STRICT, f"-I{package.include}")
    run("cc", "-O1", *flags, "-shared", "-fPIC", HERE / "backend.c", "-o", work / "backend.so")
    library = ctypes.CDLL(str(work / "backend.so"))
    library.cross_floats.restype = library.cross_results.restype = ctypes.c_int64
    x = np.random.default_rng(1).standard_normal(library.cross_floats()).astype("<f4") * np.float32(3)
    x.tofile(work / "numbers")
    expected = np.empty(library.cross_results(), np.float32)
    for isa in range(8):
        got = np.empty_like(expected)
        if library.cross_run(isa, ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(got.ctypes.data)) == 0:
            if isa == 0:
                expected = got
            same(
                f"backend, instruction set {isa} of this machine",
                got.view(np.uint32),
                expected.view(np.uint32),
            )
    run(
        COMPILER,
        "-O1",
        *flags,
        HERE / "backend.c",
        *objects,
        "-static",
        "-pthread",
        "-lm",
        "-o",
        work / "backend",
    )
    for isa in range(2):
        run(EMULATOR, work / "backend", str(isa), work / "numbers", work / "results")
        results = np.fromfile(work / "results", "<u4")
        same(f"backend, instruction set {isa} of AArch64", results, expected.view(np.uint32))
