"""Experts of a model that is larger than its memory: how many of each layer may stay, decided and described.

A token needs few of a layer's experts and nobody knows which before the router has spoken. So they are not scanned
like other weights but read when they are chosen, into slots that hold one expert each. Every layer has its share of
slots for experts that are likely to come again, whose number does not depend on other layers: one cache for all would
have forgotten a layer's experts when the next token comes, if it holds less than one token's. A few slots more belong
to nobody: what is read goes there first, and takes a place in its layer's share only if that has something worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from ramforge_core.backend import WeightSpec
from ramforge_core.gguf import TensorInfo
from ramforge_core.graph import Graph, Moe
from ramforge_core.memory import PAGE


@frozen
class ExpertExtent:
    """Where the experts of one weight lie: ``nbytes`` each, one after the other from byte ``offset`` of a file on."""

    weight: str
    file: int
    offset: int
    nbytes: int

    @property
    def window_bytes(self) -> int:
        """Pages that any expert fits into, wherever it begins."""
        return -(-self.nbytes // PAGE) * PAGE + (PAGE if self.offset % PAGE or self.nbytes % PAGE else 0)


@frozen
class ExpertLayer:
    """The experts of one `Moe` op, and how many of them may stay in memory."""

    op: Moe
    step: int
    extents: tuple[ExpertExtent, ExpertExtent, ExpertExtent]
    kept: int

    @property
    def expert_bytes(self) -> int:
        return sum(extent.nbytes for extent in self.extents)

    @property
    def slot_bytes(self) -> int:
        return sum(extent.window_bytes for extent in self.extents)

    def expected_misses(self, tokens: int) -> float:
        """Experts that a pass over so many tokens reads, if the router has no favourites: the worst case."""
        share = 1 - self.op.chosen / self.op.experts
        return self.op.experts * (1 - share**tokens) * (1 - self.kept / self.op.experts)


@frozen
class ExpertShares:
    """layers : in the order of use. passing : slots beside those that the layers keep."""

    layers: tuple[ExpertLayer, ...]
    passing: int

    @property
    def slot_bytes(self) -> int:
        return max(layer.slot_bytes for layer in self.layers)

    @property
    def slots(self) -> int:
        return self.passing + sum(layer.kept for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Memory of all slots."""
        return self.slots * self.slot_bytes

    @property
    def expert_bytes(self) -> int:
        """Bytes of all experts in the file."""
        return sum(layer.op.experts * layer.expert_bytes for layer in self.layers)

    def in_graph(self, graph: Graph) -> ExpertShares:
        """The same shares where the ops stand at other places."""
        steps = [i for i, op in enumerate(graph.ops) if isinstance(op, Moe)]
        layers = zip(self.layers, steps, strict=True)
        return evolve(self, layers=tuple(evolve(layer, step=step) for layer, step in layers))

    def expected_bytes(self, tokens: int) -> float:
        """Weight bytes of experts that a pass over so many tokens reads, if the routers have no favourites."""
        return sum(layer.expected_misses(tokens) * layer.expert_bytes for layer in self.layers)

    def expected_misses(self, tokens: int) -> float:
        """Experts that such a pass reads, of all layers together."""
        return sum(layer.expected_misses(tokens) for layer in self.layers)


def expert_names(graph: Graph) -> frozenset[str]:
    """Weights that hold experts."""
    return frozenset(name for op in graph.ops if isinstance(op, Moe) for name in op.expert_weights)


def expert_layers(
    graph: Graph, weights: Mapping[str, WeightSpec], tensors: Mapping[str, TensorInfo]
) -> tuple[ExpertLayer, ...]:
    """The layers that have experts, keeping none. ``step`` is the op's place in ``graph``."""

    def extent(name: str) -> ExpertExtent:
        info, spec = tensors[name], weights[name]
        return ExpertExtent(name, info.file, info.offset, spec.nbytes // spec.shape[0])

    return tuple(
        ExpertLayer(op, i, (extent(op.gate_weight), extent(op.up_weight), extent(op.down_weight)), 0)
        for i, op in enumerate(graph.ops)
        if isinstance(op, Moe)
    )


def share_experts(layers: Sequence[ExpertLayer], free: int, spare: int) -> ExpertShares:
    """Divide memory among layers. free : bytes for experts and dense weights; spare : what the latter leave of it.

    Slots of nobody come first, so many that a token's missing experts can be read together, but for no more than a
    quarter of ``free``. All the layers then keep the same number of experts, or one more.
    """
    slot = max(layer.slot_bytes for layer in layers)
    passing = max(1, min(max(layer.op.chosen for layer in layers), free // (4 * slot)))
    left = max(0, spare // slot - passing)
    kept = [
        min(layer.op.experts, left // len(layers) + (i < left % len(layers)))
        for i, layer in enumerate(layers)
    ]
    return ExpertShares(tuple(evolve(a, kept=n) for a, n in zip(layers, kept, strict=True)), passing)
