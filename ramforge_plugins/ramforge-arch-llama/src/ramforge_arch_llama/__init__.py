"""The architecture ``llama``: tensors and graph.

The files hold q and k permuted, so that the rotation works on adjacent pairs (llama.cpp, llama_model_rope_type).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.errors import UnsupportedError
from ramforge_core.graph import GraphBuilder, Value
from ramforge_core.hookspecs import hookimpl
from ramforge_core.transformer import TransformerConfig, read_transformer

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata

ROPE_FACTORS = "rope_freqs.weight"
"""Per-dimension divisors of the rotation frequencies: how GGUF files carry llama3's rope scaling."""


class Llama(Architecture):
    """Llama, Mistral, SmolLM and their kin."""

    key = "llama"

    def config(self, metadata: Metadata) -> TransformerConfig:
        if experts := metadata.integer("llama.expert_count", default=0):
            raise UnsupportedError(
                f"metadata key 'llama.expert_count' is {experts}: mixtures of experts cannot run yet"
            )
        return read_transformer(metadata, self.key)

    def tensors(self, c: TransformerConfig) -> Sequence[TensorSpec]:
        D, F, V = c.embedding_length, c.feed_forward_length, c.vocab_size
        Q, K, A = c.heads * c.key_width, c.kv_heads * c.key_width, c.heads * c.value_width
        specs = [
            TensorSpec("token_embd.weight", (V, D)),
            TensorSpec("output_norm.weight", (D,)),
            TensorSpec("output.weight", (V, D), required=False),
            TensorSpec(ROPE_FACTORS, (c.rope_width // 2,), required=False),
        ]
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += [
                TensorSpec(b + "attn_norm.weight", (D,)),
                TensorSpec(b + "attn_q.weight", (Q, D)),
                TensorSpec(b + "attn_k.weight", (K, D)),
                TensorSpec(b + "attn_v.weight", (c.kv_heads * c.value_width, D)),
                TensorSpec(b + "attn_output.weight", (D, A)),
                TensorSpec(b + "attn_q.bias", (Q,), required=False, group="attention biases"),
                TensorSpec(b + "attn_k.bias", (K,), required=False, group="attention biases"),
                TensorSpec(
                    b + "attn_v.bias", (c.kv_heads * c.value_width,), required=False, group="attention biases"
                ),
                TensorSpec(b + "attn_output.bias", (D,), required=False, group="attention output biases"),
                TensorSpec(b + "ffn_norm.weight", (D,)),
                TensorSpec(b + "ffn_gate.weight", (F, D)),
                TensorSpec(b + "ffn_up.weight", (F, D)),
                TensorSpec(b + "ffn_down.weight", (D, F)),
            ]
        return specs

    def build(self, c: TransformerConfig, g: GraphBuilder) -> None:
        with g.stage("embedding"):
            x = g.embed("token_embd.weight")
        for i in range(c.block_count):
            with g.stage(f"blk.{i}"):
                x = g.add(x, _attention(c, g, x, f"blk.{i}."))
                x = g.add(x, _feed_forward(c, g, x, f"blk.{i}."))
        with g.stage("head", rows="wanted"):
            x = g.norm(x, "output_norm.weight", c.norm_eps)
            tied = not g.has("output.weight")
            g.logits(g.linear(x, "token_embd.weight" if tied else "output.weight"))


def _attention(c: TransformerConfig, g: GraphBuilder, x: Value, b: str) -> Value:
    def linear(x: Value, name: str) -> Value:
        bias = f"{b}{name}.bias"
        return g.linear(x, f"{b}{name}.weight", bias if g.has(bias) else None)

    def rope(x: Value) -> Value:
        return g.rope(
            x,
            head_width=c.key_width,
            rotary_width=c.rope_width,
            pairs="adjacent",
            base=c.rope_base,
            scaling=c.rope_scaling,
            factors=ROPE_FACTORS if g.has(ROPE_FACTORS) else None,
        )

    h = g.norm(x, b + "attn_norm.weight", c.norm_eps)
    out = g.attention(
        rope(linear(h, "attn_q")),
        rope(linear(h, "attn_k")),
        linear(h, "attn_v"),
        heads=c.heads,
        kv_heads=c.kv_heads,
        key_width=c.key_width,
        value_width=c.value_width,
        scale=c.key_width**-0.5,
    )
    return linear(out, "attn_output")


def _feed_forward(c: TransformerConfig, g: GraphBuilder, x: Value, b: str) -> Value:
    h = g.norm(x, b + "ffn_norm.weight", c.norm_eps)
    gate, up = g.linear(h, b + "ffn_gate.weight"), g.linear(h, b + "ffn_up.weight")
    return g.linear(g.glu(gate, up, "silu"), b + "ffn_down.weight")


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Llama()]
