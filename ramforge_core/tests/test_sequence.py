"""Kept sequences: what of a new text need not be computed."""

from __future__ import annotations

import pytest

from ramforge_core.budget import MemoryBudget
from ramforge_core.errors import BudgetExceededError
from ramforge_core.kv import KVCache, KVLayout
from ramforge_core.sequence import KeptSequence

LAYOUT = KVLayout("f16", ((1, 32, 32),))


@pytest.mark.parametrize(
    ("kept", "new", "common"),
    [
        ([], [1, 2], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 3], 2),  # the last token has to be run for its logits
        ([1, 2, 3, 4], [1, 2], 1),
        ([1, 2, 3], [1, 5, 3], 1),
        ([9], [1], 0),
        ([1, 2], [], 0),
    ],
)
def test_common(kept, new, common):
    assert KeptSequence(KVCache(LAYOUT), kept).common(new) == common


def test_cutting_gives_whole_chunks_back():
    budget = MemoryBudget(None)
    kept = KeptSequence(KVCache(LAYOUT, budget), list(range(600)))
    kept.cache.reserve(600)
    assert budget.used == 3 * LAYOUT.chunk_bytes
    kept.cut(257)
    assert (len(kept.ids), budget.used) == (257, 2 * LAYOUT.chunk_bytes)
    kept.close()
    assert (kept.ids, budget.used) == ([], 0)


def test_a_copy_is_its_own_and_charged():
    budget = MemoryBudget(5 * LAYOUT.chunk_bytes)
    kept = KeptSequence(KVCache(LAYOUT, budget), list(range(600)))
    kept.cache.reserve(600)
    for i, chunk in enumerate(kept.cache.chunks):
        chunk[:] = i + 1
    other = KeptSequence(KVCache(LAYOUT, budget))
    other.copy_from(kept, 300)
    assert other.ids == list(range(300))
    kept.cache.chunks[0][:] = 99
    assert [int(chunk[0]) for chunk in other.cache.chunks] == [1, 2]
    third = KeptSequence(KVCache(LAYOUT, budget))
    with pytest.raises(BudgetExceededError):
        third.copy_from(kept, 300)
    assert (third.ids, budget.used) == ([], 5 * LAYOUT.chunk_bytes)
