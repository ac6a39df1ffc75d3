"""Which bytes stay in memory and which are read again for every pass.

A pass touches every weight once, in the same order for each token. So a least-recently-used cache would hit nothing
until all fits; a fixed pinned part is optimal. Every byte is worth the same, hence the choice that keeps the disk
evenly busy: vectors first (tiny), the head, then the same share of each stage. Token embeddings are read by row.

This module decides and describes; it reads nothing. It rewrites the graph so that each run of rows is a weight of
its own, which is all that a backend needs to know of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from ramforge_core.backend import WeightSpec
from ramforge_core.experts import ExpertShares, expert_layers, expert_names, share_experts
from ramforge_core.graph import Embed, Graph, Linear, Op, Stage, op_weights
from ramforge_core.memory import PAGE
from ramforge_core.model import Model

ROWS = 16
"""Matrices are cut at multiples of this many rows, which kernels work on at once."""

GAP_BYTES = 64 << 10
"""Pieces no further apart than this share a read: cheaper than a second one."""


@frozen
class Piece:
    """Rows [first_row, first_row + rows) of a tensor: a weight of the rewritten graph, called ``name``."""

    name: str
    tensor: str
    first_row: int
    rows: int
    file: int
    offset: int
    nbytes: int


@frozen
class Read:
    """One direct read. ``pieces``: name, start inside the window and bytes of each piece in it."""

    file: int
    offset: int
    nbytes: int
    pieces: tuple[tuple[str, int, int], ...]
    gap_bytes: int
    """Bytes read for nothing, between pieces and by rounding to pages."""


@frozen(eq=False)
class Residency:
    """What is pinned, what is streamed, and the graph and weights that say so to a backend.

    embedding : the tensor whose rows are read one by one, or None if it is pinned like the others; it then stands in
        ``weights`` as ``rows_name`` with ``max_tokens`` rows.
    experts : how those are held that are not pinned, None if there are none.
    """

    graph: Graph
    weights: Mapping[str, WeightSpec]
    pinned: tuple[Piece, ...]
    streamed: tuple[Piece, ...]
    reads: tuple[Read, ...]
    embedding: str | None
    experts: ExpertShares | None = None

    @property
    def pinned_bytes(self) -> int:
        return sum(p.nbytes for p in self.pinned)

    @property
    def streamed_bytes(self) -> int:
        """Weight bytes that every pass reads anew."""
        return sum(p.nbytes for p in self.streamed)

    @property
    def read_bytes(self) -> int:
        """Bytes that a pass really reads: streamed ones, gaps and rounding."""
        return sum(r.nbytes for r in self.reads)


def rows_name(tensor: str) -> str:
    return f"{tensor}[rows of this batch]"


def row_window_bytes(row_bytes: int) -> int:
    """Bytes of a window that any single row fits into."""
    return -(-row_bytes // PAGE) * PAGE + 2 * PAGE


def everything_pinned(model: Model) -> Residency:
    """For a model that fits: its graph as it is."""
    pinned = tuple(_piece(model, name, 0, _rows(spec), name) for name, spec in model.weights.items())
    return Residency(model.graph, model.weights, pinned, (), (), None)


def plan_residency(model: Model, pin_bytes: int, slot_bytes: int, max_tokens: int) -> Residency:
    """Fill ``pin_bytes`` and stream the rest through slots of ``slot_bytes``, at most ``max_tokens`` rows embedded."""
    if sum(spec.nbytes for spec in model.weights.values()) <= pin_bytes:
        return everything_pinned(model)
    matrices = _matrices(model.graph)
    scanned_vectors = set(_scanned(model.graph)) - {n for ms in matrices for n in ms}
    vectors = [n for n in model.weights if n in scanned_vectors]
    free = pin_bytes - sum(model.weights[n].nbytes for n in vectors)
    dense = sum(model.weights[n].nbytes for ms in matrices for n in ms)
    layers = expert_layers(model.graph, model.weights, model.gguf.tensors)
    shares = share_experts(layers, free, free - dense) if layers else None
    free -= shares.nbytes if shares else 0
    first_streamed = _share(model, matrices, max(free, 0))
    cuts = {
        name: _cut(model.weights[name], first_streamed.get(name, model.weights[name].shape[0]), slot_bytes)
        for stage in matrices
        for name in stage
    }
    return _rewrite(model, cuts, first_streamed, vectors, slot_bytes, max_tokens, shares)


def smallest_slot(model: Model) -> int:
    """Bytes that a slot must have at least: `ROWS` rows of the widest matrix, rounded outward to pages."""
    rows = max(model.weights[n].row_bytes for ms in _matrices(model.graph) for n in ms)
    return -(-rows * ROWS // PAGE) * PAGE + 2 * PAGE


def most_pieces(model: Model, slot_bytes: int) -> int:
    """Pieces of all matrices together, at most, when a slot has ``slot_bytes``."""
    sizes = [model.weights[n] for ms in _matrices(model.graph) for n in ms]
    return sum(1 + -(-spec.shape[0] // _rows_per_slot(spec, slot_bytes)) for spec in sizes)


def least_bytes(model: Model) -> int:
    """Bytes that are needed beside the ring: all weights that are always pinned, and the slot of one expert."""
    matrices = {n for ms in _matrices(model.graph) for n in ms}
    layers = expert_layers(model.graph, model.weights, model.gguf.tensors)
    vectors = sum(model.weights[n].nbytes for n in set(_scanned(model.graph)) - matrices)
    return vectors + max((layer.slot_bytes for layer in layers), default=0)


def _scanned(graph: Graph) -> list[str]:
    """Weights that every pass reads whole, in order."""
    names = (n for op in graph.ops for n in op_weights(op) if not isinstance(op, Embed))
    experts = expert_names(graph)
    return [n for n in dict.fromkeys(names) if n not in experts]


def _matrices(graph: Graph) -> list[list[str]]:
    """By stage: names of the matrices that it multiplies with, each at its first use."""
    seen: set[str] = set()
    out = []
    for stage in graph.stages:
        names = [op.weight for op in stage.ops if isinstance(op, Linear) and op.weight not in seen]
        seen.update(names)
        out.append(list(dict.fromkeys(names)))
    return out


def _rows(spec: WeightSpec) -> int:
    return math.prod(spec.shape[:-1])


def _share(model: Model, matrices: Sequence[Sequence[str]], free: int) -> dict[str, int]:
    """First streamed row of each matrix that is not pinned whole.

    Each stage streams the same share of its bytes, from its largest matrices, so that reads are long and few. What
    rounding to rows leaves over is carried to the next stage.
    """
    size = {n: model.weights[n].nbytes for ms in matrices for n in ms}
    head = [
        n
        for stage, ms in zip(model.graph.stages, matrices, strict=True)
        for n in ms
        if stage.rows == "wanted"
    ]
    pinned_head = set(head) if 4 * sum(size[n] for n in head) <= free else set()
    free -= sum(size[n] for n in pinned_head)
    total = sum(size.values()) - sum(size[n] for n in pinned_head)
    share = 1 - free / total if total > free else 0.0
    first: dict[str, int] = {}
    due = 0.0
    for stage_matrices in matrices:
        names = [n for n in stage_matrices if n not in pinned_head]
        due += share * sum(size[n] for n in names)
        for name in sorted(names, key=lambda n: -size[n]):
            spec = model.weights[name]
            wanted = -(-int(due + 0.5) // spec.row_bytes)
            if wanted > 0:
                first[name] = max(0, spec.shape[0] - wanted) // ROWS * ROWS
                due -= (spec.shape[0] - first[name]) * spec.row_bytes
    return first


def _cut(spec: WeightSpec, first_streamed: int, slot_bytes: int) -> list[tuple[int, int]]:
    """Runs of rows: the pinned one, then streamed ones that fit into a slot, of about equal length."""
    rows = spec.shape[0]
    runs = [(0, first_streamed)] if first_streamed else []
    if left := rows - first_streamed:
        per_slot = _rows_per_slot(spec, slot_bytes)
        length = -(-left // (-(-left // per_slot)) // ROWS) * ROWS
        runs += [(r, min(r + length, rows)) for r in range(first_streamed, rows, length)]
    return runs


def _rows_per_slot(spec: WeightSpec, slot_bytes: int) -> int:
    return max(ROWS, (slot_bytes - 2 * PAGE) // spec.row_bytes // ROWS * ROWS)


def _piece(model: Model, tensor: str, first: int, rows: int, name: str) -> Piece:
    info, row_bytes = model.gguf.tensors[tensor], model.weights[tensor].row_bytes
    return Piece(name, tensor, first, rows, info.file, info.offset + first * row_bytes, rows * row_bytes)


def _rewrite(
    model: Model,
    cuts: Mapping[str, Sequence[tuple[int, int]]],
    first_streamed: Mapping[str, int],
    vectors: Sequence[str],
    slot_bytes: int,
    max_tokens: int,
    shares: ExpertShares | None,
) -> Residency:
    experts = expert_names(model.graph)
    weights = {n: spec for n, spec in model.weights.items() if n in vectors or n in experts}
    pinned = [_piece(model, n, 0, _rows(model.weights[n]), n) for n in vectors]
    streamed: list[Piece] = []
    embedding = next(op.weight for op in model.graph.ops if isinstance(op, Embed))
    spec = model.weights[embedding]
    weights[rows_name(embedding)] = evolve(spec, name=rows_name(embedding), shape=(max_tokens, spec.shape[1]))
    for tensor, runs in cuts.items():
        spec = model.weights[tensor]
        for first, end in runs:
            name = tensor if len(runs) == 1 else f"{tensor}[{first}:{end}]"
            weights[name] = evolve(spec, name=name, shape=(end - first, spec.shape[1]))
            piece = _piece(model, tensor, first, end - first, name)
            (streamed if first >= first_streamed.get(tensor, end) else pinned).append(piece)

    def ops(op: Op) -> tuple[Op, ...]:
        if isinstance(op, Embed):
            return (evolve(op, weight=rows_name(op.weight)),)
        if isinstance(op, Linear) and len(cuts[op.weight]) > 1:
            return tuple(
                evolve(op, weight=f"{op.weight}[{first}:{end}]", start=first)
                for first, end in cuts[op.weight]
            )
        return (op,)

    stages = tuple(
        Stage(s.name, tuple(p for op in s.ops for p in ops(op)), s.rows) for s in model.graph.stages
    )
    graph = Graph(stages, model.graph.logits)
    return Residency(
        graph,
        weights,
        tuple(pinned),
        tuple(streamed),
        _coalesce(streamed, slot_bytes),
        embedding,
        shares and shares.in_graph(graph),
    )


def _coalesce(pieces: Sequence[Piece], slot_bytes: int) -> tuple[Read, ...]:
    """Reads in order of use: pieces that follow each other in the file too share one while a slot holds them."""
    groups: list[list[Piece]] = []
    for piece in pieces:
        last = groups[-1] if groups else None
        if last is not None and last[0].file == piece.file:
            gap = piece.offset - (last[-1].offset + last[-1].nbytes)
            if 0 <= gap <= GAP_BYTES and _window(last[0], piece)[1] <= slot_bytes:
                last.append(piece)
                continue
        groups.append([piece])
    reads = []
    for group in groups:
        offset, nbytes = _window(group[0], group[-1])
        parts = tuple((p.name, p.offset - offset, p.nbytes) for p in group)
        reads.append(Read(group[0].file, offset, nbytes, parts, nbytes - sum(p.nbytes for p in group)))
    return tuple(reads)


def _window(first: Piece, last: Piece) -> tuple[int, int]:
    """Offset and length, rounded outward to pages."""
    offset = first.offset // PAGE * PAGE
    return offset, -(-(last.offset + last.nbytes) // PAGE) * PAGE - offset
