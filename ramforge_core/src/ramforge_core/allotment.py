"""How a budget is divided: what the pass needs first, then as many pinned weights as fit.

One place decides this for running and for planning, so that a plan is what a run does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from attrs import evolve, frozen

from ramforge_core.errors import ParameterError
from ramforge_core.experts import expert_names
from ramforge_core.graph import Embed
from ramforge_core.kv import CHUNK_POSITIONS, KVLayout, KVType
from ramforge_core.memory import PAGE
from ramforge_core.model import Model
from ramforge_core.residency import (
    Residency,
    everything_pinned,
    least_bytes,
    most_pieces,
    plan_residency,
    row_window_bytes,
    smallest_slot,
)
from ramforge_core.stream import READERS
from ramforge_core.weights import ALIGNMENT, pinned_bytes

DEFAULT_CONTEXT = 4096
"""Positions a context holds unless asked for: a KV cache of the trained length can be larger than the model."""

PREFILL_TOKENS = 512
"""Most tokens of one pass; longer prompts go through the weights once per this many."""

SLOTS = 8
SLOT_BYTES = (2 << 20) + 2 * PAGE
"""The ring when memory is no concern: 2 MiB a read reaches the rate of any drive."""

_LOGITS_BYTES = 32 << 20
_SMALLEST_SLOTS = 3
_SHARE = 8
"""Context (where it is free to choose), pass workspace and ring each get at most one part in so many."""

_HEAP_BYTES = 6 << 20
_SAMPLING_BYTES_PER_TOKEN = 48
"""What Python's own heap may still grow by, and what drawing a token takes for each entry of the vocabulary."""

_PIECE_BYTES = 2 << 10
"""What is kept of each run of rows that is a weight of its own: its names, its step, its place; 1.8 KiB measured."""


@frozen
class Allotment:
    """All memory that a model takes beside the process itself. Sizes in bytes.

    context : positions. max_tokens, max_wanted : of one pass. slots : of the ring, 0 when everything is pinned.
    """

    context: int
    kv_layout: KVLayout
    kv_bytes: int
    max_tokens: int
    workspace_bytes: int
    max_wanted: int
    logits_bytes: int
    slots: int
    slot_bytes: int
    overhead_bytes: int
    residency: Residency

    @property
    def pinned_bytes(self) -> int:
        return pinned_bytes(self.residency.pinned)

    @property
    def ring_bytes(self) -> int:
        return self.slots * self.slot_bytes

    @property
    def expert_bytes(self) -> int:
        """Of the slots for experts that are not pinned."""
        return self.residency.experts.nbytes if self.residency.experts else 0

    def charges(self) -> dict[str, int]:
        """By tag, what is taken from the start; the KV cache is charged chunk by chunk as it grows."""
        return {
            "pinned weights": self.pinned_bytes,
            "experts": self.expert_bytes,
            "stream ring": self.ring_bytes,
            "workspace": self.workspace_bytes,
            "logits": self.logits_bytes,
            "python heap": self.overhead_bytes,
        }

    @property
    def total_bytes(self) -> int:
        """Everything together, the KV cache at its full length."""
        return sum(self.charges().values()) + self.kv_bytes


