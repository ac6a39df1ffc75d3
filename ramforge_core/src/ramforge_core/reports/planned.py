"""What the plan said beside what came true."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from ramforge_core.planning import Speed, forecast
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
        text = table(("plan and truth", "planned", "actual", "actual/planned"), cells)
        if self.rows["answer_tokens_per_s"].planned is None:
            text += "\n(the plan has speeds once `ramforge plan MODEL` has measured disk and kernels)"
        return text


def _text(name: str, number: float | None) -> str:
    if number is None:
        return "-"
    return format_size(number) if "bytes" in name else f"{number:.2f}"


def _ratio(row: Comparison) -> str:
    return f"{row.actual / row.planned:.2f}" if row.actual is not None and row.planned else "-"


def plan_check(m: LanguageModel, answer: Generation) -> PlanCheck | None:
    """The plan beside the last answer of ``m``; None while all weights are in memory, where it has little to say."""
    engine, stats = m.engine, answer.stats
    if engine.streamed is None:
        return None
    plan, reads, passes = m.plan, stats.decode_reads, stats.decode_passes
    peak = plan.peak_bytes(stats.prompt_tokens + stats.generated_tokens, stats.prompt_tokens)
    rates, chunk = plan.rates, min(stats.prompt_tokens, engine.allotment.max_tokens)
    decode = _tokens_per_s(forecast(engine.allotment, rates, 1, stats.prompt_tokens + passes // 2))
    prefill = _tokens_per_s(forecast(engine.allotment, rates, max(1, chunk), 0))
    rows = {
        "bytes_read_per_token": Comparison(
            plan.read_bytes_per_token, (reads.read_bytes + reads.row_bytes) / passes if passes else None
        ),
        "peak_memory_bytes": Comparison(peak, process_memory().peak_rss),
        "prompt_tokens_per_s": Comparison(prefill, stats.prompt_tokens_per_s or None),
        "answer_tokens_per_s": Comparison(decode, stats.decode_tokens_per_s or None),
    }
    return PlanCheck(rows)


def _tokens_per_s(speed: Speed | None) -> float | None:
    return None if speed is None else speed.tokens_per_s
