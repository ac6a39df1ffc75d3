"""What this machine and its containers allow a process. Not what the process uses."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


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
    return [q for q in (_quota(folder) for folder in _cgroup_folders(root)) if q is not None]


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _usable_cores(root: Path) -> int:
    usable = _affinity()
    fast = _parse_cpus(_read(root / "sys/devices/cpu_core/cpus"))  # only there on Intel hybrids
    usable = usable & fast or usable
    cpus = root / "sys/devices/system/cpu"
    return len({_read(cpus / f"cpu{n}/topology/thread_siblings_list") or str(n) for n in usable})


def _cgroup_folders(root: Path) -> Iterator[Path]:
    """The folders of this process's CPU cgroup and its parents.

    In a container the path in ``/proc/self/cgroup`` may be one of the host's, of which only the mount's root is
    seen: so folders that are not there are passed over and the mount's root always counts.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            tops = [mount, mount / "unified"]
        elif "cpu" in controllers.split(","):
            tops = [mount / controllers, mount / "cpu"]
        else:
            continue
        top = next((t for t in tops if t.is_dir()), mount)
        folder = top / path.lstrip("/")
        yield from (f for f in (folder, *folder.parents) if f == top or top in f.parents)


def _quota(folder: Path) -> float | None:
    """Processors that one cgroup folder allows, or None."""
    limit = _read(folder / "cpu.max").split()
    if len(limit) != 2:
        limit = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
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


def _read(path: Path) -> str:
    """The stripped text of a file, empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
