"""The contract of an architecture: what the layers of a model are, said without a single array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata
    from ramforge_core.graph import GraphBuilder


@frozen
class TensorSpec:
    """A tensor that a model of this architecture holds.

    shape : as in NumPy, slowest dimension first: (rows, columns) for a matrix, (n,) for a vector.
    required : if not, the file may leave it out.
    group : optional tensors of one group are there all together or not at all.
    """

    name: str
    shape: tuple[int, ...]
    required: bool = True
    group: str | None = None


@frozen(kw_only=True)
class ModelConfig:
    """What core needs to know of every model; architectures extend it with their own fields."""

    context_length: int
    embedding_length: int
    block_count: int
    vocab_size: int


class Architecture(ABC):
    """One value of ``general.architecture``. Instances are stateless and shared.

    runnable : False for a declared architecture, which can be inspected and planned but has no graph.
    """

    key: str
    runnable: bool = True

    @abstractmethod
    def config(self, metadata: Metadata) -> Any:
        """Read the configuration: a frozen attrs class that extends `ModelConfig`.

        Raises MetadataError that names the key when one is missing or senseless.
        """

    @abstractmethod
    def tensors(self, config: Any) -> Sequence[TensorSpec]:
        """All tensors that a file with this configuration may hold and that the graph uses."""

    @abstractmethod
    def build(self, config: Any, g: GraphBuilder) -> None:
        """Say the graph, stage by stage, through the builder."""
