"""Memory of the machine and of the control groups that this process is in. Not what the process itself has taken."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import frozen

from ramforge_core.system.cgroups import cgroup_folders, read_number, read_table

_NO_LIMIT = 1 << 60
"""cgroup v1 writes "no limit" as the largest multiple of a page; nothing real comes near."""


@frozen
class CgroupMemory:
    """One control group with a memory limit; all sizes in bytes."""

    folder: str
    limit: int
    usage: int
    """What is charged to the group, page cache included."""
    reclaimable: int
    """File cache in ``usage``, which the kernel drops as soon as the group needs the room."""

    @property
    def available(self) -> int:
        """Bytes that processes of the group could still take."""
        return max(0, self.limit - max(0, self.usage - self.reclaimable))


@frozen
class MemoryFacts:
    """Memory as it is now, in bytes; None where the system does not say."""

    total: int | None
    """Main memory of the machine."""
    machine_available: int | None
    """What the machine could give without swapping (Linux: ``MemAvailable``)."""
    cgroups: tuple[CgroupMemory, ...]
    """The control groups with a limit that this process is in, innermost first."""

    @property
    def available(self) -> int | None:
        """The least that the machine and all control groups could still give."""
        return _least(self.machine_available, *(group.available for group in self.cgroups))

    @property
    def limit(self) -> int | None:
        """The least of the machine's memory and all control groups' limits."""
        return _least(self.total, *(group.limit for group in self.cgroups))

    @property
    def limit_source(self) -> str:
        """Whose limit that is: ``the machine`` or ``the cgroup FOLDER``."""
        outermost_first = reversed(self.cgroups)  # a v1 group shows its parents' limits as its own
        return next(
            (f"the cgroup {g.folder}" for g in outermost_first if g.limit == self.limit), "the machine"
        )


def available_memory(root: Path = Path("/")) -> MemoryFacts:
    """What the machine and the control groups (v1, v2, every level on the way up) have and could still give."""
    machine = read_table(root / "proc/meminfo")
    groups = (_cgroup(folder) for folder in cgroup_folders(root, "memory"))
    return MemoryFacts(
        machine.get("MemTotal") or _physical_bytes(),
        machine.get("MemAvailable"),
        tuple(group for group in groups if group is not None),
    )


def _cgroup(folder: Path) -> CgroupMemory | None:
    """The memory facts in one folder, None if nothing is limited there."""
    stat = read_table(folder / "memory.stat")
    # v2: above "high" the kernel already slows the group down to a crawl. v1: the hierarchical limit knows parents
    # that a container does not see.
    limit = _least(
        read_number(folder / "memory.max"),
        read_number(folder / "memory.high"),
        read_number(folder / "memory.limit_in_bytes"),
        stat.get("hierarchical_memory_limit"),
    )
    if limit is None or limit >= _NO_LIMIT:
        return None
    usage = read_number(folder / "memory.current") or read_number(folder / "memory.usage_in_bytes") or 0
    # v1 counts children only under "total_"; v2 always.
    cache = [stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file")]
    return CgroupMemory(str(folder), limit, usage, sum(cache))


def _physical_bytes() -> int | None:
    """Main memory by POSIX, for systems without ``/proc/meminfo``."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf, others not these names
        return None


def _least(*sizes: int | None) -> int | None:
    return min((size for size in sizes if size is not None), default=None)
