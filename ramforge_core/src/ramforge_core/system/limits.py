"""Which memory budgets are safe here: the default one, and the largest one."""

from __future__ import annotations

import logging
from pathlib import Path

from ramforge_core.sizes import format_size
from ramforge_core.system.memory import MemoryFacts, available_memory
from ramforge_core.system.process import process_memory

RESERVE_BYTES = 512 << 20
"""What the default budget leaves for the rest of the machine, where it has twice that."""
FALLBACK_BYTES = 2 << 30
"""The default budget where nothing is known about the memory of the machine."""
_KERNEL_BYTES = 8 << 20
"""Stacks, sockets and other things of the kernel that count against a cgroup, but not as resident memory."""
_PAGE_TABLE_SHARE = 512
"""Page tables take 8 bytes for each page of 4 KiB."""


def default_budget(root: Path = Path("/")) -> int:
    """Bytes that this process may take when nobody said how many.

    80 % of what the machine and every cgroup could give this process, counting what it already has; and so little
    that the machine keeps `RESERVE_BYTES`, or half of what it has if that is less. Where only the machine's total
    is known, half of it stands for what it could give; where nothing is known, `FALLBACK_BYTES`.
    """
    facts, own = available_memory(root), _own_bytes(root)
    machine = facts.machine_available
    if machine is None and facts.total is not None:
        machine = facts.total // 2
    shares = [(group.available + own) * 4 // 5 for group in facts.cgroups]
    if machine is not None:
        machine += own
        shares += [machine * 4 // 5, max(machine - RESERVE_BYTES, machine // 2)]
    return max(1, min(shares, default=FALLBACK_BYTES))


def largest_budget(root: Path = Path("/")) -> int | None:
    """Bytes of resident memory that this process could reach without being killed or swapped; None if unknown.

    What machine and cgroups have free beside the page cache, what the process already has, less what the kernel
    takes along with it.
    """
    return _largest(available_memory(root), _own_bytes(root))


def check_budget(n_bytes: int, root: Path = Path("/")) -> int:
    """The budget of ``n_bytes`` if machine and cgroups can give it, else `largest_budget` and a warning in the log."""
    facts = available_memory(root)
    largest = _largest(facts, _own_bytes(root))
    if largest is None or n_bytes <= largest:
        return n_bytes
    limit = "" if facts.limit is None else f" (limit {format_size(facts.limit)}, set by {facts.limit_source})"
    logging.getLogger("ramforge").warning(
        "a memory budget of %s is more than can be had here%s: going on with %s",
        format_size(n_bytes),
        limit,
        format_size(largest),
    )
    return largest


def _largest(facts: MemoryFacts, own: int) -> int | None:
    reachable = facts.total if facts.available is None else facts.available + own
    if reachable is None:
        return None
    return max(1, reachable - reachable // _PAGE_TABLE_SHARE - _KERNEL_BYTES)


def _own_bytes(root: Path) -> int:
    """Bytes that this process has taken from what is available. Pages of files are available still."""
    return process_memory(root).rss_anon or 0
