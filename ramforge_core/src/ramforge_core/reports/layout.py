"""Columns, times and rates as text."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.sizes import format_size


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Lines of a name and what there is to say about it, names in one column."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of cells below a head: the first column left, the others right."""
    columns = list(zip(*([head, *rows]), strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in [head, *rows]:
        first, *others = row
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([f"{first:<{widths[0]}}", *cells]).rstrip())
    return "\n".join(lines)


def seconds(s: float) -> str:
    """``1.23 s``, or milliseconds below a tenth of a second."""
    return f"{s:.2f} s" if s >= 0.0995 else f"{1000 * s:.1f} ms"


def rate(n_bytes: float, s: float) -> str:
    """Bytes per second; a dash where there is no time to divide by."""
    return f"{format_size(n_bytes / s)}/s" if s > 0 else "-"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"
