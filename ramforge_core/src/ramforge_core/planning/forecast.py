"""From bytes and rates to tokens per second: a pass takes as long as the disk or the processor, whichever is slower."""

from __future__ import annotations

from typing import Any, Literal

from attrs import asdict, frozen

from ramforge_core.allotment import Allotment
from ramforge_core.calibration import Calibration


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

    Reading and computing overlap. What does not is reading the embeddings of a batch, one row after the other.
    """
    parts = allotment.residency
    rows = tokens if parts.embedding is not None else 0
    disk, compute = rates.disk, rates.compute
    disk_s = None if disk is None else parts.read_bytes / disk.bytes_per_s
    compute_s = None if compute is None else compute.pass_s(tokens, start, len(parts.reads))
    return speed(tokens, disk_s, compute_s, 0.0 if disk is None else rows * disk.latency_s)


def speed(tokens: int, disk_s: float | None, compute_s: float | None, before_s: float = 0.0) -> Speed | None:
    """The speed of a pass from what disk and processor take for it. before_s : what comes before both."""
    pass_s = max(disk_s or 0.0, compute_s or 0.0) + before_s
    if pass_s <= 0:
        return None
    binds: Literal["disk", "processor"] = "disk" if (disk_s or 0.0) > (compute_s or 0.0) else "processor"
    return Speed(tokens / pass_s, pass_s, binds, disk_s, compute_s)
