"""The plan of a model: what it will take and how fast it will be, from its header and two measured rates.

It goes the way that opening the model goes, up to the point where the budget is divided, and stops there; so it is
what a run does. No weight is used; the calibration reads some of the file to time it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, frozen

from ramforge_core.allotment import Allotment, allot, smallest_free_bytes
from ramforge_core.calibration import Calibration
from ramforge_core.experts import ExpertShares
from ramforge_core.graph import Embed, op_weights
from ramforge_core.kv import CHUNK_POSITIONS, KVType
from ramforge_core.memory import PAGE
from ramforge_core.model import Model
from ramforge_core.planning.forecast import Speed, forecast

EARLY = 128
"""The position at which a decode speed is meant, where the context is that long."""
GIB = 1 << 30
SWEEP_POINTS = 14


@frozen
class StageShare:
    """The weight bytes of one stage: always in memory, read in every pass, or read by row.

    expert_bytes : of experts that are read when they are chosen; so many of them, kept_bytes, may stay in memory.
    """

    name: str
    pinned_bytes: int
    streamed_bytes: int
    by_row_bytes: int = 0
    expert_bytes: int = 0
    kept_bytes: int = 0


@frozen
class Outlook:
    """The plan for another budget, in short. prefill and decode : None if nothing was measured."""

    ram_bytes: int
    context: int
    pinned_bytes: int
    read_bytes_per_token: int
    decode: Speed | None
    prefill: Speed | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "ram_bytes": self.ram_bytes,
            "context": self.context,
            "pinned_bytes": self.pinned_bytes,
            "read_bytes_per_token": self.read_bytes_per_token,
            "decode": self.decode and self.decode.to_dict(),
            "prefill": self.prefill and self.prefill.to_dict(),
        }


@frozen(kw_only=True, eq=False)
class Plan:
    """Everything that can be said of a run before it. Sizes in bytes.

    note : why this is no plan of a run, for an architecture that is declared only; None for one that runs.
    memory : by item, with the KV cache of the whole context; ``total_bytes`` is their sum and the peak to expect when
        the context is full. Before that the cache is smaller, since it grows with the text: see `peak_bytes`.
    context : positions of this plan. trained_context : of the model. largest_context : that this budget could hold,
        None if unknown.
    chunk_tokens : prompt tokens that go through the weights together.
    smallest_ram_bytes : below it this context does not work. all_fits_ram_bytes : from it on nothing is streamed.
    streamed_bytes : weight bytes that every pass reads. read_bytes_per_token : what a decoded token reads, with
        rounding, gaps, its row of the embedding, and the experts that are missing if routers have no favourites.
    by_row_bytes : embedding of which only rows are read.
    experts : how those are held that do not fit; None if there are none, or all fit.
    decode, decode_full, prefill : speed early in the context, at its end, and of a full chunk of prompt.
    more : with one GiB more.
    """

    path: str
    architecture: str
    note: str | None
    backend: str | None
    isa: str | None
    threads: str | None
    ram_bytes: int
    memory: Mapping[str, int]
    context: int
    trained_context: int
    largest_context: int | None
    kv_type: str
    kv_bytes_per_token: int | None
    chunk_tokens: int
    smallest_ram_bytes: int
    all_fits_ram_bytes: int
    weight_bytes: int
    pinned_bytes: int
    streamed_bytes: int
    by_row_bytes: int
    read_bytes_per_token: int
    reads_per_pass: int
    experts: ExpertShares | None
    load_s: float | None
    decode: Speed | None
    decode_full: Speed | None
    prefill: Speed | None
    more: Outlook | None
    rates: Calibration
    stages: tuple[StageShare, ...]
    allotment: Allotment | None
    outlook: Callable[[int], Outlook]
    """What another budget would give."""

    @property
    def total_bytes(self) -> int:
        return sum(self.memory.values())

    def peak_bytes(self, positions: int, prompt_tokens: int) -> int:
        """Peak resident memory of an answer that ends at ``positions`` tokens, of which so many were the prompt.

        Buffers count as far as they are written to: the KV cache by chunks, the workspace by the tokens of a pass,
        and of the logits one row. At most `total_bytes`.
        """
        plan = self.allotment
        if plan is None:
            return self.total_bytes
        chunks = -(-min(positions, plan.context) // CHUNK_POSITIONS)
        unused = (
            plan.kv_bytes
            - chunks * plan.kv_layout.chunk_bytes
            + plan.workspace_bytes * (1 - min(prompt_tokens, plan.max_tokens) / plan.max_tokens)
            + plan.logits_bytes * (1 - 1 / plan.max_wanted)
        )
        return self.total_bytes - int(unused)

    def sweep(self, points: int = SWEEP_POINTS) -> list[Outlook]:
        """Budgets from the smallest to the one that holds everything, each the same factor larger than the last."""
        least, most = self.smallest_ram_bytes, max(self.all_fits_ram_bytes, self.smallest_ram_bytes + 1)
        steps = [least * (most / least) ** (i / (points - 1)) for i in range(points)]
        return [self.outlook(n) for n in dict.fromkeys([least, *map(int, steps[1:-1]), most])]

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``: only dicts, lists, text, numbers and None."""
        return {
            "path": self.path,
            "architecture": self.architecture,
            "note": self.note,
            "backend": self.backend,
            "isa": self.isa,
            "threads": self.threads,
            "ram_bytes": self.ram_bytes,
            "memory_bytes": dict(self.memory),
            "total_bytes": self.total_bytes,
            "context": self.context,
            "trained_context": self.trained_context,
            "largest_context": self.largest_context,
            "kv_type": self.kv_type,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "chunk_tokens": self.chunk_tokens,
            "smallest_ram_bytes": self.smallest_ram_bytes,
            "all_fits_ram_bytes": self.all_fits_ram_bytes,
            "weight_bytes": self.weight_bytes,
            "pinned_bytes": self.pinned_bytes,
            "streamed_bytes": self.streamed_bytes,
            "by_row_bytes": self.by_row_bytes,
            "read_bytes_per_token": self.read_bytes_per_token,
            "reads_per_pass": self.reads_per_pass,
            "experts": self.experts and _experts(self.experts),
            "load_s": self.load_s,
            "decode": self.decode and self.decode.to_dict(),
            "decode_at_full_context": self.decode_full and self.decode_full.to_dict(),
            "prefill": self.prefill and self.prefill.to_dict(),
            "with_one_gib_more": self.more and self.more.to_dict(),
            "calibration": {
                "disk": self.rates.disk and self.rates.disk.to_dict(),
                "compute": self.rates.compute and self.rates.compute.to_dict(),
            },
            "stages": [
                {
                    "name": s.name,
                    "pinned_bytes": s.pinned_bytes,
                    "streamed_bytes": s.streamed_bytes,
                    "by_row_bytes": s.by_row_bytes,
                    "expert_bytes": s.expert_bytes,
                    "kept_expert_bytes": s.kept_bytes,
                }
                for s in self.stages
            ],
        }

    def render(self) -> str:
        """For a terminal."""
        from ramforge_core.planning.text import render

        return render(self)


