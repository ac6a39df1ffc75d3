"""The architecture ``llama``: tensors and graph.

The files hold q and k permuted, so that the rotation works on adjacent pairs (llama.cpp, llama_model_rope_type).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.graph import GraphBuilder
from ramforge_core.hookspecs import hookimpl
from ramforge_core.mixture import MixtureConfig, expert_tensors, mixture, read_mixture
from ramforge_core.transformer import (
    attention,
    attention_tensors,
    feed_forward,
    feed_forward_tensors,
    head,
    model_tensors,
    norm,
    norm_tensors,
    read_transformer,
    rope_tensors,
    rotation,
)

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


class Llama(Architecture):
    """Llama, Mistral, SmolLM and their kin; with experts Mixtral and its kin."""

    key = "llama"

    def config(self, metadata: Metadata) -> MixtureConfig:
        return read_transformer(metadata, self.key, MixtureConfig, mixture=read_mixture(metadata, self.key))

    def tensors(self, c: MixtureConfig) -> Sequence[TensorSpec]:
        specs = model_tensors(c) + rope_tensors(c)
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += norm_tensors(b, c.embedding_length, "attn_norm", "ffn_norm")
            specs += attention_tensors(c, b)
            specs += expert_tensors(c, c.mixture, b) if c.mixture else feed_forward_tensors(c, b)
        return specs

    def build(self, c: MixtureConfig, g: GraphBuilder) -> None:
        rotate = rotation(c, g, "adjacent")
        with g.stage("embedding"):
            x = g.embed("token_embd.weight")
        for i in range(c.block_count):
            b = f"blk.{i}."
            with g.stage(f"blk.{i}"):
                x = g.add(x, attention(c, g, norm(c, g, x, b + "attn_norm"), b, rotate))
                h = norm(c, g, x, b + "ffn_norm")
                x = g.add(
                    x, mixture(c.mixture, g, h, b, normalise=True) if c.mixture else feed_forward(g, h, b)
                )
        with g.stage("head", rows="wanted"):
            g.logits(head(c, g, x))


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Llama()]
