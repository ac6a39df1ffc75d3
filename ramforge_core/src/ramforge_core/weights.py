"""Pinned weights from disk into memory, still quantized: copied, or mapped where all of a large file fits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from ramforge_core.datasource import DataSource, MappedExtent
from ramforge_core.memory import PAGE, allocate
from ramforge_core.residency import GAP_BYTES, Piece, Read
from ramforge_core.stream import Stream
from ramforge_core.system import huge_file_bytes

ALIGNMENT = 64
_KERNEL_ALIGNMENT = 32
_FETCH_BYTES = 16 << 20
_LOADERS = 4
_SLOTS, _SLOT_BYTES = 4, 2 << 20

MAP_FROM = 1 << 30
"""Bytes of weights from which on they are mapped however the page cache holds them. Fewer are mapped where it has them
in huge pages and copied where not: that takes a second at most, and small pages cost up to a tenth of decode
(docs/performance.md, "Load to first token")."""

MAP_HUGE_FROM = 32 << 20
"""Fewer bytes are always copied: too much of them lies beside the first and the last huge page."""

_LOOK_EVERY = 256 << 20
_HUGE_SHARE = 0.8

Progress = Callable[[int, int], None]
"""Called with bytes read so far and bytes in all."""


def pinned_bytes(pieces: Sequence[Piece]) -> int:
    """Memory that the pieces take, each at a multiple of `ALIGNMENT`."""
    return sum(-(-p.nbytes // ALIGNMENT) * ALIGNMENT for p in pieces)


def loading_ring(memory: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """A ring for `load_pinned` in memory that is not in use yet: page-aligned slots, at most `_SLOTS` of them."""
    slot = min(_SLOT_BYTES, len(memory) // _SLOTS // PAGE * PAGE)
    return memory[: slot * _SLOTS], _SLOTS


def load_pinned(
    pieces: Sequence[Piece],
    source: DataSource,
    ring: tuple[NDArray[np.uint8], int] | None = None,
    progress: Progress | None = None,
) -> dict[str, NDArray[np.uint8]]:
    """Have pieces in memory, in file order: name -> uint8 (nbytes,), 32-byte aligned.

    ring : memory and number of slots of a stream that is not in use yet; then the bytes come through it, past the
        page cache, and nothing but one allocation is made. Without it they are mapped, and cached pages cost no time;
        or copied where they cannot be mapped, or should not be, see `MAP_FROM` and `MAP_HUGE_FROM`.
    Raises GGUFError, or OutOfMemoryError.
    """
    done, total = 0, sum(p.nbytes for p in pieces)

    def arrived(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    ordered = sorted(pieces, key=lambda p: (p.file, p.offset))
    if ring is None and total >= MAP_HUGE_FROM:
        mapped = _mapped(ordered, source, arrived, in_any_pages=total >= MAP_FROM)
        if mapped is not None:
            return mapped
        done = 0  # the copy begins anew
    arena = allocate(pinned_bytes(ordered))
    out, at = {}, 0
    for piece in ordered:
        out[piece.name] = arena[at : at + piece.nbytes]
        at += -(-piece.nbytes // ALIGNMENT) * ALIGNMENT
    if ring is None:
        _buffered(ordered, source, out, arrived)
    else:
        _through_ring(ordered, source, *ring, out, arrived)
    return out


def _mapped(
    pieces: Sequence[Piece], source: DataSource, arrived: Callable[[int], None], *, in_any_pages: bool
) -> dict[str, NDArray[np.uint8]] | None:
    """Pieces where they lie in their files, one mapping for each; None where that cannot be.

    It cannot where kernels could not read a piece there, and where pages between pieces would be more memory than
    `pinned_bytes`. in_any_pages : otherwise None where the page cache has them in small ones, too.
    """
    gaps = (b.offset - a.offset - a.nbytes for a, b in pairwise(pieces) if a.file == b.file)
    if any(piece.offset % _KERNEL_ALIGNMENT for piece in pieces) or any(gap >= ALIGNMENT for gap in gaps):
        return None
    with contextlib.ExitStack() as undo:
        mapped: list[tuple[MappedExtent, list[Piece]]] = []
        for file, group in groupby(pieces, lambda p: p.file):
            own = list(group)
            start, end = own[0].offset, own[-1].offset + own[-1].nbytes
            extent = source.map(file, start, end - start)
            if extent is None:
                return None
            undo.callback(extent.pages.close)
            mapped.append((extent, own))
        parts = [
            (extent, piece.offset + at, min(_FETCH_BYTES, piece.nbytes - at))
            for extent, own in mapped
            for piece in own
            for at in range(0, piece.nbytes, _FETCH_BYTES)
        ]
        huge_before, fetched, looked_at = huge_file_bytes(), 0, 0
        for i, (extent, offset, nbytes) in enumerate(parts):
            source.fetch(extent, offset, nbytes)
            arrived(nbytes)
            fetched += nbytes
            if not in_any_pages and (fetched - looked_at >= _LOOK_EVERY or i + 1 == len(parts)):
                looked_at = fetched
                if huge_file_bytes() - huge_before < _HUGE_SHARE * fetched:
                    return None
        undo.pop_all()
        source.mapped = True
    return {p.name: extent.view(p.offset, p.nbytes) for extent, own in mapped for p in own}


def _buffered(
    pieces: Sequence[Piece],
    source: DataSource,
    out: Mapping[str, NDArray[np.uint8]],
    arrived: Callable[[int], None],
) -> None:
    def read(piece: Piece) -> int:
        source.read_into(piece.file, piece.offset, out[piece.name])
        return piece.nbytes

    # Copying from the page cache and the first touch of new pages are work for more than one processor.
    pool = ThreadPoolExecutor(_LOADERS, thread_name_prefix="ramforge-load")
    try:
        for nbytes in pool.map(read, pieces):
            arrived(nbytes)
    finally:
        pool.shutdown(cancel_futures=True)


def _through_ring(
    pieces: Sequence[Piece],
    source: DataSource,
    memory: NDArray[np.uint8],
    slots: int,
    out: Mapping[str, NDArray[np.uint8]],
    arrived: Callable[[int], None],
) -> None:
    reads = list(_cut_by_bytes(pieces, len(memory) // slots - 2 * PAGE))
    at = dict.fromkeys(out, 0)
    stream = Stream(source, reads, memory, slots, repeat=False)
    try:
        stream.begin()
        for _ in reads:
            read, window = stream.take()
            for name, start, nbytes in read.pieces:
                out[name][at[name] : at[name] + nbytes] = window[start : start + nbytes]
                at[name] += nbytes
                arrived(nbytes)
            stream.give_back()
    finally:
        stream.close()


def _cut_by_bytes(pieces: Sequence[Piece], most: int) -> Iterator[Read]:
    """Reads of at most ``most`` payload bytes; pieces that touch in the file share one."""
    parts: list[tuple[str, int, int, int]] = []  # name, file, offset, nbytes
    for p in pieces:
        parts += [(p.name, p.file, p.offset + b, min(most, p.nbytes - b)) for b in range(0, p.nbytes, most)]
    group: list[tuple[str, int, int, int]] = []
    for part in parts:
        if group:
            gap, span = part[2] - (group[-1][2] + group[-1][3]), part[2] + part[3] - group[0][2]
            if part[1] != group[0][1] or gap > GAP_BYTES or span > most:
                yield _read(group)
                group = []
        group.append(part)
    if group:
        yield _read(group)


def _read(group: Sequence[tuple[str, int, int, int]]) -> Read:
    first, last = group[0], group[-1]
    offset = first[2] // PAGE * PAGE
    nbytes = -(-(last[2] + last[3]) // PAGE) * PAGE - offset
    parts = tuple((name, start - offset, n) for name, _, start, n in group)
    return Read(first[1], offset, nbytes, parts, nbytes - sum(n for *_, n in parts))
