"""What a run took, as data: for programs (`to_dict`) and for people (`render`).

Four reports, each of one question: `Summary` (where are the weights, how fast was it), `TimeReport` (where did the time
go), `MemoryReport` (who holds how much memory) and, for a model that is streamed, `PlanCheck` (was it what the plan said).
Nothing is measured here but the process and the system at the moment of asking.
"""

from __future__ import annotations

from ramforge_core.reports.memory import MemoryReport, memory_report
from ramforge_core.reports.planned import PlanCheck, plan_check
from ramforge_core.reports.summary import Summary, summary
from ramforge_core.reports.times import TimeReport, time_report

__all__ = [
    "MemoryReport",
    "PlanCheck",
    "Summary",
    "TimeReport",
    "memory_report",
    "plan_check",
    "summary",
    "time_report",
]
