"""What this machine and its containers allow a process, and what the process has taken so far.

Linux tells it in ``/proc`` and ``/sys``; elsewhere what cannot be known is None. Each function takes the ``root``
below which those folders are looked for, so that tests can give others.
"""

from __future__ import annotations

from ramforge_core.system.limits import check_budget, default_budget, largest_budget
from ramforge_core.system.memory import CgroupMemory, MemoryFacts, available_memory
from ramforge_core.system.process import ProcessMemory, huge_file_bytes, process_memory, waited_s
from ramforge_core.system.threads import cpu_quotas, default_threads

__all__ = [
    "CgroupMemory",
    "MemoryFacts",
    "ProcessMemory",
    "available_memory",
    "check_budget",
    "cpu_quotas",
    "default_budget",
    "default_threads",
    "huge_file_bytes",
    "largest_budget",
    "process_memory",
    "waited_s",
]
