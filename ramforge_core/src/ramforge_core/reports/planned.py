"""What the plan said beside what came true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from ramforge_core.reports.layout import table
from ramforge_core.sizes import format_size
from ramforge_core.system import process_memory

if TYPE_CHECKING:
    from ramforge_core.api import LanguageModel
    from ramforge_core.generation import Generation


@frozen
class Comparison:
    """One number of the plan; None if it says nothing, or nothing was measured."""

    planned: float | None
    actual: float | None


@frozen
class PlanCheck:
    """By name, what was planned and what it was: bytes and tokens per second."""

    rows: dict[str, Comparison]

    def to_dict(self) -> dict[str, Any]:
        return {name: {"planned": row.planned, "actual": row.actual} for name, row in self.rows.items()}

    def render(self) -> str:
        cells = [
            (name.replace("_", " "), *(_text(name, n) for n in (row.planned, row.actual)), _ratio(row))
            for name, row in self.rows.items()
        ]
        return table(("", "planned", "actual", "actual/planned"), cells)


def _text(name: str, number: float | None) -> str:
    if number is None:
        return "-"
    return format_size(number) if "bytes" in name else f"{number:.2f}"


def _ratio(row: Comparison) -> str:
    return f"{row.actual / row.planned:.2f}" if row.actual is not None and row.planned else "-"


def plan_check(m: LanguageModel, answer: Generation) -> PlanCheck | None:
    """The plan beside the last answer of ``m``; None while all weights are in memory, where it has little to say.

    The speed is compared where the model has a plan that forecasts one.
    """
    engine, stats = m.engine, answer.stats
    if engine.streamed is None:
        return None
    process = engine.budget.by_tag().get("process")
    reads, passes = stats.decode_reads, stats.decode_passes
    rows = {
        "bytes_read_per_token": Comparison(
            engine.allotment.residency.read_bytes,
            (reads.read_bytes + reads.row_bytes) / passes if passes else None,
        ),
        "peak_memory_bytes": Comparison(
            engine.allotment.total_bytes + (process.peak_bytes if process else 0), process_memory().peak_rss
        ),
    }
    return PlanCheck(rows)
