"""The architecture ``phi3``: tensors and graph. The rotation works on half-split pairs.

q, k and v come from one matrix, in this order, and so do gate and up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.errors import MetadataError
from ramforge_core.graph import GraphBuilder, Value
from ramforge_core.hookspecs import hookimpl
from ramforge_core.transformer import (
    TransformerConfig,
    attend,
    head,
    model_tensors,
    norm,
    norm_tensors,
    output_tensors,
    read_transformer,
    rope_tensors,
    rotation,
)

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


@frozen(kw_only=True)
class Phi3Config(TransformerConfig):
    """window : positions that every block sees; None for all. llama.cpp leaves it out, transformers does not."""

    window: int | None


class Phi3(Architecture):
    """Phi 3, 3.5 and 4."""

    key = "phi3"

    def config(self, metadata: Metadata) -> Phi3Config:
        window = metadata.integer("phi3.attention.sliding_window", default=0)
        if window < 0:
            raise MetadataError(
                f"metadata key 'phi3.attention.sliding_window' is {window}, expected 0 or more"
            )
        return read_transformer(metadata, self.key, Phi3Config, window=window or None)

    def tensors(self, c: Phi3Config) -> Sequence[TensorSpec]:
        D, F = c.embedding_length, c.feed_forward_length
        specs = model_tensors(c) + rope_tensors(c)
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += norm_tensors(b, D, "attn_norm", "ffn_norm")
            specs += [TensorSpec(b + "attn_qkv.weight", (sum(_widths(c)), D)), *output_tensors(c, b)]
            specs += [
                TensorSpec(b + "ffn_up.weight", (2 * F, D)),
                TensorSpec(b + "ffn_down.weight", (D, F)),
            ]
        return specs

    def build(self, c: Phi3Config, g: GraphBuilder) -> None:
        rotate = rotation(c, g, "half")
        with g.stage("embedding"):
            x = g.embed("token_embd.weight")
        for i in range(c.block_count):
            b = f"blk.{i}."
            with g.stage(f"blk.{i}"):
                h = g.linear(norm(c, g, x, b + "attn_norm"), b + "attn_qkv.weight")
                q, k, v = _cut(g, h, *_widths(c))
                x = g.add(x, attend(c, g, (q, k, v), b, rotate, window=c.window))
                h = g.linear(norm(c, g, x, b + "ffn_norm"), b + "ffn_up.weight")
                gate, up = _cut(g, h, c.feed_forward_length, c.feed_forward_length)
                x = g.add(x, g.linear(g.glu(gate, up), b + "ffn_down.weight"))
        with g.stage("head", rows="wanted"):
            g.logits(head(c, g, x))


def _widths(c: Phi3Config) -> tuple[int, int, int]:
    """Of q, k and v."""
    return c.heads * c.key_width, c.kv_heads * c.key_width, c.kv_heads * c.value_width


def _cut(g: GraphBuilder, x: Value, *widths: int) -> list[Value]:
    return [g.slice(x, sum(widths[:i]), width) for i, width in enumerate(widths)]


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Phi3()]
