"""From a graph to units: the flat list that the C part walks through. No memory and no pointer yet.

A unit is an op of the graph, or one of the things that an op needs beside it: packing activations to int8, gathering
the wanted rows, storing keys and values. This module also decides where values lie in the workspace and before which
units the threads must meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, evolve, field, frozen

from ramforge_core.errors import BackendError
from ramforge_core.graph import (
    Attention,
    Embed,
    Glu,
    Graph,
    HeadLinear,
    Join,
    Linear,
    Moe,
    Norm,
    Op,
    Rope,
    Route,
    Slice,
    op_inputs,
)
from ramforge_core.quant import Packing

LOGITS_SLOT = -1
"""Slot of values that lie in the logits array."""

_NOWHERE = -2
_LANES = 16
_NOT_IN_PLACE = (Embed, Slice, Join, Linear, HeadLinear, Attention, Route, Moe)
PACKED_BYTES = {"q8_32": (32, 44), "q8_256": (256, 292)}
"""Values in a block and bytes of a block, as in ``ramforge_kernel.h``."""

_KINDS = {
    "Add": "ADD",
    "Mul": "MUL",
    "Scale": "SCALE",
    "Softcap": "SOFTCAP",
    "Embed": "EMBED",
    "HeadLinear": "HEADS",
    "Slice": "SLICE",
    "Join": "JOIN",
    "Gate": "GATE",
    "Route": "ROUTE",
    "Moe": "MOE_DOWN",
}


@define(eq=False)
class Place:
    """Where a value lies: ``slot`` floats per token before it, ``stride`` from row to row, ``width`` that count."""

    width: int
    wanted: bool
    slot: int = _NOWHERE
    last_use: int = -1

    @property
    def stride(self) -> int:
        if self.slot == LOGITS_SLOT:
            return self.width
        whole = -(-self.width // _LANES) * _LANES
        # a column of rows 4096 bytes apart would crowd into one set of the cache
        return whole + _LANES if whole % 1024 == 0 else whole


@frozen(eq=False)
class Unit:
    """kind : name in ``enum rf_kind`` without its prefix. op : of the graph, None for gathering."""

    kind: str
    step: int
    op: Op | None
    out: Place | None
    inputs: tuple[Place, ...]
    sync: bool = False

    @property
    def wanted(self) -> bool:
        return (self.out or self.inputs[0]).wanted


@frozen
class UnitList:
    """Units in order. floats_per_token : size of the workspace for one token. values : places by name of the value."""

    units: tuple[Unit, ...]
    places: tuple[Place, ...]
    values: Mapping[str, Place]
    floats_per_token: int


def packed_bytes(width: int, packing: Packing) -> int:
    """Bytes of one activation of ``width`` values."""
    if packing == "f32":
        return width * 4
    values, size = PACKED_BYTES[packing]
    return width // values * size


def build_units(graph: Graph, packings: Mapping[str, Packing]) -> UnitList:
    """packings : how the kernel of each matrix wants its activations."""
    builder = _Builder(graph, packings)
    units = builder.build()
    places = list(dict.fromkeys(p for u in units for p in (u.out, *u.inputs) if p is not None))
    _put_in_logits(units, builder.places[graph.logits.name])
    floats = _put_in_workspace(units)
    return UnitList(_mark_syncs(units), tuple(places), builder.places, floats)


@define
class _Builder:
    graph: Graph
    packings: Mapping[str, Packing]
    units: list[Unit] = field(factory=list)
    places: dict[str, Place] = field(factory=dict)
    """By name of the value: where its newest copy is."""
    packed: dict[tuple[Place, Packing], Place] = field(factory=dict)
    wanted: bool = False

    def build(self) -> list[Unit]:
        step = 0
        for stage in self.graph.stages:
            if stage.rows == "wanted" and not self.wanted:
                self._gather(step)
            if stage.rows == "all" and self.wanted:
                raise BackendError(
                    f"stage {stage.name!r} is over all tokens, but comes after one over wanted tokens"
                )
            for op in stage.ops:
                self._op(step, op)
                step += 1
        if not self.wanted:
            self._gather(step)
        self.places[self.graph.logits.name].last_use = len(self.units)
        return self.units

    def _emit(
        self, kind: str, step: int, op: Op | None, to: int | Place | None, *inputs: Place
    ) -> Place | None:
        """to : width of a new place, or the place that is written."""
        out = Place(to, self.wanted) if isinstance(to, int) else to
        for place in inputs:
            place.last_use = len(self.units)
        if out is not None:
            out.last_use = len(self.units)
        self.units.append(Unit(kind, step, op, out, inputs))
        return out

    def _gather(self, step: int) -> None:
        """From here on only the wanted rows of everything that is still to be read."""
        self.wanted = True
        ops = self.graph.ops
        needed = {v.name for op in ops[step:] for v in op_inputs(op)} | {self.graph.logits.name}
        for name in [n for n in self.places if n in needed]:
            place = self._emit(
                "GATHER", min(step, len(ops) - 1), None, self.places[name].width, self.places[name]
            )
            if place is not None:
                self.places[name] = place

    def _op(self, step: int, op: Op) -> None:
        inputs = [self.places[v.name] for v in op_inputs(op)]
        if isinstance(op, (Attention, Embed)) and self.wanted:
            raise BackendError("embed and attention cannot work on the wanted tokens only")
        if isinstance(op, Attention):
            self._emit("STORE_KV", step, op, None, *inputs[1:])
            inputs = inputs[:1]
        elif isinstance(op, Linear):
            inputs = [self._pack(step, op, op.weight, inputs[0])]
            if (begun := self.places.get(op.out.name)) is not None:  # further columns of the same value
                self._emit("MATMUL", step, op, begun, *inputs)
                return
        elif isinstance(op, HeadLinear):
            inputs = [self._pack(step, op, op.weight, inputs[0])]
        elif isinstance(op, Moe):
            inputs = self._moe(step, op, *inputs)
        out = self._emit(_kind(op), step, op, op.out.width, *inputs)
        if out is not None:
            self.places[op.out.name] = out

    def _moe(self, step: int, op: Moe, x: Place, routes: Place) -> list[Place]:
        """The experts up to their hidden values. Returns what the rest works on.

        The step may be run again for further experts, so all that it reads is kept to its end.
        """
        packed = [self._pack(step, op, weight, x) for weight in (op.gate_weight, op.up_weight)]
        hidden = Place(op.chosen * op.expert_width, self.wanted)
        self._emit("MOE_UP", step, op, hidden, routes, *packed)
        packed_hidden = self._pack(step, op, op.down_weight, hidden)
        for place in (x, *packed, hidden):
            place.last_use = len(self.units)
        return [routes, packed_hidden]

    def _pack(self, step: int, op: Linear | HeadLinear | Moe, weight: str, x: Place) -> Place:
        """The activation as the kernel wants it; products of the same value share it."""
        packing = self.packings[weight]
        if packing == "f32":
            return x
        if (x, packing) not in self.packed:
            width = packed_bytes(x.width, packing) // 4
            packed = self._emit(f"PACK_{packing.upper()}", step, op, width, x)
            if packed is not None:
                self.packed[x, packing] = packed
        return self.packed[x, packing]


def _kind(op: Op) -> str:
    match op:
        case Norm():
            return f"NORM_{op.kind.upper()}"
        case Rope():
            return f"ROPE_{op.pairs.upper()}"
        case Glu():
            return f"GLU_{op.act.upper()}"
        case Linear():
            return "MATMUL"
        case Attention():
            return "ATTEND"
        case _:
            return _KINDS[type(op).__name__]


def _overwritable(unit: Unit, number: int) -> Place | None:
    """An input whose memory the output may take: nobody reads it later, and the unit works value by value."""
    if unit.out is None or isinstance(unit.op, _NOT_IN_PLACE) or unit.op is None:
        return None
    fitting = (p for p in unit.inputs if p.last_use == number and p.width == unit.out.width)
    return next(fitting, None)


def _put_in_logits(units: Sequence[Unit], logits: Place) -> None:
    """The logits lie in the caller's array, and so does what they are made from in place."""
    place: Place | None = logits
    for number in range(len(units) - 1, -1, -1):
        if place is not None and units[number].out is place:
            place.slot = LOGITS_SLOT
            place = _overwritable(units[number], number)


