"""Architectures that can be inspected and planned, but not run: their sizes are read, no graph is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.errors import UnsupportedError
from ramforge_core.graph import GraphBuilder
from ramforge_core.hookspecs import hookimpl
from ramforge_core.transformer import TransformerConfig, read_transformer

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata

KEYS = ("qwen35",)


@define
class Declared(Architecture):
    """An architecture known by its key and by the sizes in the metadata."""

    key: str
    runnable: bool = False

    def config(self, metadata: Metadata) -> TransformerConfig:
        return read_transformer(metadata, self.key)

    def tensors(self, config: TransformerConfig) -> Sequence[TensorSpec]:
        return ()

    def build(self, config: TransformerConfig, g: GraphBuilder) -> None:
        raise UnsupportedError(f"architecture {self.key!r} is declared only: it has no graph to run")


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Declared(key) for key in KEYS]
