"""A kept sequence: tokens whose keys and values are kept, so that a text that begins alike is not computed again."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from ramforge_core.kv import KVCache


@define(eq=False)
class KeptSequence:
    """ids : the tokens that ``cache`` holds keys and values of, from position 0 on."""

    cache: KVCache
    ids: list[int] = field(factory=list)

    def common(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of ``ids`` need not be run: never the last one, whose logits are wanted."""
        most = min(len(self.ids), len(ids) - 1)
        return next((i for i in range(most) if self.ids[i] != ids[i]), max(most, 0))

    def cut(self, n: int) -> None:
        """Keep the first ``n`` tokens; give the memory of the others back as far as it is whole chunks."""
        del self.ids[n:]
        self.cache.truncate(n)

    def copy_from(self, other: KeptSequence, n: int) -> None:
        """Become the first ``n`` tokens of ``other``. Raises BudgetExceededError, and then is what it was."""
        self.cache.copy_from(other.cache, n)
        self.ids = other.ids[:n]

    def close(self) -> None:
        """Give all memory back; the sequence is empty then and may be used again."""
        self.cut(0)
