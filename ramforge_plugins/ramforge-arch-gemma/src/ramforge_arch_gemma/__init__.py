"""The architectures ``gemma2`` and ``gemma3``: tensors and graph. The rotation works on half-split pairs.

Embeddings are scaled by the root of their width, attention and feed-forward part are normed before and after. Norm
weights are used as they are: the converter has added the 1 that Gemma's own checkpoints leave out.
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
class GemmaConfig(TransformerConfig):
    """wide_scale : whether scores are scaled by the width of the model over its heads, not by that of a head.

    window, local_rope_base : of the blocks that see a sliding window.
    score_softcap, logit_softcap : None for none.
    """

    window: SlidingWindow | None
    local_rope_base: float
    score_softcap: float | None
    logit_softcap: float | None
    wide_scale: bool

    @property
    def scale(self) -> float:
        width = max(self.embedding_length // self.heads, 1) if self.wide_scale else self.key_width
        return float(width**-0.5)


class Gemma2(Architecture):
    """Gemma 2. Files say neither the pattern of its windows nor that the 27B model scales its scores otherwise."""

    key = "gemma2"

    def config(self, metadata: Metadata) -> GemmaConfig:
        return read_transformer(
            metadata,
            self.key,
            GemmaConfig,
            window=read_window(metadata, self.key, period=2, default=4096),
            local_rope_base=positive(metadata, "gemma2.rope.freq_base", 10000.0),
            score_softcap=_softcap(metadata, "gemma2.attn_logit_softcapping", 50.0),
            logit_softcap=_softcap(metadata, "gemma2.final_logit_softcapping", 30.0),
            wide_scale=metadata.integer("gemma2.block_count") == 46,  # as in llama.cpp
        )

    def tensors(self, c: GemmaConfig) -> Sequence[TensorSpec]:
        specs = model_tensors(c)
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += norm_tensors(b, c.embedding_length, "attn_norm", "post_attention_norm")
            specs += attention_tensors(c, b)
            specs += norm_tensors(b, c.embedding_length, "ffn_norm", "post_ffw_norm")
            specs += feed_forward_tensors(c, b)
        return specs

    def build(self, c: GemmaConfig, g: GraphBuilder) -> None:
        everywhere = rotation(c, g, "half")
        nearby = rotation(c, g, "half", base=c.local_rope_base, scaling=None)
        with g.stage("embedding"):
            x = g.scale(g.embed("token_embd.weight"), c.embedding_length**0.5)
        for i in range(c.block_count):
            b, window = f"blk.{i}.", c.window.of(i) if c.window else None
            rotate = nearby if window else everywhere
            options = {"scale": c.scale, "window": window, "softcap": c.score_softcap}
            with g.stage(f"blk.{i}"):
                a = attention(c, g, norm(c, g, x, b + "attn_norm"), b, rotate, **options)
                x = g.add(x, norm(c, g, a, b + "post_attention_norm"))
                f = feed_forward(g, norm(c, g, x, b + "ffn_norm"), b, "gelu")
                x = g.add(x, norm(c, g, f, b + "post_ffw_norm"))
        with g.stage("head", rows="wanted"):
            logits = head(c, g, x)
            g.logits(g.softcap(logits, c.logit_softcap) if c.logit_softcap else logits)


class Gemma3(Gemma2):
    """Gemma 3: norms of q and k; other windows and rotations."""

    key = "gemma3"

    def config(self, metadata: Metadata) -> GemmaConfig:
        return read_transformer(
            metadata,
            self.key,
            GemmaConfig,
            window=read_window(metadata, self.key, period=6),
            local_rope_base=positive(metadata, "gemma3.rope.freq_base_swa", 10000.0),
            score_softcap=None,
            logit_softcap=_softcap(metadata, "gemma3.final_logit_softcapping", 0.0),
            wide_scale=metadata.integer("gemma3.block_count") == 62,  # the 27B model, as in llama.cpp
        )

    def tensors(self, c: GemmaConfig) -> Sequence[TensorSpec]:
        specs = list(super().tensors(c))
        for i in range(c.block_count):
            specs += norm_tensors(f"blk.{i}.", c.key_width, "attn_q_norm", "attn_k_norm")
        return specs


def _softcap(metadata: Metadata, key: str, default: float) -> float | None:
    return None if metadata.number(key, default=default) == 0 else positive(metadata, key, default)


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Gemma2(), Gemma3()]
