"""Who holds how much memory: what we manage, what the process has, what the system and its containers say."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from attrs import asdict, frozen

from ramforge_core.budget import MemoryBudget, TagUse
from ramforge_core.reports.layout import pairs, table
from ramforge_core.sizes import format_size
from ramforge_core.system import MemoryFacts, ProcessMemory, available_memory, process_memory


@frozen
class MemoryReport:
    """Three different things, which must not be mixed up. Sizes in bytes, None where there is none or nobody says.

    limit, used, peak : of the budget. tags : by tag of its charges. process, system : as they are now.
    """

    limit: int | None
    used: int
    peak: int
    tags: Mapping[str, TagUse]
    process: ProcessMemory
    system: MemoryFacts

    def to_dict(self) -> dict[str, Any]:
        system = self.system
        return {
            "managed": {
                "limit_bytes": self.limit,
                "used_bytes": self.used,
                "peak_bytes": self.peak,
                "by_tag": {tag: use._asdict() for tag, use in self.tags.items()},
            },
            "process": asdict(self.process),
            "system": {
                **asdict(system),
                "available": system.available,
                "limit": system.limit,
                "limit_source": system.limit_source,
            },
        }

    def render(self) -> str:
        tags = [(tag, format_size(use.bytes), format_size(use.peak_bytes)) for tag, use in self.tags.items()]
        tags.append(("together", format_size(self.used), format_size(self.peak)))
        limit = "no limit" if self.limit is None else f"budget {format_size(self.limit)}"
        return "\n".join(
            [
                f"memory that is managed ({limit})",
                _indent(table(("for", "now", "most"), tags)),
                "memory of the process, as the system counts it",
                _indent(pairs(self._process())),
                "memory of the machine and its control groups",
                _indent(pairs(self._system())),
            ]
        )

    def _process(self) -> list[tuple[str, str]]:
        p = self.process
        return [
            ("resident", f"{_size(p.rss)}, at most {_size(p.peak_rss)}"),
            ("not backed by files", _size(p.rss_anon)),
            ("swapped out", _size(p.swap)),
            (
                "page faults",
                f"{_count(p.minor_faults)} minor, {_count(p.major_faults)} that read from a disk",
            ),
            ("read from disks", _size(p.read_bytes)),
        ]

    def _system(self) -> list[tuple[str, str]]:
        s = self.system
        rows = [("machine", f"{_size(s.machine_available)} available of {_size(s.total)}")]
        rows += [
            (
                f"cgroup {g.folder}",
                f"{_size(g.available)} available of {_size(g.limit)}; {_size(g.usage)} charged, of which "
                f"{_size(g.reclaimable)} are file cache",
            )
            for g in s.cgroups
        ]
        return rows


def memory_report(budget: MemoryBudget) -> MemoryReport:
    """Everything as it is now."""
    tags = MappingProxyType(dict(budget.by_tag()))
    return MemoryReport(budget.limit, budget.used, budget.peak, tags, process_memory(), available_memory())


def _size(n_bytes: int | None) -> str:
    return "unknown" if n_bytes is None else format_size(n_bytes)


def _count(n: int | None) -> str:
    return "unknown" if n is None else str(n)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
