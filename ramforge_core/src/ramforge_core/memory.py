"""Large buffers: page-aligned, and given back to the system the moment the last view of them is gone."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from ramforge_core.errors import OutOfMemoryError

PAGE = 4096
"""Direct reads start, end and land at multiples of this: enough for every block size that disks have."""

_HUGE_BYTES = 4 << 20
# Shared pages, which is what mmap gives unless told otherwise, are never huge ones.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


def allocate(n_bytes: int) -> NDArray[np.uint8]:
    """Zeroed uint8 (n_bytes,), page-aligned, outside the heap, so that freeing it never leaves a hole behind.

    Pages that are never touched take no memory. Raises OutOfMemoryError.
    """
    if n_bytes == 0:
        return np.empty(0, np.uint8)
    try:
        pages = mmap.mmap(-1, n_bytes, **_PRIVATE)
    except (OSError, MemoryError) as error:
        raise OutOfMemoryError(f"the system refused {n_bytes} bytes of memory") from error
    if n_bytes >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
