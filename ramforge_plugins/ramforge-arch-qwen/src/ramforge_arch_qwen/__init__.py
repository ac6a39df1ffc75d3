"""The architectures ``qwen2`` and ``qwen3``: tensors and graph. The rotation works on half-split pairs.

Qwen 3 has no biases on q, k and v and norms q and k by head instead.
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


class Qwen2(Architecture):
    """Qwen 2 and 2.5."""

    key = "qwen2"

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
        rotate = rotation(c, g, "half")
        with g.stage("embedding"):
            x = g.embed("token_embd.weight")
        for i in range(c.block_count):
            b = f"blk.{i}."
            with g.stage(f"blk.{i}"):
                x = g.add(x, attention(c, g, norm(c, g, x, b + "attn_norm"), b, rotate))
                x = g.add(x, feed_forward(g, norm(c, g, x, b + "ffn_norm"), b))
        with g.stage("head", rows="wanted"):
            g.logits(head(c, g, x))


class Qwen3(Qwen2):
    """Qwen 3: the blocks of Qwen 2, with norms of q and k."""

    key = "qwen3"

    def tensors(self, c: TransformerConfig) -> Sequence[TensorSpec]:
        specs = list(super().tensors(c))
        for i in range(c.block_count):
            specs += norm_tensors(f"blk.{i}.", c.key_width, "attn_q_norm", "attn_k_norm")
        return specs


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Qwen2(), Qwen3()]
