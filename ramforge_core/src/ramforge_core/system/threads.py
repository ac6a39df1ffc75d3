"""How many threads this machine and its containers allow a process."""

from __future__ import annotations

import math
import os
from pathlib import Path

from ramforge_core.system.cgroups import cgroup_folders, read


def default_threads(root: Path = Path("/")) -> int:
    """Threads that compute best by default: the smallest of usable cores and CPU quota, at least 1.

    Usable are the processors of the affinity mask; on a hybrid machine only its performance cores, and of
    hyper-threads that share a core only one counts. A quota (cgroup v1 or v2, any level) counts in whole processors.
    root : where ``/proc`` and ``/sys`` are; tests give another.
    """
    quotas = [math.floor(q) for q in cpu_quotas(root)]
    return max(1, min([_usable_cores(root), *quotas]))


def cpu_quotas(root: Path = Path("/")) -> list[float]:
    """CPU quotas that bind this process, in processors: one for every cgroup on the way up that has one."""
    return [q for q in (_quota(folder) for folder in cgroup_folders(root, "cpu")) if q is not None]


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _usable_cores(root: Path) -> int:
    usable = _affinity()
    fast = _parse_cpus(read(root / "sys/devices/cpu_core/cpus"))  # only there on Intel hybrids
    usable = usable & fast or usable
    cpus = root / "sys/devices/system/cpu"
    return len({read(cpus / f"cpu{n}/topology/thread_siblings_list") or str(n) for n in usable})


def _quota(folder: Path) -> float | None:
    """Processors that one cgroup folder allows, or None."""
    limit = read(folder / "cpu.max").split()
    if len(limit) != 2:
        limit = [read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")]
    try:
        quota, period = int(limit[0]), int(limit[1])
    except ValueError:  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _parse_cpus(text: str) -> set[int]:
    """``0-3,8`` as a set."""
    out: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        out.update(range(int(first), int(last or first) + 1))
    return out
