"""Walks a graph op by op, decoding weights where they are used. The formulas are in `ops`."""

from __future__ import annotations

# mypy: disable-error-code=no-any-return
# NumPy's stubs lose the type of some array expressions.
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from ramforge_backend_numpy import ops
from ramforge_core.backend import Backend, Batch, Control, ExpertRun, Limits, Program, Step, WeightSpec
from ramforge_core.errors import BackendError, Interrupted, ParameterError, ShapeError
from ramforge_core.experts import expert_names
from ramforge_core.graph import (
    Add,
    Attention,
    Embed,
    Gate,
    Glu,
    Graph,
    HeadLinear,
    Join,
    Linear,
    Moe,
    Mul,
    Norm,
    Op,
    Rope,
    Route,
    Scale,
    Slice,
    Softcap,
    Value,
    op_inputs,
    op_weights,
)
from ramforge_core.kv import CHUNK_POSITIONS, KVCache
from ramforge_core.rope import rope_factors, rope_frequencies

SLAB_VALUES = 1 << 20
"""Weights are decoded in slabs of rows of about this many values, so that a large matrix needs little memory."""

_DECODE_BYTES_PER_VALUE = 24
"""What a decoder's own temporaries may take beside its result."""


class NumpyBackend(Backend):
    key = "numpy"
    priority: ClassVar[int] = 0
    graph_version: ClassVar[int] = 2

    def available(self) -> str | None:
        return None

    def describe(self) -> Mapping[str, str]:
        return {"isa": "as NumPy was built", "threads": "as BLAS decides"}

    def compile(self, graph: Graph, weights: Mapping[str, WeightSpec], limits: Limits) -> Program:
        return NumpyProgram(graph, dict(weights), limits)


