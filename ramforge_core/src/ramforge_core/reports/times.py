"""Where the time of an answer went: prefill, decode, disk, waiting, kernels, sampling, and whoever took the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, frozen

from ramforge_core.generation import GenerationStats
from ramforge_core.profile import PhaseUse, Profile
from ramforge_core.reports.layout import pairs, rate, seconds, share, table
from ramforge_core.sizes import format_size
from ramforge_core.stream import StreamStats


@frozen
class TimeReport:
    """Times of one answer, and of all passes by stage and kind of work where a `Profile` was kept.

    phases : ``prefill`` and ``decode``; empty without a profile.
    """

    answer: GenerationStats
    phases: Mapping[str, PhaseUse]

    def to_dict(self) -> dict[str, Any]:
        a = self.answer
        return {
            "prefill_s": a.prompt_s,
            "decode_s": a.decode_s,
            "sampling_s": a.sampling_s,
            "callback_s": a.callback_s,
            "token_latency_s": a.latencies_s(),
            "reads": {"prefill": _reads(a.prompt_reads), "decode": _reads(a.decode_reads)},
            "phases": {name: asdict(phase) for name, phase in self.phases.items()},
        }

    def render(self) -> str:
        a = self.answer
        latencies = ", ".join(f"{name} {seconds(s)}" for name, s in a.latencies_s().items())
        rows = [
            (
                "prefill",
                f"{seconds(a.prompt_s)}, {a.prompt_tokens} tokens at {a.prompt_tokens_per_s:.1f} tokens/s",
            ),
            (
                "decode",
                f"{seconds(a.decode_s)}, {a.decode_passes} passes at {a.decode_tokens_per_s:.2f} tokens/s",
            ),
            ("token latency", latencies or "no token but the first"),
            ("sampling", seconds(a.sampling_s)),
            ("callback", f"{seconds(a.callback_s)}, in which whoever takes the text had it"),
        ]
        parts = ["time of the answer", pairs(rows)]
        if a.prompt_reads.reads or a.decode_reads.reads:
            parts += ["reads of streamed weights", self._render_reads()]
        for name, phase in self.phases.items():
            if phase.passes:
                passes = f"{phase.passes} pass{'es' if phase.passes > 1 else ''}"
                parts += [
                    f"{name} by kind of work ({passes}, timed part by part, which costs time)",
                    _kinds(phase),
                ]
                parts += [f"{name} by stage", _stages(phase)]
        heads = parts[0::2]
        bodies = ["\n".join(f"  {line}" for line in body.splitlines()) for body in parts[1::2]]
        return "\n".join(f"{head}\n{body}" for head, body in zip(heads, bodies, strict=True))

    def _render_reads(self) -> str:
        columns = [self.answer.prompt_reads, self.answer.decode_reads]
        times = [self.answer.prompt_s, self.answer.decode_s]
        rows = [
            ("bytes", *(format_size(c.read_bytes) for c in columns)),
            ("reads", *(str(c.reads) for c in columns)),
            ("of several ranges", *(str(c.coalesced) for c in columns)),
            ("gap bytes", *(format_size(c.gap_bytes) for c in columns)),
            ("sequential", *(share(c.sequential, c.reads) for c in columns)),
            ("embedding rows", *(format_size(c.row_bytes) for c in columns)),
            *self._expert_rows(columns),
            ("rate of the disk", *(rate(c.read_bytes, c.busy_s) for c in columns)),
            ("waited for it", *(seconds(c.stall_s) for c in columns)),
            (
                "else (compute)",
                *(seconds(max(0.0, t - c.stall_s)) for t, c in zip(times, columns, strict=True)),
            ),
        ]
        return table(("", "prefill", "decode"), rows)

    @staticmethod
    def _expert_rows(columns: Sequence[StreamStats]) -> list[tuple[str, ...]]:
        if not any(c.expert_hits + c.expert_misses for c in columns):
            return []
        return [
            ("experts read", *(str(c.expert_misses) for c in columns)),
            ("in memory", *(share(c.expert_hits, c.expert_hits + c.expert_misses) for c in columns)),
        ]


def time_report(answer: GenerationStats, profile: Profile | None = None) -> TimeReport:
    """The report on ``answer``; with the profile that was given to `ramforge_core.open`, by stage and kind too."""
    return TimeReport(evolve(answer), {} if profile is None else dict(profile.phases.items()))


def _reads(stats: StreamStats) -> dict[str, Any]:
    return {
        **asdict(stats),
        "bytes_per_s": stats.read_bytes / stats.busy_s if stats.busy_s else 0.0,
        "sequential_share": stats.sequential / stats.reads if stats.reads else 0.0,
    }


def _kinds(phase: PhaseUse) -> str:
    whole = sum(use.compute_s for use in phase.kinds.values())
    rows = [
        (
            name,
            seconds(use.compute_s),
            share(use.compute_s, whole),
            rate(use.weight_bytes, use.compute_s) if use.weight_bytes else "",
        )
        for name, use in sorted(phase.kinds.items(), key=lambda item: -item[1].compute_s)
    ]
    return table(("", "compute", "share", "weights"), rows)


def _stages(phase: PhaseUse) -> str:
    rows = [
        (name, seconds(use.compute_s), seconds(use.stall_s), format_size(use.streamed_bytes))
        for name, use in phase.stages.items()
    ]
    return table(("", "compute", "waited", "streamed"), rows)