def plan_of(
    model: Model,
    allotment: Allotment,
    workspaces: Callable[[int | None], Callable[[int], int]],
    rates: Calibration,
    *,
    ram_bytes: int,
    process_bytes: int,
    context: int | None,
    kv_type: KVType,
    facts: Mapping[str, str],
) -> Plan:
    """The plan that belongs to an allotment. context : as it was asked for. facts : backend, isa, threads.

    workspaces : by context asked for, bytes of scratch that a pass over so many tokens takes.
    Pure: nothing is measured or read.
    """
    parts, free, workspace = allotment.residency, ram_bytes - process_bytes, workspaces(context)

    def outlook(ram: int) -> Outlook:
        found = allot(model, ram - process_bytes, workspace, context=context, kv_type=kv_type)
        if found is None:
            return Outlook(ram, 0, 0, 0, None, None)
        decode, _, prefill = _speeds(found, rates)
        return Outlook(
            ram, found.context, found.residency.pinned_bytes, _read_bytes(model, found), decode, prefill
        )

    def smallest(positions: int | None) -> int:
        return smallest_free_bytes(model, workspaces(positions), context=positions, kv_type=kv_type)

    decode, decode_full, prefill = _speeds(allotment, rates)
    by_row = 0 if parts.embedding is None else model.weights[parts.embedding].nbytes
    return Plan(
        path=os.fspath(model.gguf.path),
        architecture=model.architecture.key,
        note=None,
        backend=facts.get("backend"),
        isa=facts.get("isa"),
        threads=facts.get("threads"),
        ram_bytes=ram_bytes,
        memory={"process": process_bytes, **allotment.charges(), "kv cache": allotment.kv_bytes},
        context=allotment.context,
        trained_context=model.config.context_length,
        largest_context=max(allotment.context, _largest_context(model, smallest, free)),
        kv_type=kv_type,
        kv_bytes_per_token=allotment.kv_layout.bytes_per_token,
        chunk_tokens=allotment.max_tokens,
        smallest_ram_bytes=process_bytes + smallest(context),
        all_fits_ram_bytes=process_bytes + _all_fits(model, workspace, context, kv_type, smallest(context)),
        weight_bytes=sum(w.nbytes for w in model.weights.values()),
        pinned_bytes=parts.pinned_bytes,
        streamed_bytes=parts.streamed_bytes,
        by_row_bytes=by_row,
        read_bytes_per_token=_read_bytes(model, allotment),
        reads_per_pass=len(parts.reads),
        experts=parts.experts,
        load_s=None if rates.disk is None else parts.pinned_bytes / rates.disk.bytes_per_s,
        decode=decode,
        decode_full=decode_full,
        prefill=prefill,
        more=outlook(ram_bytes + GIB) if parts.embedding is not None else None,
        rates=rates,
        stages=_stages(model, allotment),
        allotment=allotment,
        outlook=outlook,
    )


