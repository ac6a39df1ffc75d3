"""One figure from several runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from attrs import frozen


@frozen
class Spread:
    """The middle, the least and the most of several measurements."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = list(values)
        return cls(statistics.median(found), min(found), max(found))

    def cells(self, unit: float = 1.0) -> tuple[str, str, str]:
        """As text, in multiples of ``unit``, to three digits."""
        return digits(self.median / unit), digits(self.min / unit), digits(self.max / unit)


def digits(number: float) -> str:
    """``0.123``, ``12.3``, ``1234``."""
    return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2 if number >= 1 else 3}f}"
