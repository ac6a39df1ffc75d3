"""The architecture ``smollm3``: tensors and graph.

The blocks of Llama, but for every fourth, which does not rotate q and k (NoPE). The rotation works on adjacent pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.graph import GraphBuilder
from ramforge_core.hookspecs import hookimpl
from ramforge_core.transformer import (
    TransformerConfig,
    attention,
    attention_tensors,
    feed_forward,
    feed_forward_tensors,
    head,
    model_tensors,
    norm,
    norm_tensors,
    read_transformer,
    rotation,
)

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata

NO_ROTATION_EVERY = 4
"""Files do not say it; llama.cpp (n_no_rope_layer_step in smollm3.cpp) takes it as fixed too."""


class SmolLM3(Architecture):
    """SmolLM 3."""

    key = "smollm3"

    def config(self, metadata: Metadata) -> TransformerConfig:
        return read_transformer(metadata, self.key)

    def tensors(self, c: TransformerConfig) -> Sequence[TensorSpec]:
        specs = model_tensors(c)
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += norm_tensors(b, c.embedding_length, "attn_norm", "ffn_norm")
            specs += attention_tensors(c, b)
            specs += feed_forward_tensors(c, b)
        return specs

    def build(self, c: TransformerConfig, g: GraphBuilder) -> None:
        rotate = rotation(c, g, "adjacent")
        with g.stage("embedding"):
            x = g.embed("token_embd.weight")
        for i in range(c.block_count):
            b, turned = f"blk.{i}.", (i + 1) % NO_ROTATION_EVERY != 0
            with g.stage(f"blk.{i}"):
                x = g.add(x, attention(c, g, norm(c, g, x, b + "attn_norm"), b, rotate if turned else None))
                x = g.add(x, feed_forward(g, norm(c, g, x, b + "ffn_norm"), b))
        with g.stage("head", rows="wanted"):
            g.logits(head(c, g, x))


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [SmolLM3()]
