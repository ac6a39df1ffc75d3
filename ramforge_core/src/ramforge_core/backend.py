"""The contract of a compute backend: compile a graph once, then run passes over batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from attrs import Factory, define, field, frozen
from numpy.typing import NDArray

from ramforge_core.errors import BackendError
from ramforge_core.graph import Graph, Value
from ramforge_core.kv import KVCache, KVLayout
from ramforge_core.quant import QuantFormat


@frozen
class WeightSpec:
    """A weight as it lies in memory: ``shape`` in NumPy order, rows packed in ``format`` one after the other."""

    name: str
    shape: tuple[int, ...]
    format: QuantFormat

    @property
    def row_bytes(self) -> int:
        return self.format.nbytes(self.shape[-1])

    @property
    def nbytes(self) -> int:
        return self.format.nbytes(int(np.prod(self.shape, dtype=object)))


@frozen
class Limits:
    """How large a pass may be.

    max_tokens : tokens in one `Program.run`.
    max_wanted : tokens of one run whose logits are wanted.
    max_context : positions 0..max_context-1.
    threads : 0 lets the backend choose.
    """

    max_tokens: int
    max_wanted: int
    max_context: int
    kv_layout: KVLayout
    threads: int = 0


@frozen(eq=False)
class Batch:
    """The tokens of one pass: prefill, decode, several users and drafted tokens are all this.

    tokens, positions, sequences : int32 (T,). Positions of one sequence ascend and continue what its cache holds.
    wanted : bool (T,), whose logits are wanted.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    sequences: NDArray[np.int32]
    wanted: NDArray[np.bool_]


@define(eq=False)
class Control:
    """Two numbers shared with a running pass: raise ``stop`` from any thread, read ``done`` for progress."""

    flags: NDArray[np.int32] = field(default=Factory(lambda: np.zeros(2, np.int32)))
    _before: int = field(default=0, init=False)

    def stop(self) -> None:
        self.flags[0] = 1

    def reset(self) -> None:
        self.flags[:] = 0
        self._before = 0

    def begin(self, step: int) -> None:
        """The next run of the pass starts with this step."""
        self.flags[1] = 0
        self._before = step

    @property
    def stopped(self) -> bool:
        return bool(self.flags[0])

    @property
    def done(self) -> int:
        """Steps of the pass that are finished."""
        return self._before + int(self.flags[1])


@frozen
class Step:
    """One unit of a pass, in order: an op of the graph and the weights it reads."""

    stage: str
    op: int
    weights: tuple[str, ...]


@frozen
class ExpertRun:
    """What one run of a `Moe` step does: hidden values of some experts, then a part of the sum over all.

    hidden : experts whose gate and up are multiplied. Each comes once in a pass, in any order, not after its sum.
    summed : experts whose down is multiplied and added. Ranges follow on each other, from 0 to E.
    """

    hidden: Sequence[int]
    summed: range


class Program(ABC):
    """A compiled graph with its workspace. Not for use from two threads at once."""

    steps: Sequence[Step]
    threads: int | None = None
    """Threads that it computes with; None if that is not the backend's to say."""

    @abstractmethod
    def workspace_bytes(self, n_tokens: int) -> int:
        """Bytes of scratch that a run over ``n_tokens`` tokens needs, without logits, KV cache and weights."""

    @abstractmethod
    def bind(self, weights: Mapping[str, NDArray[np.uint8]]) -> None:
        """Say where weights lie: packed bytes, uint8 (nbytes,), 32-byte aligned, perhaps read-only.

        The program keeps them alive. Raises ShapeError when a size differs from its `WeightSpec`.
        """

    @abstractmethod
    def bind_experts(self, weight: str, experts: Mapping[int, NDArray[np.uint8]]) -> None:
        """As `bind`, for single experts of a weight (E, rows, columns) of a `Moe` op: number -> packed bytes.

        When the op runs, only experts that tokens choose need be bound, and of those only what `ExpertRun` asks for.
        """

    @abstractmethod
    def run(
        self,
        batch: Batch,
        caches: Sequence[KVCache],
        logits: NDArray[np.float32],
        control: Control,
        steps: range | None = None,
        experts: ExpertRun | None = None,
    ) -> None:
        """Run consecutive steps (all of them by default) for a batch.

        caches : by sequence number of the batch; already grown to hold the batch's positions. Written.
        logits : float32 (number of wanted tokens, vocab), written by the last steps, in batch order.
        experts : for a run of one `Moe` step, what of it to do now. Several runs that do everything give the bits of
            one that does.
        Raises Interrupted when ``control.stop`` was raised, at the latest one tile of work later; ParameterError if
        a weight or a chosen expert is not bound.
        """

    @abstractmethod
    def read(self, value: Value) -> NDArray[np.float32]:
        """A value that the last step of the last run wrote: (rows, width), good until the next run."""


class Backend(ABC):
    """A way to compute. Instances are shared; `compile` gives each engine its own program."""

    key: ClassVar[str]
    priority: ClassVar[int] = 0
    """The available backend with the highest priority is the default."""
    graph_version: ClassVar[int] = 1
    """The `GRAPH_VERSION` whose ops it knows: a number, not the constant of whichever core is installed."""
    memory_tiers: ClassVar[tuple[str, ...]] = ("ram",)

    @abstractmethod
    def available(self) -> str | None:
        """None if it works on this machine, else the reason why not."""

    @abstractmethod
    def describe(self) -> Mapping[str, str]:
        """What `support` shows: at least ``isa``, the instruction set in use, and ``threads``."""

    @abstractmethod
    def compile(self, graph: Graph, weights: Mapping[str, WeightSpec], limits: Limits) -> Program:
        """Prepare a graph. Raises BackendError if it cannot, OutOfMemoryError if the workspace is refused."""


def check_ops(backend: Backend, graph: Graph) -> None:
    """Raises BackendError if the graph has ops that came after the backend was written."""
    if graph.version > backend.graph_version:
        raise BackendError(
            f"backend {backend.key!r} knows the ops of graph version {backend.graph_version}, and this model needs "
            f"version {graph.version}: upgrade the plugin, or choose another with --backend"
        )
