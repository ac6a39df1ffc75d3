"""The architecture ``olmo2``: tensors and graph. The rotation works on half-split pairs.

Attention and feed-forward part are normed after, not before, and q and k over their whole width. OLMo 3 has the same
name; its files say a sliding window, which three of four blocks see, with a rotation that is not scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.graph import GraphBuilder
from ramforge_core.hookspecs import hookimpl
from ramforge_core.transformer import (
    SlidingWindow,
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
    read_window,
    rotation,
)

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


@frozen(kw_only=True)
class Olmo2Config(TransformerConfig):
    """window, local_rope_base : of the blocks that see a sliding window."""

    window: SlidingWindow | None
    local_rope_base: float


class Olmo2(Architecture):
    """OLMo 2 and 3."""

    key = "olmo2"

    def config(self, metadata: Metadata) -> Olmo2Config:
        base = positive(metadata, "olmo2.rope.freq_base", 10000.0)
        return read_transformer(
            metadata,
            self.key,
            Olmo2Config,
            window=read_window(metadata, self.key, period=4),
            local_rope_base=positive(metadata, "olmo2.rope.freq_base_swa", base),
        )

    def tensors(self, c: Olmo2Config) -> Sequence[TensorSpec]:
        specs = model_tensors(c)
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += attention_tensors(c, b)
            specs += norm_tensors(b, c.heads * c.key_width, "attn_q_norm")
            specs += norm_tensors(b, c.kv_heads * c.key_width, "attn_k_norm")
            specs += feed_forward_tensors(c, b)
            specs += norm_tensors(b, c.embedding_length, "post_attention_norm", "post_ffw_norm")
        return specs

    def build(self, c: Olmo2Config, g: GraphBuilder) -> None:
        everywhere = rotation(c, g, "half")
        nearby = rotation(c, g, "half", base=c.local_rope_base, scaling=None)
        with g.stage("embedding"):
            x = g.embed("token_embd.weight")
        for i in range(c.block_count):
            b, window = f"blk.{i}.", c.window.of(i) if c.window else None
            with g.stage(f"blk.{i}"):
                a = attention(c, g, x, b, nearby if window else everywhere, window=window)
                x = g.add(x, norm(c, g, a, b + "post_attention_norm"))
                x = g.add(x, norm(c, g, feed_forward(g, x, b), b + "post_ffw_norm"))
        with g.stage("head", rows="wanted"):
            g.logits(head(c, g, x))


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Olmo2()]
