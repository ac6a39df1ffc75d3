"""The architecture ``gpt-oss``: tensors and graph. The rotation works on half-split pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.errors import MetadataError
from ramforge_core.graph import GraphBuilder, Value
from ramforge_core.hookspecs import hookimpl
from ramforge_core.mixture import Mixture, expert_tensors, mixture, read_mixture
from ramforge_core.transformer import (
    Rotation,
    SlidingWindow,
    TransformerConfig,
    attention,
    attention_tensors,
    head,
    model_tensors,
    norm_tensors,
    read_transformer,
    read_window,
    rotation,
)

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


@frozen(kw_only=True)
class GptOssConfig(TransformerConfig):
    """window : of every other block, beginning with the first."""

    mixture: Mixture
    window: SlidingWindow | None


class GptOss(Architecture):
    """gpt-oss."""

    key = "gpt-oss"

    def config(self, metadata: Metadata) -> GptOssConfig:
        found = read_mixture(metadata, self.key)
        if found is None:
            raise MetadataError(f"metadata key '{self.key}.expert_count' is 0 or missing")
        window = read_window(metadata, self.key, period=2)
        return read_transformer(metadata, self.key, GptOssConfig, mixture=found, window=window)

    def tensors(self, c: GptOssConfig) -> Sequence[TensorSpec]:
        specs = model_tensors(c)
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += [
                *norm_tensors(b, c.embedding_length, "attn_norm", "post_attention_norm"),
                *attention_tensors(c, b),
                TensorSpec(b + "attn_sinks.weight", (c.heads,)),
                *expert_tensors(c, c.mixture, b, biases=True),
            ]
        return specs

    def build(self, c: GptOssConfig, g: GraphBuilder) -> None:
        rotate = rotation(c, g, "half")
        with g.stage("embedding"):
            x = g.embed("token_embd.weight")
        for i in range(c.block_count):
            with g.stage(f"blk.{i}"):
                x = _block(c, g, x, i, rotate)
        with g.stage("head", rows="wanted"):
            g.logits(head(c, g, x))


def _block(c: GptOssConfig, g: GraphBuilder, x: Value, number: int, rotate: Rotation) -> Value:
    b, window = f"blk.{number}.", c.window.of(number) if c.window else None
    h = g.norm(x, b + "attn_norm.weight", c.norm_eps)
    x = g.add(x, attention(c, g, h, b, rotate, window=window, sinks=b + "attn_sinks.weight"))
    h = g.norm(x, b + "post_attention_norm.weight", c.norm_eps)  # in spite of its name, the experts' norm
    return g.add(x, mixture(c.mixture, g, h, b, "swiglu_oai", normalise=True))


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [GptOss()]
