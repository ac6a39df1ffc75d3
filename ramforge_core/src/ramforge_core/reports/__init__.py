"""What a run took, as data: for programs (`to_dict`) and for people (`render`).

Four reports, each of one question: `Summary` (where are the weights, how fast was it), `TimeReport` (where did the
time go), `MemoryReport` (who holds how much memory) and, for a model that is streamed, `PlanCheck` (was it as planned).
Nothing is measured here but the process and the system at the moment of asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ramforge_core.reports.memory import MemoryReport, memory_report
from ramforge_core.reports.planned import PlanCheck, plan_check
from ramforge_core.reports.summary import Summary, summary
from ramforge_core.reports.times import TimeReport, time_report

if TYPE_CHECKING:
    from ramforge_core.api import LanguageModel
    from ramforge_core.generation import Generation

__all__ = [
    "MemoryReport",
    "PlanCheck",
    "Summary",
    "TimeReport",
    "everything",
    "memory_report",
    "plan_check",
    "summary",
    "time_report",
]


def everything(m: LanguageModel, answer: Generation) -> dict[str, Any]:
    """All reports on the last answer of ``m``, for JSON; ``plan`` is None while nothing is streamed."""
    check = plan_check(m, answer)
    return {
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
        **m.stats.to_dict(),
        "summary": summary(m, answer).to_dict(),
        "profile": time_report(answer.stats, m.profile).to_dict(),
        "memory": memory_report(m.engine.budget).to_dict(),
        "plan": None if check is None else check.to_dict(),
    }
