"""The memory budget: who holds how many bytes, and the promise that all together stay below the limit.

It allocates nothing and measures nothing: it counts. Charge first, allocate after; free first, release after.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from operator import index
from types import MappingProxyType, TracebackType
from typing import NamedTuple

from ramforge_core.errors import BudgetExceededError, ParameterError


class TagUse(NamedTuple):
    """Bytes that the charges of one tag hold now, and the most they held at once."""

    bytes: int
    peak_bytes: int


class MemoryBudget:
    """Tagged charges whose sum never passes ``limit_bytes``; None means that there is no limit, only the book.

    Threads: safe. A charge waits for nobody: what does not fit is refused at once, and nothing is changed then.
    Charges are released by whoever made them, not by finalizers: those may run while the same thread holds the lock.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        if limit_bytes is not None and index(limit_bytes) <= 0:
            raise ParameterError(
                f"a memory budget of {limit_bytes} bytes holds nothing; give more than 0, or None"
            )
        self._limit = None if limit_bytes is None else index(limit_bytes)
        self._lock = threading.Lock()
        self._used = 0
        self._peak = 0
        self._tags: dict[str, TagUse] = {}

    @property
    def limit(self) -> int | None:
        """The most bytes that charges may hold, or None."""
        return self._limit

    @property
    def used(self) -> int:
        """Bytes that all charges hold now."""
        return self._used

    @property
    def free(self) -> int | None:
        """Bytes that could be charged now, or None without a limit."""
        return None if self._limit is None else self._limit - self._used

    @property
    def peak(self) -> int:
        """The most bytes that all charges held at once."""
        return self._peak

    def by_tag(self) -> Mapping[str, TagUse]:
        """Use by tag as it is now, tags in order of their first charge; a tag stays when its charges are gone."""
        with self._lock:
            return MappingProxyType(dict(self._tags))

    def charge(self, tag: str, n_bytes: int) -> Charge:
        """Take ``n_bytes`` (0 or more) for ``tag``, until the end of a ``with`` block or until ``release()``.

        Raises BudgetExceededError if they do not fit, ParameterError if they are negative.
        """
        charge = Charge(self, tag)
        charge.resize(n_bytes)
        return charge

    def __repr__(self) -> str:
        return f"MemoryBudget({self._limit}): {self._used} bytes used, {self._peak} at the peak"

    def _settle(self, charge: Charge, n_bytes: int, *, last: bool = False) -> None:
        """Make ``charge`` hold ``n_bytes``, all or nothing; with ``last`` it can never change again."""
        n_bytes = index(n_bytes)  # a NumPy integer could overflow
        if n_bytes < 0:
            raise ParameterError(f"{charge.tag}: a charge of {n_bytes} bytes; give 0 or more")
        with self._lock:
            if charge._released:
                if last:
                    return
                raise ParameterError(
                    f"{charge.tag}: this charge was released and cannot be resized; make a new one"
                )
            more = n_bytes - charge._n_bytes
            used = self._used + more
            if more > 0 and self._limit is not None and used > self._limit:
                raise BudgetExceededError(charge.tag, more, self._used, self._limit)
            tag = self._tags.get(charge.tag, TagUse(0, 0))
            tagged = tag.bytes + more
            self._tags[charge.tag] = TagUse(tagged, max(tag.peak_bytes, tagged))
            self._used, self._peak = used, max(self._peak, used)
            charge._n_bytes, charge._released = n_bytes, last


class Charge:
    """Bytes that one holder has taken from a `MemoryBudget`; made by `MemoryBudget.charge`."""

    __slots__ = ("_budget", "_n_bytes", "_released", "_tag")

    def __init__(self, budget: MemoryBudget, tag: str) -> None:
        self._budget = budget
        self._tag = tag
        self._n_bytes = 0
        self._released = False

    @property
    def tag(self) -> str:
        """What the bytes are for."""
        return self._tag

    @property
    def nbytes(self) -> int:
        """Bytes held now; 0 once released."""
        return self._n_bytes

    def resize(self, n_bytes: int) -> None:
        """Hold exactly ``n_bytes`` from now on. At no moment is any of what stays uncharged.

        Raises BudgetExceededError if the growth does not fit (the charge then is what it was), ParameterError if
        ``n_bytes`` is negative or the charge was released.
        """
        self._budget._settle(self, n_bytes)

    def release(self) -> None:
        """Give everything back, for good. Again: nothing happens."""
        self._budget._settle(self, 0, last=True)

    def __enter__(self) -> Charge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Charge {self._tag}: {self._n_bytes} bytes{', released' if self._released else ''}>"