def _put_in_workspace(units: Sequence[Unit]) -> int:
    """Give every other value the lowest gap between the values that live at the same time. Returns floats per token."""
    live: list[Place] = []
    size = 0
    for number, unit in enumerate(units):
        if unit.out is not None and unit.out.slot == _NOWHERE:
            given_up = _overwritable(unit, number)
            if given_up is not None and given_up.slot != LOGITS_SLOT:
                unit.out.slot = given_up.slot
                live.remove(given_up)
            else:
                unit.out.slot = _lowest_gap(live, unit.out.stride)
            live.append(unit.out)
            size = max(size, unit.out.slot + unit.out.stride)
        live = [p for p in live if p.last_use > number]
    return size


def _lowest_gap(live: Sequence[Place], stride: int) -> int:
    at = 0
    for place in sorted(live, key=lambda p: p.slot):
        if place.slot - at >= stride:
            break
        at = max(at, place.slot + place.stride)
    return at


def _mark_syncs(units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Set ``sync`` on every unit that touches what a unit since the last sync has written, or writes what it has read.

    Units between two syncs can run at the same time, such as the products for q, k and v.
    """
    out = []
    read: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    stored = False
    for unit in units:
        reads = [_extent(p) for p in unit.inputs]
        writes = [_extent(p) for p in (unit.out,) if p is not None]
        sync = _touch(writes, read + written) or _touch(reads, written) or (unit.kind == "ATTEND" and stored)
        if sync:
            read, written, stored = [], [], False
        read += reads
        written += writes
        stored = stored or unit.kind == "STORE_KV"
        out.append(evolve(unit, sync=sync))
    return tuple(out)


def _extent(place: Place) -> tuple[int, int]:
    return (place.slot, place.slot + place.stride) if place.slot != LOGITS_SLOT else (-1, 0)


def _touch(a: Sequence[tuple[int, int]], b: Sequence[tuple[int, int]]) -> bool:
    return any(x[0] < y[1] and y[0] < x[1] for x in a for y in b)
