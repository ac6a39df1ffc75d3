"""What this process has taken: memory, page faults, bytes read. Not what it may take."""

from __future__ import annotations

import sys
from pathlib import Path

from attrs import frozen

from ramforge_core.system.cgroups import read, read_table


@frozen
class ProcessMemory:
    """Memory in bytes, faults as counts since the start; None where the system does not say."""

    rss: int | None = None
    """Resident now: anonymous memory and mapped files."""
    peak_rss: int | None = None
    """Most that was ever resident."""
    rss_anon: int | None = None
    """Resident now and not backed by a file: what the kernel cannot simply drop."""
    swap: int | None = None
    minor_faults: int | None = None
    """Page faults served without reading."""
    major_faults: int | None = None
    """Page faults that had to read from a disk."""
    read_bytes: int | None = None
    """Bytes that were fetched from disks for this process, by any road; the page cache's hits are not in it."""


def process_memory(root: Path = Path("/")) -> ProcessMemory:
    """This process now. Costs some file reads on Linux; elsewhere only peak and faults are known, or nothing."""
    folder = root / "proc/self"
    status = read_table(folder / "status")
    if not status:
        return _from_resource()
    # The name in parentheses may hold anything; fields are counted after it, and the first is number 3 of proc(5).
    fields = [int(f) if f.isdecimal() else None for f in read(folder / "stat").rpartition(")")[2].split()]
    return ProcessMemory(
        rss=status.get("VmRSS"),
        peak_rss=status.get("VmHWM"),
        rss_anon=status.get("RssAnon"),
        swap=status.get("VmSwap"),
        minor_faults=fields[7] if len(fields) > 9 else None,
        major_faults=fields[9] if len(fields) > 9 else None,
        read_bytes=read_table(folder / "io").get("read_bytes"),
    )


def huge_file_bytes(root: Path = Path("/")) -> int:
    """Bytes of mapped files that this process has in huge pages; 0 where the system does not say."""
    return read_table(root / "proc/self/smaps_rollup").get("FilePmdMapped", 0)


def waited_s(root: Path = Path("/")) -> float:
    """Seconds since the start in which threads of this process were ready, but other work had the processor.

    Added up over the threads that there are now. 0 where the system does not say.
    """
    tasks = (root / "proc/self/task").glob(
        "*/schedstat"
    )  # proc(5): time run, time waited, in nanoseconds; slices
    times = [read(task).split() for task in tasks]
    return sum(int(words[1]) for words in times if len(words) == 3 and words[1].isdecimal()) / 1e9


def _from_resource() -> ProcessMemory:
    try:
        import resource
    except ImportError:  # Windows
        return ProcessMemory()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): macOS counts bytes, all others KiB
    return ProcessMemory(
        peak_rss=usage.ru_maxrss * unit, minor_faults=usage.ru_minflt, major_faults=usage.ru_majflt
    )
