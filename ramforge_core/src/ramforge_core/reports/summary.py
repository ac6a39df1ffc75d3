"""Where the weights are, what they took of the budget, and how fast it was: the end-of-run summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from ramforge_core.reports.layout import pairs, rate, share
from ramforge_core.sizes import format_size

if TYPE_CHECKING:
    from ramforge_core.api import LanguageModel
    from ramforge_core.generation import Generation


@frozen
class Summary:
    """One answer of one model. Sizes in bytes, times in seconds.

    float32_bytes : what the weights would take decoded. read_bytes_per_pass : streamed bytes with gaps and rounding.
    resident_weight_bytes : the most of the weights that is in memory at once: the pinned part and the stream's ring.
    budget_bytes : None without a limit. managed_peak_bytes : the most that was charged to the budget.
    fits : whether all weights are pinned, so that nothing is read after load.
    disk_bytes, disk_s : read for decode passes, and the time with a read in flight. stall_s : decode waiting for it.
    """

    backend: str
    isa: str
    threads: int | None
    load_s: float
    weight_bytes: int
    float32_bytes: int
    pinned_bytes: int
    streamed_bytes: int
    read_bytes_per_pass: int
    ring_bytes: int
    budget_bytes: int | None
    managed_peak_bytes: int
    fits: bool
    direct_io: bool | None
    context: int
    kv_type: str
    kv_bytes_per_token: int
    prompt_tokens: int
    prompt_tokens_per_s: float
    first_token_s: float
    generated_tokens: int
    decode_passes: int
    decode_tokens_per_s: float
    decode_s: float
    stall_s: float
    disk_bytes: int
    disk_s: float
    finish_reason: str | None
    seed: int

    @property
    def resident_weight_bytes(self) -> int:
        return self.pinned_bytes + self.ring_bytes

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "resident_weight_bytes": self.resident_weight_bytes}

    def render(self) -> str:
        threads = f", {self.threads} threads" if self.threads else ""
        rows = [
            ("computed by", f"{self.backend} ({self.isa}{threads}); loaded in {self.load_s:.2f} s"),
            (
                "weights",
                f"{format_size(self.weight_bytes)} ({format_size(self.float32_bytes)} as float32), {self._where()}",
            ),
            ("", f"at most {format_size(self.resident_weight_bytes)} of them in memory: {self._resident()}"),
            ("budget", self._budget()),
            (
                "context",
                f"{self.context} tokens, {format_size(self.kv_bytes_per_token)} of {self.kv_type} keys and values each",
            ),
            ("prompt", f"{self.prompt_tokens} tokens at {self.prompt_tokens_per_s:.1f} tokens/s"),
            (
                "answer",
                f"{self.generated_tokens} tokens at {self.decode_tokens_per_s:.2f} tokens/s, the first after "
                f"{self.first_token_s:.2f} s; ended by {self.finish_reason or 'an interruption'}; seed {self.seed}",
            ),
        ]
        if not self.fits and self.decode_passes:
            rows.insert(-2, ("disk", self._disk()))
        return pairs(rows)

    def _where(self) -> str:
        if self.fits:
            return "all pinned in memory"
        return (
            f"more than fits: {format_size(self.pinned_bytes)} pinned, "
            f"{format_size(self.streamed_bytes)} streamed for each token"
        )

    def _resident(self) -> str:
        if self.fits:
            return "nothing is read after load"
        return f"pinned and a ring of {format_size(self.ring_bytes)}"

    def _budget(self) -> str:
        peak = format_size(self.managed_peak_bytes)
        if self.budget_bytes is None:
            return f"no limit; at most {peak} managed"
        used = share(self.managed_peak_bytes, self.budget_bytes)
        return f"{format_size(self.budget_bytes)}; at most {peak} managed, {used}"

    def _disk(self) -> str:
        memory = self.pinned_bytes / (self.pinned_bytes + self.streamed_bytes)
        way = "" if self.direct_io is None else ", direct reads" if self.direct_io else ", buffered reads"
        return (
            f"{format_size(self.disk_bytes / self.decode_passes)} a token at {rate(self.disk_bytes, self.disk_s)}"
            f"{way}; {memory:.0%} came from memory; waited {self.stall_s:.2f} s, computed "
            f"{self.decode_s - self.stall_s:.2f} s"
        )


def summary(m: LanguageModel, answer: Generation) -> Summary:
    """The summary of ``answer``, the last one that ``m`` gave."""
    engine, stats, answered = m.engine, m.stats, answer.stats
    allotment, reads = engine.allotment, answered.decode_reads
    parts = allotment.residency
    values = sum(_values(weight.shape) for weight in engine.model.weights.values())
    return Summary(
        backend=stats.backend,
        isa=stats.isa,
        threads=stats.threads,
        load_s=stats.load_s,
        weight_bytes=stats.weight_bytes,
        float32_bytes=4 * values,
        pinned_bytes=parts.pinned_bytes,
        streamed_bytes=parts.streamed_bytes,
        read_bytes_per_pass=parts.read_bytes,
        ring_bytes=allotment.ring_bytes,
        budget_bytes=engine.budget.limit,
        managed_peak_bytes=engine.budget.peak,
        fits=engine.streamed is None,
        direct_io=None if engine.streamed is None else engine.streamed.source.is_direct,
        context=engine.context,
        kv_type=allotment.kv_layout.type,
        kv_bytes_per_token=allotment.kv_layout.bytes_per_token,
        prompt_tokens=answered.prompt_tokens,
        prompt_tokens_per_s=answered.prompt_tokens_per_s,
        first_token_s=answered.first_token_s,
        generated_tokens=answered.generated_tokens,
        decode_passes=answered.decode_passes,
        decode_tokens_per_s=answered.decode_tokens_per_s,
        decode_s=answered.decode_s,
        stall_s=reads.stall_s,
        disk_bytes=reads.read_bytes + reads.row_bytes,
        disk_s=reads.busy_s,
        finish_reason=answer.finish_reason,
        seed=answer.seed,
    )


def _values(shape: tuple[int, ...]) -> int:
    n = 1
    for length in shape:
        n *= length
    return n
