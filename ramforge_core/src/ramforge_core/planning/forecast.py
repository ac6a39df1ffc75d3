"""From bytes and rates to tokens per second: a pass takes as long as the disk or the processor, whichever is slower."""

from __future__ import annotations

from typing import Any, Literal

from attrs import asdict, frozen

from ramforge_core.allotment import Allotment
from ramforge_core.calibration import Calibration
from ramforge_core.experts import ExpertShares


@frozen
class Speed:
    """What one kind of pass is expected to take.

    binds : the slower one of what goes on side by side; the other is waited for by nobody.
    disk_s, compute_s : seconds of a pass that each needs alone; None where it was not measured.
    """

    tokens_per_s: float
    pass_s: float
    binds: Literal["disk", "processor"]
    disk_s: float | None
    compute_s: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def forecast(allotment: Allotment, rates: Calibration, tokens: int, start: int) -> Speed | None:
    """The speed of passes over ``tokens`` tokens from position ``start`` on; None if nothing was measured.

    Reading and computing overlap, as far as the ring allows: while one of its slots is computed with, only the others
    are filled. The processor does the work of reading, too. What does not overlap at all is reading the embeddings of
    a batch, one row after the other, and the experts that a layer's first tokens wait for: which they are is known
    when the layer is reached.
    """
    parts = allotment.residency
    rows = tokens if parts.embedding is not None else 0
    disk, compute = rates.disk, rates.compute
    disk_s, before_s, alone_s, pieces = None, 0.0, 0.0, len(parts.reads)
    if disk is not None:
        before_s = rows * disk.latency_s
        disk_s = sum(disk.read_s(read.nbytes) for read in parts.reads)
        if parts.experts is not None:
            expert_s = parts.experts.expected_bytes(tokens) / disk.bytes_per_s
            disk_s += expert_s
            alone_s = expert_s * _alone(parts.experts, tokens)
    if parts.experts is not None:
        pieces += 2 * len(parts.experts.layers)
    compute_s = None if compute is None else compute.pass_s(tokens, start, pieces)
    if compute_s is not None and disk is not None:
        compute_s += len(parts.reads) * disk.read_cpu_s
    held_s = 0.0 if compute_s is None or not allotment.slots else compute_s / allotment.slots
    return speed(tokens, disk_s, compute_s, before_s=before_s, alone_s=alone_s, held_s=held_s)


def _alone(experts: ExpertShares, tokens: int) -> float:
    """The share of reading experts that nothing is computed beside: of each layer about as many as one token uses."""
    misses = experts.expected_misses(tokens)
    return min(1.0, sum(layer.op.chosen for layer in experts.layers) / misses) if misses else 0.0


def speed(
    tokens: int,
    disk_s: float | None,
    compute_s: float | None,
    *,
    before_s: float = 0.0,
    alone_s: float = 0.0,
    held_s: float = 0.0,
) -> Speed | None:
    """The speed of a pass from what disk and processor take for it.

    before_s : what comes before both. alone_s : of ``disk_s``, what nothing is computed beside. held_s : how long a
    slot of the ring waits for the processor.
    """
    pass_s = max((disk_s or 0.0) - alone_s + held_s, compute_s or 0.0) + alone_s + before_s
    if pass_s <= 0:
        return None
    binds: Literal["disk", "processor"] = "disk" if (disk_s or 0.0) > (compute_s or 0.0) else "processor"
    return Speed(tokens / pass_s, pass_s, binds, disk_s, compute_s)