@define(eq=False)
class NumpyProgram(Program):
    graph: Graph
    specs: dict[str, WeightSpec]
    limits: Limits
    steps: Sequence[Step] = field(init=False)
    _first_wanted: int = field(init=False)
    """The first step that works on the wanted tokens only; all later ones do too."""
    _last_use: dict[Value, int] = field(init=False)
    _weights: dict[str, NDArray[np.uint8]] = field(factory=dict, init=False)
    _expert_names: frozenset[str] = field(init=False)
    _experts: dict[tuple[str, int], NDArray[np.uint8]] = field(factory=dict, init=False)
    """By weight and number: one expert's bytes."""
    _hidden: dict[int, ops.Array] = field(factory=dict, init=False)
    """By expert, of the `Moe` op that runs: its tokens' hidden values, until they are summed."""
    _values: dict[Value, ops.Array] = field(factory=dict, init=False)
    """Live values. They outlast a run over a part of the steps, for the run over the next part."""

    def __attrs_post_init__(self) -> None:
        numbered = [(stage, op) for stage in self.graph.stages for op in stage.ops]
        self.steps = [Step(stage.name, i, op_weights(op)) for i, (stage, op) in enumerate(numbered)]
        self._last_use = {v: i for i, (_, op) in enumerate(numbered) for v in (op.out, *op_inputs(op))}
        self._last_use[self.graph.logits] = len(numbered)
        self._expert_names = expert_names(self.graph)
        rows = [stage.rows for stage, _ in numbered]
        self._first_wanted = rows.index("wanted") if "wanted" in rows else len(rows)
        if "all" in rows[self._first_wanted :]:
            raise BackendError("the graph has a stage over all tokens after one over the wanted tokens only")

    def workspace_bytes(self, n_tokens: int) -> int:
        peak = 0
        live: dict[Value, None] = {}
        for step, op in enumerate(self.graph.ops):
            live[op.out] = None
            held = 4 * n_tokens * sum(v.width for v in live)
            peak = max(peak, held + self._temporary_bytes(op, n_tokens))
            live = {v: None for v in live if self._last_use[v] > step}
        return peak

    def _temporary_bytes(self, op: Op, n_tokens: int) -> int:
        """Memory inside one op, beside the values: an upper bound."""
        inputs = 4 * n_tokens * (op.out.width + sum(v.width for v in op_inputs(op)))
        if isinstance(op, (Linear, Embed)):
            columns = self.specs[op.weight].shape[1]
            slab = max(SLAB_VALUES, columns * ops.BLAS_ROWS)
            if isinstance(op, Embed):
                slab = columns * n_tokens
            block = 4 * ops.BLAS_TOKENS * (columns + max(SLAB_VALUES // columns, 1))
            return inputs + slab * (4 + _DECODE_BYTES_PER_VALUE) + 2 * block
        if isinstance(op, HeadLinear):
            rows, columns = self.specs[op.weight].shape[1:]
            return (
                3 * inputs
                + rows * columns * (8 + _DECODE_BYTES_PER_VALUE)
                + 8 * ops.BLAS_TOKENS * (rows + columns)
            )
        if isinstance(op, Moe):
            shapes = [self.specs[name].shape for name in op.expert_weights]
            decoded = max(int(np.prod(shape[1:])) for shape in shapes) * (4 + _DECODE_BYTES_PER_VALUE)
            hidden = 4 * n_tokens * op.chosen * op.expert_width
            return (
                inputs + hidden + decoded + 4 * (n_tokens + ops.BLAS_TOKENS) * 4 * sum(s[1] for s in shapes)
            )
        if isinstance(op, Attention):
            per_position = op.kv_heads * (op.key_width + op.value_width) * 3 + op.heads * 6
            return 2 * inputs + 4 * self.limits.max_context * per_position
        return 4 * inputs + sum(28 * self.specs[w].shape[-1] for w in op_weights(op)) + 4096

    def bind(self, weights: Mapping[str, NDArray[np.uint8]]) -> None:
        for name, data in weights.items():
            spec = self.specs[name]
            if data.shape != (spec.nbytes,) or data.dtype != np.uint8:
                raise ShapeError(
                    f"weight {name!r}: expected uint8 ({spec.nbytes},) for shape {spec.shape} in "
                    f"{spec.format.name}, got {data.dtype} {data.shape}"
                )
            if name in self._expert_names:
                self.bind_experts(name, dict(enumerate(data.reshape(spec.shape[0], -1))))
            else:
                self._weights[name] = data

    def bind_experts(self, weight: str, experts: Mapping[int, NDArray[np.uint8]]) -> None:
        spec = self.specs[weight]
        for number, data in experts.items():
            if data.shape != (spec.nbytes // spec.shape[0],) or data.dtype != np.uint8:
                raise ShapeError(
                    f"expert {number} of weight {weight!r}: expected uint8 ({spec.nbytes // spec.shape[0]},), "
                    f"got {data.dtype} {data.shape}"
                )
            self._experts[weight, number] = data

    def read(self, value: Value) -> NDArray[np.float32]:
        return self._values[value]

    def run(
        self,
        batch: Batch,
        caches: Sequence[KVCache],
        logits: NDArray[np.float32],
        control: Control,
        steps: range | None = None,
        experts: ExpertRun | None = None,
    ) -> None:
        todo = steps if steps is not None else range(len(self.steps))
        control.flags[1] = 0
        if todo.start == 0:
            self._values.clear()
            self._hidden.clear()
        with np.errstate(all="ignore"):  # what is not finite is found in the logits
            for step in todo:
                self._check_stop(control)
                if step == self._first_wanted:
                    self._values = {v: x[batch.wanted] for v, x in self._values.items()}
                self._step(step, batch, caches, control, experts)
                control.flags[1] += 1
        if todo.stop == len(self.steps):
            out = self._values[self.graph.logits]
            logits[:] = out if self._first_wanted < len(self.steps) else out[batch.wanted]

    def _step(
        self,
        step: int,
        batch: Batch,
        caches: Sequence[KVCache],
        control: Control,
        experts: ExpertRun | None,
    ) -> None:
        op = self.graph.ops[step]
        positions = batch.positions if step < self._first_wanted else batch.positions[batch.wanted]
        self._values[op.out] = self._apply(op, positions, batch, caches, control, experts)
        if isinstance(op, Moe) and experts is not None and experts.summed.stop < op.experts:
            return  # the inputs are still needed
        for value in [v for v in self._values if self._last_use[v] <= step]:
            del self._values[value]

    def _apply(
        self,
        op: Op,
        positions: NDArray[np.int32],
        batch: Batch,
        caches: Sequence[KVCache],
        control: Control,
        experts: ExpertRun | None,
    ) -> ops.Array:
        of = self._values
        match op:
            case Embed():
                return self._rows(op.weight, batch.tokens)
            case Norm():
                return ops.norm(of[op.x], self._vector(op.weight), op.eps, op.kind, self._optional(op.bias))
            case Linear():
                return self._linear(op, of[op.x], control)
            case Slice():
                return ops.heads_of(of[op.x], op.heads)[..., op.start :][
                    ..., : op.out.width // op.heads
                ].reshape(len(of[op.x]), op.out.width)
            case Join():
                parts = (ops.heads_of(of[v], op.heads) for v in (op.a, op.b))
                return np.concatenate(list(parts), axis=2).reshape(-1, op.out.width)
            case HeadLinear():
                return self._head_linear(op, of[op.x])
            case Add():
                return of[op.a] + of[op.b]
            case Mul():
                return of[op.a] * of[op.b]
            case Scale():
                return of[op.x] * np.float32(op.factor)
            case Softcap():
                return ops.softcap(of[op.x], op.cap)
            case Rope():
                factors = rope_factors(op, self.limits.max_context)
                turning = rope_frequencies(op, self._optional(factors))
                return ops.rope(of[op.x], positions, *turning, op.head_width, op.pairs)
            case Attention():
                return self._attention(op, of[op.q], of[op.k], of[op.v], batch, caches, control)
            case Glu():
                return ops.glu(of[op.gate], of[op.up], op.act)
            case Gate():
                return ops.gate(of[op.x], of[op.gate])
            case Route():
                bias = self._optional(op.bias)
                return ops.route(of[op.logits], op.out.width // 2, op.scores, op.normalise, op.scale, bias)
            case Moe():
                return self._moe(op, experts, control)

    def _vector(self, name: str) -> ops.Array:
        return self.specs[name].format.decode_rows(self._weights[name], self.specs[name].shape[-1])[0]

    def _optional(self, name: str | None) -> ops.Array | None:
        return None if name is None else self._vector(name)

    def _rows(self, name: str, rows: NDArray[np.int32] | slice) -> ops.Array:
        """Decode some rows of a matrix."""
        spec = self.specs[name]
        packed = self._weights[name].reshape(spec.shape[0], spec.row_bytes)[rows]
        return spec.format.decode_rows(packed.reshape(-1), spec.shape[1])

    def _linear(self, op: Linear, x: ops.Array, control: Control) -> ops.Array:
        out = self._values.get(op.out)  # there already if these are further columns of it
        if out is None:
            out = np.empty((len(x), op.out.width), np.float32)
        rows, few = self.specs[op.weight].shape[0], ops.BLAS_ROWS
        slab = max(few, SLAB_VALUES // x.shape[1] // few * few)
        for r in range(0, rows, slab):
            self._check_stop(control)
            if len(x):
                part = ops.linear(x, self._rows(op.weight, slice(r, r + slab)))
                out[:, op.start + r : op.start + r + len(part[0])] = part
        if op.bias is not None:
            columns = slice(op.start, op.start + rows)
            out[:, columns] += self._vector(op.bias)[columns]
        return out

    def _head_linear(self, op: HeadLinear, x: ops.Array) -> ops.Array:
        spec = self.specs[op.weight]
        heads, rows, columns = spec.shape
        packed = self._weights[op.weight].reshape(heads, -1)
        weights = (spec.format.decode_rows(part, columns) for part in packed)
        parts = np.moveaxis(ops.heads_of(x, heads), 1, 0)
        out = [ops.linear(part, weight) for part, weight in zip(parts, weights, strict=True)]
        return np.stack(out, axis=1).reshape(len(x), heads * rows)

    def _moe(self, op: Moe, experts: ExpertRun | None, control: Control) -> ops.Array:
        """Compute hidden values, and add what their experts give to the op's value, which expert 0 begins."""
        x, routes = self._values[op.x], self._values[op.routes]
        experts = experts or ExpertRun(range(op.experts), range(op.experts))
        for number in experts.hidden:
            tokens, _ = np.nonzero(routes[:, : op.chosen] == number)
            if len(tokens):
                self._check_stop(control)
                gate = self._expert(x[tokens], op.gate_weight, op.gate_bias, number)
                up = self._expert(x[tokens], op.up_weight, op.up_bias, number)
                self._hidden[number] = ops.expert_act(gate, up, op.act)
        out = self._values[op.out] if experts.summed.start else np.zeros_like(x)
        for number in experts.summed:
            tokens, places = np.nonzero(routes[:, : op.chosen] == number)
            if len(tokens):
                self._check_stop(control)
                y = self._expert(self._hidden.pop(number), op.down_weight, op.down_bias, number)
                out[tokens] += routes[tokens, op.chosen + places][:, None] * y
        return out

    def _expert(self, x: ops.Array, weight: str, bias: str | None, number: int) -> ops.Array:
        """One expert's matrix times x, plus its bias."""
        packed = self._experts.get((weight, number))
        if packed is None:
            raise ParameterError(f"expert {number} of weight {weight!r} is chosen, but not bound")
        spec = self.specs[weight]
        out = ops.linear(x, spec.format.decode_rows(packed, spec.shape[2]))
        if bias is not None:
            biases = self.specs[bias]
            out = out + biases.format.decode_rows(self._weights[bias], biases.shape[1])[number]
        return out

    def _attention(
        self,
        op: Attention,
        q: ops.Array,
        k: ops.Array,
        v: ops.Array,
        batch: Batch,
        caches: Sequence[KVCache],
        control: Control,
    ) -> ops.Array:
        sinks = self._optional(op.sinks)
        out = np.empty((len(q), op.out.width), np.float32)
        for sequence in np.unique(batch.sequences):
            tokens = np.flatnonzero(batch.sequences == sequence)
            keys, values = self._extend(op, caches[sequence], batch.positions[tokens], k[tokens], v[tokens])
            for t in tokens:
                self._check_stop(control)
                end = int(batch.positions[t]) + 1
                start = 0 if op.window is None else max(0, end - op.window)
                seen = slice(start, end)
                heads = q[t].reshape(op.heads, op.key_width)
                out[t] = ops.attend(heads, keys[:, seen], values[:, seen], op.scale, op.softcap, sinks)
        return out

    def _extend(
        self, op: Attention, cache: KVCache, positions: NDArray[np.int32], k: ops.Array, v: ops.Array
    ) -> tuple[ops.Array, ops.Array]:
        """Store keys and values at their positions. Returns all of the sequence, float32 (G, N, K) and (G, N, V)."""
        gathered = []
        for at, new, width in zip(
            cache.layout.offsets()[op.layer], (k, v), (op.key_width, op.value_width), strict=True
        ):
            row_bytes = cache.layout.row_bytes(width)
            size = op.kv_heads * CHUNK_POSITIONS * row_bytes
            chunks = [
                c[at : at + size].reshape(op.kv_heads, CHUNK_POSITIONS, row_bytes)
                for c in cache.chunks[: int(positions.max()) // CHUNK_POSITIONS + 1]
            ]
            for position, row in zip(positions.tolist(), new, strict=True):
                number, offset = divmod(position, CHUNK_POSITIONS)
                chunks[number][:, offset] = cache.layout.pack(row.reshape(op.kv_heads, width))
            whole = np.concatenate(chunks, axis=1)[:, : int(positions.max()) + 1]
            gathered.append(cache.layout.unpack(whole))
        return gathered[0], gathered[1]

    @staticmethod
    def _check_stop(control: Control) -> None:
        if control.stopped:
            raise Interrupted("the pass was stopped")
