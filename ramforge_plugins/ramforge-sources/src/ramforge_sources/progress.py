"""The progress of one file as part of the progress of all."""

from __future__ import annotations

from collections.abc import Callable

from ramforge_core.sources import Progress


def shifted(progress: Progress, before: int, total: int | None) -> Callable[[int], None]:
    """Takes the bytes so far of one file, after ``before`` bytes of others, of ``total`` in all (None if unknown)."""
    return lambda n_bytes: progress(before + n_bytes, total)