def _speeds(allotment: Allotment, rates: Calibration) -> tuple[Speed | None, Speed | None, Speed | None]:
    early = min(EARLY, allotment.context) - 1
    return (
        forecast(allotment, rates, 1, early),
        forecast(allotment, rates, 1, allotment.context - 1),
        forecast(allotment, rates, allotment.max_tokens, 0),
    )


def _read_bytes(model: Model, allotment: Allotment) -> int:
    parts = allotment.residency
    if parts.embedding is None:
        return parts.read_bytes
    row = (
        model.weights[parts.embedding].row_bytes + PAGE
    )  # rounded outward, a row takes a page more on average
    experts = (
        0
        if parts.experts is None
        else parts.experts.expected_bytes(1) + 3 * PAGE * parts.experts.expected_misses(1)
    )
    return parts.read_bytes + row + int(experts)


def _experts(shares: ExpertShares) -> dict[str, Any]:
    return {
        "bytes": shares.expert_bytes,
        "slot_bytes": shares.slot_bytes,
        "slots": shares.slots,
        "kept_by_layer": [layer.kept for layer in shares.layers],
        "in_a_layer": [layer.op.experts for layer in shares.layers],
        "used_by_a_token": [layer.op.chosen for layer in shares.layers],
        "missing_per_token": shares.expected_misses(1),
        "read_bytes_per_token": int(shares.expected_bytes(1)),
    }


def _largest_context(model: Model, smallest: Callable[[int | None], int], free: int) -> int:
    """The most positions with which the smallest form of the model fits."""
    trained: int = model.config.context_length
    fits, above = 0, -(-trained // CHUNK_POSITIONS) + 1
    while above - fits > 1:
        chunks = (fits + above) // 2
        if smallest(min(chunks * CHUNK_POSITIONS, trained)) <= free:
            fits = chunks
        else:
            above = chunks
    return min(fits * CHUNK_POSITIONS, trained)


def _all_fits(
    model: Model, workspace: Callable[[int], int], context: int | None, kv_type: KVType, least: int
) -> int:
    """Free bytes from which on everything is pinned, to the MiB."""

    def fits(free: int) -> bool:
        found = allot(model, free, workspace, context=context, kv_type=kv_type)
        return found is not None and found.residency.embedding is None

    unlimited = allot(model, None, workspace, context=context, kv_type=kv_type)
    most = unlimited.total_bytes if unlimited is not None else least
    while not fits(most):  # the shares of context and workspace are larger in a larger budget
        most += most // 16
    least -= 1
    while most - least > 1 << 20:
        middle = (least + most) // 2
        least, most = (least, middle) if fits(middle) else (middle, most)
    return most


def _stages(model: Model, allotment: Allotment) -> tuple[StageShare, ...]:
    parts = allotment.residency
    owner: dict[str, str] = {}
    for stage in model.graph.stages:
        for op in stage.ops:
            if parts.embedding is not None and isinstance(op, Embed):
                continue  # read by row; where embeddings are tied, the head scans the same tensor
            for name in op_weights(op):
                owner.setdefault(name, stage.name)
    shares = {stage.name: StageShare(stage.name, 0, 0) for stage in model.graph.stages}
    for piece in parts.pinned:
        s = shares[owner[piece.tensor]]
        shares[s.name] = evolve(s, pinned_bytes=s.pinned_bytes + piece.nbytes)
    for piece in parts.streamed:
        s = shares[owner[piece.tensor]]
        shares[s.name] = evolve(s, streamed_bytes=s.streamed_bytes + piece.nbytes)
    for layer in parts.experts.layers if parts.experts else ():
        s = shares[owner[layer.op.gate_weight]]
        whole, kept = layer.op.experts * layer.expert_bytes, layer.kept * layer.expert_bytes
        shares[s.name] = evolve(s, expert_bytes=whole, kept_bytes=kept)
    if parts.embedding is not None:
        first = model.graph.stages[0].name
        shares[first] = evolve(shares[first], by_row_bytes=model.weights[parts.embedding].nbytes)
    return tuple(shares.values())
