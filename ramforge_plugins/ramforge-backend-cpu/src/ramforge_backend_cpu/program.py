"""A compiled graph: fills the tables that the C part walks through, and calls it. See ``csrc/api.h`` for the tables."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from ramforge_backend_cpu.machine import native, warn_once
from ramforge_backend_cpu.units import LOGITS_SLOT, Unit, UnitList, build_units, packed_bytes
from ramforge_core.backend import Batch, Control, ExpertRun, Limits, Program, Step, WeightSpec
from ramforge_core.errors import BackendError, Interrupted, OutOfMemoryError, ParameterError, ShapeError
from ramforge_core.graph import (
    Attention,
    Embed,
    Graph,
    HeadLinear,
    Join,
    Linear,
    Moe,
    Norm,
    Rope,
    Route,
    Scale,
    Slice,
    Softcap,
    Value,
    op_weights,
)
from ramforge_core.kv import CHUNK_POSITIONS, KVCache
from ramforge_core.memory import allocate
from ramforge_core.quant import KERNEL_ABI, KernelFunctions, Packing
from ramforge_core.rope import rope_factors, rope_frequencies

_ACTS = {"silu": "RF_ACT_SILU", "gelu": "RF_ACT_GELU", "swiglu_oai": "RF_ACT_SWIGLU_OAI"}

_ALL = 1 << 62
_DECODE_VALUES = 1 << 20
"""Weights without kernels are decoded in slabs of about this many values."""


@define(eq=False)
class CpuProgram(Program):
    graph: Graph
    specs: dict[str, WeightSpec]
    limits: Limits
    isa: str
    threads: int
    steps: Sequence[Step] = field(init=False)
    _kernels: dict[str, tuple[Packing, KernelFunctions | None]] = field(init=False, repr=False)
    """By matrix; None: decoded to float32 when bound."""
    _list: UnitList = field(init=False, repr=False)
    _readers: dict[str, list[int]] = field(init=False, repr=False)
    """By weight: the units that read it."""
    _first_unit: list[int] = field(init=False, repr=False)
    """By step, and the number of units past the end."""
    _run: Any = field(init=False, repr=False)
    _units: Any = field(init=False, repr=False)
    _pool: Any = field(init=False, repr=False)
    _process: int = field(factory=os.getpid, init=False, repr=False)
    _alive: dict[str, Any] = field(factory=dict, init=False, repr=False)
    """Whatever the tables point to."""
    _given: tuple[Batch, Sequence[KVCache], NDArray[np.float32], Control] | None = field(
        default=None, init=False, repr=False
    )
    """Arguments that the C part is pointed to."""
    _unbound: set[str] = field(init=False, repr=False)
    _bound: dict[str, NDArray[Any]] = field(factory=dict, init=False, repr=False)
    _experts: dict[str, NDArray[np.uintp]] = field(factory=dict, init=False, repr=False)
    """By weight of experts: where each lies, 0 for one that is not bound."""
    _bound_experts: dict[tuple[str, int], NDArray[Any]] = field(factory=dict, init=False, repr=False)
    _expert_specs: dict[str, tuple[WeightSpec, int]] = field(factory=dict, init=False, repr=False)
    """By weight of experts: one of them, and its bytes, which are asked for at every expert that is read."""

    def __attrs_post_init__(self) -> None:
        stages = [(stage, op) for stage in self.graph.stages for op in stage.ops]
        self.steps = [Step(stage.name, i, op_weights(op)) for i, (stage, op) in enumerate(stages)]
        matrices = [op.weight for _, op in stages if isinstance(op, (Linear, HeadLinear, Embed))]
        experts = [name for _, op in stages if isinstance(op, Moe) for name in op.expert_weights]
        matrices += experts
        self._experts = {name: np.zeros(self.specs[name].shape[0], np.uintp) for name in experts}
        for name in experts:
            spec = WeightSpec(name, self.specs[name].shape[1:], self.specs[name].format)
            self._expert_specs[name] = spec, spec.nbytes
        self._kernels = {name: self._pick(name) for name in dict.fromkeys(matrices)}
        plain = Counter(
            self.specs[weight].format.name
            for weight, (_, functions) in self._kernels.items()
            if functions is None
        )
        for name, count in sorted(plain.items()):
            warn_once(
                f"no kernels for {name}: {count} weights are kept decoded to float32, which is larger and slower"
            )
        self._list = build_units(self.graph, {name: packing for name, (packing, _) in self._kernels.items()})
        self._unbound = {name for step in self.steps for name in step.weights} - self._experts.keys()
        self._readers = {}
        for i, unit in enumerate(self._list.units):
            for name in op_weights(unit.op) if unit.op is not None else ():
                self._readers.setdefault(name, []).append(i)
        starts = [u.step for u in self._list.units]
        self._first_unit = [starts.index(i) for i in range(len(self.steps))] + [len(starts)]
        self._allocate()
        self._fill_tables()

    def _pick(self, name: str) -> tuple[Packing, KernelFunctions | None]:
        quant = self.specs[name].format
        kernels = quant.kernels
        if kernels is None:
            return "f32", None
        if kernels.abi != KERNEL_ABI:
            raise BackendError(
                f"the kernels of format {quant.name} have ABI {kernels.abi}, but {KERNEL_ABI} is needed; "
                "update the package that brings them"
            )
        return kernels.packing, kernels.pick(self.isa)[1]

    @property
    def _scratch_floats(self) -> int:
        """Of one thread: attention's tiles, or the cos and sin of a token."""
        lib = native().lib
        floats = 64
        for op in self.graph.ops:
            if isinstance(op, Attention):
                floats = max(floats, lib.rf_attend_scratch(op.key_width, op.value_width))
            elif isinstance(op, Rope):
                floats = max(floats, op.rotary_width + 32)
            elif isinstance(op, Route):
                floats = max(floats, 2 * op.logits.width + 32)
            elif isinstance(op, Moe):
                acts = max(self._act_bytes(name) for name in op.expert_weights)
                floats = max(floats, lib.rf_moe_scratch(acts))
        return int(-(-floats // 16) * 16)

    @property
    def _attention_parts(self) -> tuple[int, int]:
        """Floats and counters for attention whose keys are split among threads."""
        lib, ops = native().lib, [op for op in self.graph.ops if isinstance(op, Attention)]
        if self.threads == 1 or not ops:
            return 16, 16
        floats = [lib.rf_attend_parts(self.limits.max_context, op.heads, op.value_width) for op in ops]
        return max(floats), max(lib.rf_attend_counters(op.heads) for op in ops)

    def _act_bytes(self, weight: str) -> int:
        """Of one activation as the matrix wants it."""
        return packed_bytes(self.specs[weight].shape[-1], self._kernels[weight][0])

    def workspace_bytes(self, n_tokens: int) -> int:
        decoded = sum(
            4 * int(np.prod(self.specs[n].shape)) for n, (_, k) in self._kernels.items() if k is None
        )
        vectors = sum(4 * int(np.prod(self.specs[n].shape)) for n in self._vector_names())
        tables = len(self._list.units) * 400 + len(self._list.places) * 32
        values = 4 * n_tokens * self._list.floats_per_token
        scratch = self.threads * self._scratch_floats + sum(self._attention_parts)
        return decoded + vectors + tables + values + 4 * scratch

    def _vector_names(self) -> set[str]:
        return {name for op in self.graph.ops for name in op_weights(op)} - set(self._kernels)

    def _allocate(self) -> None:
        n = self.limits.max_tokens
        try:
            self._alive["workspace"] = allocate(4 * n * self._list.floats_per_token)
            self._alive["scratch"] = allocate(4 * self.threads * self._scratch_floats)
            floats, counters = self._attention_parts
            self._alive["parts"] = allocate(4 * floats)
            self._alive["parts_done"] = np.zeros(counters, np.int32)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"no memory for the workspace of {self.workspace_bytes(n)} bytes; allow fewer tokens in a pass ({n}), "
                f"a shorter context ({self.limits.max_context}) or fewer threads ({self.threads})"
            ) from error
        lib, ffi = native().lib, native().ffi
        number = [ffi.string(lib.rf_isa_name(i)).decode() for i in range(3) if lib.rf_isa_name(i)].index(
            self.isa
        )
        pool = lib.rf_pool_new(self.threads, number)
        if pool == ffi.NULL:
            raise BackendError(f"cannot start {self.threads} threads; ask for fewer with --threads")
        self._pool = ffi.gc(pool, lib.rf_pool_free)

    # -- tables -----------------------------------------------------------------------------------------------------

    def _fill_tables(self) -> None:
        ffi = native().ffi
        places = {place: i for i, place in enumerate(self._list.places)}
        values = ffi.new("rf_value[]", len(places))
        for place, i in places.items():
            values[i].slot, values[i].stride, values[i].width = place.slot, place.stride, place.width
        self._units = ffi.new("rf_unit[]", len(self._list.units))
        for i, unit in enumerate(self._list.units):
            row = self._units[i]
            row.kind = getattr(native().lib, f"RF_{unit.kind}")
            row.sync = unit.sync
            row.ends_step = i + 1 == self._first_unit[unit.step + 1]
            row.wanted = unit.wanted
            row.out, row.a, row.b, row.c = (
                -1 if place is None else places[place]
                for place in (unit.out, *unit.inputs, None, None, None)[:4]
            )
            self._fill_unit(row, unit)
        run = self._run = ffi.new("rf_run *")
        self._alive["values"] = values
        run.units, run.values = self._units, values
        run.workspace = ffi.cast("float *", self._alive["workspace"].ctypes.data)
        run.scratch = ffi.cast("float *", self._alive["scratch"].ctypes.data)
        run.scratch_floats = self._scratch_floats
        run.parts = ffi.cast("float *", self._alive["parts"].ctypes.data)
        run.part_ranges = native().lib.rf_attend_ranges(self.limits.max_context)
        run.parts_done = ffi.from_buffer("int32_t[]", self._alive["parts_done"])
        run.chunk_positions = CHUNK_POSITIONS
        run.kv_type = getattr(native().lib, f"RF_KV_{self.limits.kv_layout.type.upper()}")

    def _fill_unit(self, row: Any, unit: Unit) -> None:
        """The numbers of an op; pointers to weights are filled in by `bind`."""
        op = unit.op
        if isinstance(op, (Linear, HeadLinear, Embed)):
            spec = self.specs[op.weight]
            functions = self._kernels[op.weight][1]
            row.n_rows, row.n_cols = spec.shape[-2:]
            row.row_bytes = 4 * spec.shape[-1] if functions is None else spec.row_bytes
            row.row_blocks = spec.shape[-1] // spec.format.block_values
            row.act_bytes = unit.inputs[0].stride * 4 if unit.inputs else 0
            if isinstance(op, HeadLinear):
                row.heads, row.act_bytes = spec.shape[0], self._act_bytes(op.weight)
            if functions is not None:
                row.decode, row.matmul = functions.decode, functions.matmul
            row.start = op.start if isinstance(op, Linear) else 0
        elif isinstance(op, Norm):
            row.number, row.vector_width = op.eps, op.group
        elif isinstance(op, Slice):
            row.start, row.heads = op.start, op.heads
        elif isinstance(op, Join):
            row.heads = op.heads
        elif isinstance(op, Scale):
            row.number = op.factor
        elif isinstance(op, Softcap):
            row.number = op.cap
        elif isinstance(op, Rope):
            row.head_width, row.vector_width = op.head_width, op.rotary_width // 2
            if rope_factors(op, self.limits.max_context) is None:
                self._set_frequencies(row, op, None)
        elif isinstance(op, Route):
            row.n_experts, row.chosen, row.number = op.logits.width, op.out.width // 2, op.scale
            row.sigmoid, row.normalise = op.scores == "sigmoid", op.normalise
        elif isinstance(op, Moe):
            self._fill_moe(row, unit, op)
        elif isinstance(op, Attention):
            row.number, row.softcap, row.window = op.scale, op.softcap or 0, op.window or 0
            row.heads, row.kv_heads = op.heads, op.kv_heads
            row.key_width, row.value_width = op.key_width, op.value_width
            row.key_offset, row.value_offset = self.limits.kv_layout.offsets()[op.layer]

    def _fill_moe(self, row: Any, unit: Unit, op: Moe) -> None:
        row.n_experts, row.chosen, row.act = op.experts, op.chosen, getattr(native().lib, _ACTS[op.act])
        if unit.kind == "MOE_UP":
            row.experts, row.second = self._expert_table(op.gate_weight), self._expert_table(op.up_weight)
        elif unit.kind == "MOE_DOWN":
            row.experts = self._expert_table(op.down_weight)

    def _expert_table(self, weight: str) -> Any:
        spec, functions = self.specs[weight], self._kernels[weight][1]
        table = native().ffi.new("rf_experts *")
        table.weights = native().ffi.cast("uint8_t **", self._experts[weight].ctypes.data)
        _, table.n_rows, table.n_cols = spec.shape
        table.row_bytes = 4 * spec.shape[2] if functions is None else spec.row_bytes
        table.act_bytes = self._act_bytes(weight)
        if functions is not None:
            table.matmul = functions.matmul
        self._alive[f"table of {weight}"] = table
        return table

    # -- weights ----------------------------------------------------------------------------------------------------

    def bind(self, weights: Mapping[str, NDArray[np.uint8]]) -> None:
        for name, data in weights.items():
            spec = self.specs[name]
            if data.shape != (spec.nbytes,) or data.dtype != np.uint8 or not data.flags.c_contiguous:
                raise ShapeError(
                    f"weight {name!r}: expected contiguous uint8 ({spec.nbytes},) for shape {spec.shape} in "
                    f"{spec.format.name}, got {data.dtype} {data.shape}"
                )
            if name in self._experts:
                self.bind_experts(name, dict(enumerate(data.reshape(spec.shape[0], -1))))
                continue
            keep = name in self._kernels and self._kernels[name][1] is not None
            self._bound[name] = data if keep else _decoded(spec, data)
        self._unbound.difference_update(weights)
        for i in dict.fromkeys(i for name in weights for i in self._readers.get(name, ())):
            self._point(self._units[i], self._list.units[i])

    def bind_experts(self, weight: str, experts: Mapping[int, NDArray[np.uint8]]) -> None:
        where, (spec, nbytes) = self._experts[weight], self._expert_specs[weight]
        for number, data in experts.items():
            if data.shape != (nbytes,) or data.dtype != np.uint8 or not data.flags.c_contiguous:
                raise ShapeError(
                    f"expert {number} of weight {weight!r}: expected contiguous uint8 ({nbytes},) for shape "
                    f"{spec.shape} in {spec.format.name}, got {data.dtype} {data.shape}"
                )
            kept = data if self._kernels[weight][1] is not None else _decoded(spec, data)
            self._bound_experts[weight, number] = kept
            where[number] = kept.ctypes.data

    def _point(self, row: Any, unit: Unit) -> None:
        """Let a unit point to those of its weights that are bound."""
        op = unit.op
        if isinstance(op, (Linear, HeadLinear, Embed)):
            row.weight = self._pointer("uint8_t *", op.weight)
        if isinstance(op, (Linear, Norm)):
            row.bias = self._pointer("float *", op.bias)
        if isinstance(op, Norm):
            row.vector = self._pointer("float *", op.weight)
        if isinstance(op, Attention):
            row.vector = self._pointer("float *", op.sinks)
        if isinstance(op, Route):
            row.vector = self._pointer("float *", op.bias)
        if unit.kind == "MOE_UP" and isinstance(op, Moe):
            row.experts.bias = self._pointer("float *", op.gate_bias)
            row.second.bias = self._pointer("float *", op.up_bias)
        if unit.kind == "MOE_DOWN" and isinstance(op, Moe):
            row.experts.bias = self._pointer("float *", op.down_bias)
        if isinstance(op, Rope) and (name := rope_factors(op, self.limits.max_context)) in self._bound:
            self._set_frequencies(row, op, self._bound[name])

    def _pointer(self, kind: str, name: str | None) -> Any:
        ffi = native().ffi
        return ffi.cast(kind, self._bound[name].ctypes.data) if name in self._bound else ffi.NULL

    def _set_frequencies(self, row: Any, op: Rope, factors: NDArray[Any] | None) -> None:
        frequencies, magnitude = rope_frequencies(op, factors)
        self._alive[f"frequencies of {op.out.name}"] = frequencies
        row.vector = native().ffi.cast("float *", frequencies.ctypes.data)
        row.number = magnitude

    # -- running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        batch: Batch,
        caches: Sequence[KVCache],
        logits: NDArray[np.float32],
        control: Control,
        steps: range | None = None,
        experts: ExpertRun | None = None,
    ) -> None:
        steps = range(len(self.steps)) if steps is None else steps
        given = (batch, caches, logits, control)
        if (
            steps.start == 0
            or self._given is None
            or any(a is not b for a, b in zip(given, self._given, strict=True))
        ):
            self._prepare(batch, caches, logits, control)
        if self._unbound and (missing := self._unbound & {w for i in steps for w in self.steps[i].weights}):
            raise ParameterError(f"weight {min(missing)!r} is not bound")
        run = self._run
        run.first, run.last = self._first_unit[steps.start], self._first_unit[steps.stop]
        self._choose_experts(experts)
        run.to_be_continued = steps.stop < len(self.steps) and (
            experts is not None or isinstance(self.graph.ops[steps.stop], Moe)
        )
        self._alive["parts_done"][:] = 0  # a run that was stopped leaves counts
        result = native().lib.rf_pool_run(self._pool, run)
        if result == native().lib.RF_STOPPED:
            raise Interrupted("the pass was stopped")
        if result < 0:
            unit = self._list.units[-1 - result]
            if isinstance(unit.op, Moe) and any(
                (self._experts[w] == 0).any() for w in unit.op.expert_weights
            ):
                raise ParameterError(f"an expert is chosen in step {unit.step}, but not bound")
            raise BackendError(f"a kernel refused its arguments in step {unit.step}, op {unit.op}")

    def _choose_experts(self, experts: ExpertRun | None) -> None:
        ffi, run = native().ffi, self._run
        run.hidden, run.first_summed, run.last_summed = ffi.NULL, 0, _ALL
        if experts is not None:
            hidden = self._alive["hidden experts"] = ffi.new("int32_t[]", list(experts.hidden))
            run.hidden, run.n_hidden = hidden, len(hidden)
            run.first_summed, run.last_summed = experts.summed.start, experts.summed.stop

    def read(self, value: Value) -> NDArray[np.float32]:
        place, n = self._list.values[value.name], self._run.n_tokens
        rows = self._run.n_wanted if place.wanted else n
        if place.slot == LOGITS_SLOT and self._given is not None:
            return self._given[2]
        floats: NDArray[np.float32] = self._alive["workspace"].view(np.float32)[place.slot * n :]
        return floats[: rows * place.stride].reshape(rows, place.stride)[:, : place.width]

    def _prepare(
        self, batch: Batch, caches: Sequence[KVCache], logits: NDArray[np.float32], control: Control
    ) -> None:
        """Point the C part to a batch. Once per pass, of which a streamed model runs hundreds of pieces."""
        self._given = None
        self._check(batch, caches, logits)
        ffi, run = native().ffi, self._run
        wanted = np.flatnonzero(batch.wanted)
        chunks = np.array([chunk.ctypes.data for cache in caches for chunk in cache.chunks], np.uintp)
        first_chunk = np.cumsum([0] + [len(cache.chunks) for cache in caches])
        run.n_tokens, run.n_wanted = len(batch.tokens), len(wanted)
        run.tokens = ffi.from_buffer("int32_t[]", batch.tokens)
        run.positions = ffi.from_buffer("int32_t[]", batch.positions)
        run.sequences = ffi.from_buffer("int32_t[]", batch.sequences)
        run.wanted = ffi.from_buffer("int64_t[]", wanted)
        run.chunks = ffi.cast("uint8_t **", chunks.ctypes.data)
        run.first_chunk = ffi.from_buffer("int64_t[]", first_chunk)
        run.logits = ffi.cast("float *", logits.ctypes.data)
        run.flags = ffi.from_buffer("int32_t[]", control.flags, require_writable=True)
        self._alive["batch"] = (wanted, chunks, first_chunk)
        self._given = (batch, caches, logits, control)

    def _check(self, batch: Batch, caches: Sequence[KVCache], logits: NDArray[np.float32]) -> None:
        """C trusts its arguments, so nothing that is out of range may pass."""
        if os.getpid() != self._process:
            raise BackendError(
                "the program was made before this process was forked, and its threads are not here"
            )
        n, n_wanted = len(batch.tokens), int(batch.wanted.sum())
        arrays = (batch.tokens, batch.positions, batch.sequences)
        if any(a.dtype != np.int32 or a.shape != (n,) or not a.flags.c_contiguous for a in arrays):
            raise ShapeError("tokens, positions and sequences must be contiguous int32 arrays of one length")
        if n == 0 or n > self.limits.max_tokens or n_wanted > self.limits.max_wanted:
            raise ParameterError(
                f"a batch of {n} tokens, {n_wanted} of them wanted; expected 1 to {self.limits.max_tokens} tokens, "
                f"at most {self.limits.max_wanted} wanted"
            )
        if logits.dtype != np.float32 or logits.shape != (n_wanted, self.graph.logits.width):
            raise ShapeError(
                f"logits are {logits.dtype} {logits.shape}, expected float32 ({n_wanted}, {self.graph.logits.width})"
            )
        if not logits.flags.c_contiguous or not logits.flags.writeable:
            raise ShapeError("logits must be contiguous and writable")
        vocab = min(
            (self.specs[op.weight].shape[0] for op in self.graph.ops if isinstance(op, Embed)), default=1
        )
        capacity = np.array([cache.capacity for cache in caches])
        if batch.tokens.min() < 0 or batch.tokens.max() >= vocab:
            raise ParameterError(f"tokens must be 0 to {vocab - 1}")
        if batch.sequences.min() < 0 or batch.sequences.max() >= len(caches):
            raise ParameterError(f"sequences must be 0 to {len(caches) - 1}")
        end = min(self.limits.max_context, int(capacity.max(initial=0)))
        if batch.positions.min() < 0 or (batch.positions >= np.minimum(capacity[batch.sequences], end)).any():
            raise ParameterError(f"positions must be 0 to {end - 1}, and inside the capacity of their cache")
        if any(cache.layout != self.limits.kv_layout for cache in caches):
            raise ShapeError("a KV cache has another layout than the program was compiled for")


def _decoded(spec: WeightSpec, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The weight as float32, decoded in slabs of rows."""
    rows = math.prod(spec.shape[:-1])
    out = allocate(4 * rows * spec.shape[-1]).view(np.float32).reshape(rows, spec.shape[-1])
    slab = max(1, _DECODE_VALUES // spec.shape[-1])
    packed = data.reshape(rows, spec.row_bytes)
    for r in range(0, rows, slab):
        out[r : r + slab] = spec.format.decode_rows(packed[r : r + slab].reshape(-1), spec.shape[-1])
    return out.reshape(spec.shape)