def allot(
    model: Model,
    free_bytes: int | None,
    workspace: Callable[[int], int],
    *,
    context: int | None = None,
    kv_type: KVType = "f16",
    sequences: int = 1,
) -> Allotment | None:
    """Divide ``free_bytes`` (None: no limit) among everything that a model needs; None if that is too little.

    workspace : bytes of scratch that a pass over so many tokens takes.
    context : positions asked for; None takes `DEFAULT_CONTEXT`, or less where the model or the budget has less.
    sequences : how many should run at once. One of them may always fill its context; for the others there is as much
        more KV cache as the budget can spare.
    Raises ParameterError for a senseless context.
    """
    layout = KVLayout.of(model.graph.attentions, kv_type)
    check_context(model, context)
    trained = model.config.context_length
    most = context or min(DEFAULT_CONTEXT, trained)
    tokens = min(PREFILL_TOKENS, most)
    whole = _resident(model, layout, most, tokens, workspace, free_bytes, sequences)
    if free_bytes is None or whole.total_bytes <= free_bytes:
        return whole
    share = free_bytes // _SHARE
    if context is None:
        chunks = min(-(-most // CHUNK_POSITIONS), max(1, share // layout.chunk_bytes))
        most = min(most, chunks * CHUNK_POSITIONS)
        tokens = min(tokens, most)
    while tokens > 1 and workspace(tokens) + _rows_bytes(model, tokens) > share:
        tokens //= 2
    found = _divide(model, layout, most, tokens, workspace, free_bytes, sequences)
    least = context or min(CHUNK_POSITIONS, trained)
    return found or _divide(model, layout, least, 1, workspace, free_bytes, 1, frugal=True)


def _resident(
    model: Model,
    layout: KVLayout,
    context: int,
    tokens: int,
    workspace: Callable[[int], int],
    free_bytes: int | None,
    sequences: int,
) -> Allotment:
    """All sizes for passes of ``tokens`` with every weight in memory, whether or not the budget holds them."""
    vocab = model.graph.logits.width
    logits_share = _LOGITS_BYTES if free_bytes is None else min(_LOGITS_BYTES, free_bytes // (16 * _SHARE))
    wanted = min(tokens, max(sequences, logits_share // (4 * vocab)))
    one = -(-context // CHUNK_POSITIONS) * layout.chunk_bytes
    more = (sequences - 1) * one if free_bytes is None else min((sequences - 1) * one, free_bytes // _SHARE)
    return Allotment(
        context=context,
        kv_layout=layout,
        kv_bytes=one + more // layout.chunk_bytes * layout.chunk_bytes,
        max_tokens=tokens,
        workspace_bytes=workspace(tokens),
        max_wanted=wanted,
        logits_bytes=4 * vocab * wanted,
        slots=0,
        slot_bytes=0,
        overhead_bytes=_HEAP_BYTES + _SAMPLING_BYTES_PER_TOKEN * vocab,
        residency=everything_pinned(model),
    )


def _divide(
    model: Model,
    layout: KVLayout,
    context: int,
    tokens: int,
    workspace: Callable[[int], int],
    free_bytes: int,
    sequences: int,
    *,
    frugal: bool = False,
) -> Allotment | None:
    """All sizes for passes of ``tokens``; None if the budget does not hold them. frugal : the smallest ring."""
    resident = _resident(model, layout, context, tokens, workspace, free_bytes, sequences)
    if resident.total_bytes <= free_bytes:
        return resident
    slots, slot_bytes = (
        (_SMALLEST_SLOTS, _least_slot(model)) if frugal else _ring(model, free_bytes // _SHARE)
    )
    streaming = evolve(
        resident,
        workspace_bytes=workspace(tokens) + _rows_bytes(model, tokens),
        slots=slots,
        slot_bytes=slot_bytes,
        overhead_bytes=resident.overhead_bytes + _PIECE_BYTES * most_pieces(model, slot_bytes),
    )
    taken = streaming.total_bytes - streaming.pinned_bytes + _padding(model)
    if free_bytes - taken < least_bytes(model):
        return None
    parts = plan_residency(model, free_bytes - taken, slot_bytes, tokens)
    if parts.experts and not parts.reads:  # only experts are read: they have the memory of the ring, too
        parts = plan_residency(model, free_bytes - taken + streaming.ring_bytes, slot_bytes, tokens)
        streaming = evolve(streaming, slots=0, slot_bytes=0)
    return evolve(streaming, residency=parts)


def smallest_free_bytes(
    model: Model, workspace: Callable[[int], int], *, context: int | None = None, kv_type: KVType = "f16"
) -> int:
    """What `allot` needs at least for this context (None: one chunk of positions)."""
    layout = KVLayout.of(model.graph.attentions, kv_type)
    positions = context or min(CHUNK_POSITIONS, model.config.context_length)
    vocab, slot = model.graph.logits.width, _least_slot(model)
    return (
        -(-positions // CHUNK_POSITIONS) * layout.chunk_bytes
        + workspace(1)
        + _rows_bytes(model, 1)
        + 4 * vocab
        + _HEAP_BYTES
        + _SAMPLING_BYTES_PER_TOKEN * vocab
        + _SMALLEST_SLOTS * slot
        + _PIECE_BYTES * most_pieces(model, slot)
        + least_bytes(model)
        + _padding(model)
    )


def _padding(model: Model) -> int:
    """At most what alignment adds to pinned weights, each of which may be cut in two."""
    return 2 * ALIGNMENT * len(model.weights)


def _least_slot(model: Model) -> int:
    """Bytes of a slot when memory is short: what a matrix needs, and large enough that pieces do not outweigh slots."""
    experts = expert_names(model.graph)
    total = sum(spec.nbytes for name, spec in model.weights.items() if name not in experts)
    balanced = math.isqrt(_PIECE_BYTES * total // _SMALLEST_SLOTS)
    return max(smallest_slot(model), -(-balanced // PAGE) * PAGE + 2 * PAGE)


def _ring(model: Model, share: int) -> tuple[int, int]:
    """Slots and bytes of a slot: as large as the share allows, never smaller than `_least_slot`."""
    smallest = _least_slot(model)
    slot = max(smallest, min(SLOT_BYTES, share // SLOTS // PAGE * PAGE))
    slots = max(_SMALLEST_SLOTS, min(SLOTS, share // slot))
    return slots, slot


def _rows_bytes(model: Model, tokens: int) -> int:
    """Rows of the token embedding for one pass, and the windows that they are read through."""
    embedding = next(op.weight for op in model.graph.ops if isinstance(op, Embed))
    row = model.weights[embedding].row_bytes
    return tokens * row + READERS * row_window_bytes(row)


def check_context(model: Model, context: int | None) -> None:
    """Raises ParameterError if the model cannot have a context of so many positions."""
    trained = model.config.context_length
    if context is not None and context < 1:
        raise ParameterError(f"the context is {context} tokens, expected at least 1")
    if context is not None and context > trained:
        raise ParameterError(
            f"a context of {context} tokens is more than the {trained} that the model was trained on"
        )
