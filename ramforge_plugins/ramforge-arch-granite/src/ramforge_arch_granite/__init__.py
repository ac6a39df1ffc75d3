"""The architecture ``granite``: tensors and graph.

The blocks of Llama, with fixed factors on embeddings, scores, residuals and logits. The rotation works on adjacent
pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.graph import GraphBuilder, Value
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
    positive,
    read_transformer,
    rope_tensors,
    rotation,
)

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


@frozen(kw_only=True)
class GraniteConfig(TransformerConfig):
    """embedding_scale, residual_scale : factors. logit_scale : a divisor. score_scale : None for the usual one.

    rotated : False for a model without positions, whose files say so with rope.scaling.finetuned (as in llama.cpp).
    """

    embedding_scale: float
    residual_scale: float
    logit_scale: float
    score_scale: float | None
    rotated: bool


class Granite(Architecture):
    """Dense models of IBM Granite."""

    key = "granite"

    def config(self, metadata: Metadata) -> GraniteConfig:
        score = "granite.attention.scale"
        return read_transformer(
            metadata,
            self.key,
            GraniteConfig,
            embedding_scale=positive(metadata, "granite.embedding_scale", 1.0),
            residual_scale=positive(metadata, "granite.residual_scale", 1.0),
            logit_scale=positive(metadata, "granite.logit_scale"),
            score_scale=positive(metadata, score) if score in metadata else None,
            rotated=metadata.flag("granite.rope.scaling.finetuned", default=True),
        )

    def tensors(self, c: GraniteConfig) -> Sequence[TensorSpec]:
        specs = model_tensors(c) + rope_tensors(c)
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += norm_tensors(b, c.embedding_length, "attn_norm", "ffn_norm")
            specs += attention_tensors(c, b)
            specs += feed_forward_tensors(c, b)
        return specs

    def build(self, c: GraniteConfig, g: GraphBuilder) -> None:
        rotate = rotation(c, g, "adjacent") if c.rotated else None
        options = {} if c.score_scale is None else {"scale": c.score_scale}

        def add(x: Value, part: Value) -> Value:
            return g.add(x, g.scale(part, c.residual_scale))

        with g.stage("embedding"):
            x = g.scale(g.embed("token_embd.weight"), c.embedding_scale)
        for i in range(c.block_count):
            b = f"blk.{i}."
            with g.stage(f"blk.{i}"):
                x = add(x, attention(c, g, norm(c, g, x, b + "attn_norm"), b, rotate, **options))
                x = add(x, feed_forward(g, norm(c, g, x, b + "ffn_norm"), b))
        with g.stage("head", rows="wanted"):
            g.logits(g.scale(head(c, g, x), 1 / c.logit_scale))


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Granite()]
