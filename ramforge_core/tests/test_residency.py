"""What stays in memory and what is read: rows, bytes, windows and their order, for many shapes and budgets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from ramforge_core.backend import WeightSpec
from ramforge_core.gguf import GGUF, Metadata, TensorInfo
from ramforge_core.graph import Embed, GraphBuilder, Linear
from ramforge_core.memory import PAGE
from ramforge_core.model import Model
from ramforge_core.quant import QuantFormat
from ramforge_core.residency import (
    GAP_BYTES,
    ROWS,
    Piece,
    _coalesce,
    least_bytes,
    plan_residency,
    rows_name,
    smallest_slot,
)


class Packed(QuantFormat):
    """32 values in 18 bytes, so that row lengths are no round numbers."""

    name, ggml_type, block_values, block_bytes = "packed", 2, 32, 18

    def decode(self, blocks):
        raise NotImplementedError


class Plain(Packed):
    name, ggml_type, block_values, block_bytes = "plain", 0, 1, 4


@frozen
class Shape:
    layers: int
    width: int
    feed_forward: int
    vocab: int
    tied: bool
    files: int
    scattered: bool


def model(shape: Shape) -> Model:
    """A decoder of matrices and norms; in the file its tensors may lie in another order than they are used in."""
    D, F, V = shape.width, shape.feed_forward, shape.vocab
    shapes = {"embed": (V, D)}
    for i in range(shape.layers):
        shapes |= {f"{i}.norm": (D,), f"{i}.up": (F, D), f"{i}.down": (D, F), f"{i}.bias": (D,)}
    shapes["norm"] = (D,)
    if not shape.tied:
        shapes["head"] = (V, D)
    g = GraphBuilder(shapes)
    with g.stage("embedding"):
        x = g.embed("embed")
    for i in range(shape.layers):
        with g.stage(f"{i}"):
            h = g.linear(g.norm(x, f"{i}.norm", 1e-5), f"{i}.up")
            x = g.add(x, g.linear(h, f"{i}.down", f"{i}.bias"))
    with g.stage("head", rows="wanted"):
        g.logits(g.linear(g.norm(x, "norm", 1e-5), "embed" if shape.tied else "head"))
    weights = {n: WeightSpec(n, s, Packed() if len(s) > 1 else Plain()) for n, s in shapes.items()}
    infos, ends = {}, [96] * shape.files
    for i, name in enumerate(sorted(shapes) if shape.scattered else shapes):
        file = i * shape.files // len(shapes)
        spec = weights[name]
        infos[name] = TensorInfo(
            name, spec.shape, spec.format.ggml_type, spec.format.name, file, ends[file], spec.nbytes
        )
        ends[file] += -(-spec.nbytes // 32) * 32
    files = tuple(Path(f"{i}.gguf") for i in range(shape.files))
    gguf = GGUF(files[0], 3, 32, Metadata.from_dict({}), infos, files, tuple(ends), (0,) * len(files))
    return Model(gguf, None, None, g.finish(), weights)


SHAPES = st.builds(
    Shape,
    layers=st.integers(1, 5),
    width=st.integers(1, 20).map(lambda n: 32 * n),
    feed_forward=st.integers(1, 40).map(lambda n: 32 * n),
    vocab=st.integers(1, 3000),
    tied=st.booleans(),
    files=st.integers(1, 3),
    scattered=st.booleans(),
)
SHARES = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))
SLOTS = st.integers(0, 60)


def planned(shape, share, slot_pages, max_tokens=4):
    m = model(shape)
    total = sum(w.nbytes for w in m.weights.values())
    pin = max(least_bytes(m), int(share * (total - 1)))
    slot = smallest_slot(m) + slot_pages * PAGE
    return m, pin, slot, plan_residency(m, pin, slot, max_tokens)


def scanned(m: Model) -> set[str]:
    """Names that a pass reads whole: all but an embedding that is no head."""
    return {
        n
        for op in m.graph.ops
        if not isinstance(op, Embed)
        for n in (getattr(op, "weight", None), getattr(op, "bias", None))
        if n
    }


@settings(max_examples=150, deadline=None)
@given(SHAPES, SHARES, SLOTS)
def test_every_row_is_pinned_or_streamed_exactly_once(shape, share, slot_pages):
    m, _, _, plan = planned(shape, share, slot_pages)
    rows: dict[str, list[tuple[int, int]]] = {}
    for piece in (*plan.pinned, *plan.streamed):
        rows.setdefault(piece.tensor, []).append((piece.first_row, piece.rows))
    assert set(rows) == scanned(m)
    for tensor, runs in rows.items():
        at = 0
        for first, n in sorted(runs):
            assert (first, n > 0) == (at, True), tensor
            assert first % ROWS == 0, "kernels work on whole groups of rows"
            at += n
        spec = m.weights[tensor]
        assert at == (spec.shape[0] if len(spec.shape) > 1 else 1)


@settings(max_examples=150, deadline=None)
@given(SHAPES, SHARES, SLOTS)
def test_pieces_are_where_the_file_has_them_and_what_the_graph_says(shape, share, slot_pages):
    m, _, _, plan = planned(shape, share, slot_pages)
    for piece in (*plan.pinned, *plan.streamed):
        info, spec = m.gguf.tensors[piece.tensor], m.weights[piece.tensor]
        row_bytes = spec.row_bytes if len(spec.shape) > 1 else spec.nbytes
        assert piece.file == info.file
        assert piece.offset == info.offset + piece.first_row * row_bytes
        assert piece.nbytes == piece.rows * row_bytes == plan.weights[piece.name].nbytes
    before = [(op.out, op.weight, 0) for op in m.graph.ops if isinstance(op, Linear)]
    pieces = {p.name: p for p in (*plan.pinned, *plan.streamed)}
    parts = [(op.out, pieces[op.weight].tensor, op.start) for op in plan.graph.ops if isinstance(op, Linear)]
    assert [p for p in parts if p[2] == 0] == before
    for op in plan.graph.ops:
        if isinstance(op, Linear):
            assert op.start == pieces[op.weight].first_row


@settings(max_examples=150, deadline=None)
@given(SHAPES, SHARES, SLOTS)
def test_the_pin_budget_is_kept_and_used_to_one_group_of_rows(shape, share, slot_pages):
    m, pin, _, plan = planned(shape, share, slot_pages)
    widest = max(m.weights[p.tensor].row_bytes for p in (*plan.pinned, *plan.streamed))
    whole = sum(m.weights[n].nbytes for n in scanned(m))
    assert plan.pinned_bytes + plan.streamed_bytes == whole
    assert plan.pinned_bytes <= pin
    assert plan.pinned_bytes > min(pin, whole) - 2 * ROWS * widest


@settings(max_examples=150, deadline=None)
@given(SHAPES, SHARES, SLOTS)
def test_streamed_bytes_are_balanced_along_the_stages(shape, share, slot_pages):
    """At any point of the pass what has been streamed is the same share of what has been used, to a group of rows."""
    m, _, _, plan = planned(shape, share, slot_pages)
    head = plan.pinned_bytes - least_bytes(m)
    blocks = [s for s in m.graph.stages if s.name not in ("embedding", "head")]
    by_tensor: dict[str, int] = {}
    for piece in plan.streamed:
        by_tensor[piece.tensor] = by_tensor.get(piece.tensor, 0) + piece.nbytes
    tail = "embed" if shape.tied else "head"
    groups = [[op.weight for op in s.ops if isinstance(op, Linear)] for s in blocks]
    if tail in by_tensor or head < m.weights[tail].nbytes:
        groups.append([tail])  # a head that is pinned first is outside the balance
    size = [sum(m.weights[n].nbytes for n in names) for names in groups]
    streamed = [sum(by_tensor.get(n, 0) for n in names) for names in groups]
    ratio = sum(streamed) / sum(size)
    widest = max(m.weights[n].row_bytes for names in groups for n in names)
    for i in range(len(groups)):
        assert abs(sum(streamed[: i + 1]) - ratio * sum(size[: i + 1])) <= 2 * ROWS * widest


@settings(max_examples=150, deadline=None)
@given(SHAPES, SHARES, SLOTS)
def test_reads_cover_their_pieces_in_order_of_use_and_fit_a_slot(shape, share, slot_pages):
    _, _, slot, plan = planned(shape, share, slot_pages)
    pieces = {p.name: p for p in plan.streamed}
    order = [op.weight for op in plan.graph.ops if isinstance(op, Linear) and op.weight in pieces]
    assert (
        [name for read in plan.reads for name, _, _ in read.pieces]
        == order
        == [p.name for p in plan.streamed]
    )
    for read in plan.reads:
        assert read.offset % PAGE == read.nbytes % PAGE == 0
        assert 0 < read.nbytes <= slot
        for name, start, nbytes in read.pieces:
            piece = pieces[name]
            assert (read.file, read.offset + start, nbytes) == (piece.file, piece.offset, piece.nbytes)
            assert 0 <= start <= start + nbytes <= read.nbytes
            assert start % 32 == 0, "weights are bound where they lie, 32-byte aligned"
        last = read.pieces[-1]
        assert read.pieces[0][1] < PAGE
        assert read.nbytes - (last[1] + last[2]) < PAGE
        assert read.gap_bytes == read.nbytes - sum(n for _, _, n in read.pieces)


@settings(max_examples=60, deadline=None)
@given(SHAPES.filter(lambda s: s.tied), SHARES, SLOTS)
def test_a29_tied_embeddings_are_counted_and_read_once(shape, share, slot_pages):
    m, _, _, plan = planned(shape, share, slot_pages, max_tokens=7)
    spec = m.weights["embed"]
    assert sum(p.nbytes for p in (*plan.pinned, *plan.streamed) if p.tensor == "embed") == spec.nbytes
    assert plan.embedding == "embed"
    assert plan.weights[rows_name("embed")].shape == (7, shape.width)
    embeds = [op for op in plan.graph.ops if isinstance(op, Embed)]
    assert [op.weight for op in embeds] == [rows_name("embed")]


def test_an_embedding_that_is_no_head_is_neither_pinned_nor_scanned():
    m, _, _, plan = planned(Shape(2, 64, 128, 999, tied=False, files=1, scattered=False), 0.5, 2)
    assert "embed" not in {p.tensor for p in (*plan.pinned, *plan.streamed)}
    assert plan.weights[rows_name("embed")].nbytes == 4 * m.weights["embed"].row_bytes


def test_all_fits_is_the_graph_as_it_is():
    m = model(Shape(2, 64, 128, 500, tied=False, files=1, scattered=False))
    plan = plan_residency(m, sum(w.nbytes for w in m.weights.values()), smallest_slot(m), 4)
    assert plan.graph is m.graph
    assert (plan.streamed, plan.reads, plan.embedding) == ((), (), None)


def test_all_but_the_embedding_fits_so_nothing_is_scanned():
    m = model(Shape(2, 64, 128, 500, tied=False, files=1, scattered=False))
    rest = sum(w.nbytes for n, w in m.weights.items() if n != "embed")
    plan = plan_residency(m, rest, smallest_slot(m), 4)
    assert (plan.streamed, plan.reads, plan.embedding) == ((), (), "embed")


@pytest.mark.parametrize(
    ("gap", "shared"), [(0, True), (GAP_BYTES, True), (GAP_BYTES + 1, False), (-512, False)]
)
def test_the_gap_rule(gap, shared):
    """Pieces share a read if they follow each other in the file with at most GAP_BYTES between."""
    first = Piece("a", "a", 0, 16, 0, 1 << 20, 8192)
    second = Piece("b", "b", 0, 16, 0, (1 << 20) + 8192 + gap, 4096)
    reads = _coalesce([first, second], 1 << 20)
    assert (len(reads) == 1) == shared
    if shared:
        assert reads[0].gap_bytes == -(-gap // PAGE) * PAGE


def test_no_read_spans_two_files_or_more_than_a_slot():
    pieces = [Piece(f"{i}", f"{i}", 0, 16, i // 2, 4096 * (i % 2), 4096) for i in range(4)]
    assert [[n for n, _, _ in r.pieces] for r in _coalesce(pieces, 1 << 20)] == [["0", "1"], ["2", "3"]]
    assert [[n for n, _, _ in r.pieces] for r in _coalesce(pieces, 4096)] == [["0"], ["1"], ["2"], ["3"]]


def test_long_matrices_are_cut_into_even_runs():
    m, _, slot, plan = planned(Shape(1, 320, 1280, 1, tied=False, files=1, scattered=False), 0.0, 3)
    runs = [p.rows for p in plan.streamed if p.tensor == "0.up"]
    assert len(runs) > 3
    assert max(runs) - min(runs) <= max(runs) - ROWS + 1
    assert all(n <= (slot - 2 * PAGE) // m.weights["0.up"].row_bytes for n in runs)
    assert np.std(runs[:-1]) == 0
