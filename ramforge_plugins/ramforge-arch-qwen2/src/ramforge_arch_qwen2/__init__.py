"""The architecture ``qwen2``: tensors and graph. The rotation works on half-split pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.graph import GraphBuilder, Value
from ramforge_core.hookspecs import hookimpl
from ramforge_core.transformer import TransformerConfig, read_transformer

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


class Qwen2(Architecture):
    """Qwen 2 and 2.5."""

    key = "qwen2"

    def config(self, metadata: Metadata) -> TransformerConfig:
        return read_transformer(metadata, self.key)

    def tensors(self, c: TransformerConfig) -> Sequence[TensorSpec]:
        D, F, V = c.embedding_length, c.feed_forward_length, c.vocab_size
        projections = {
            "q": c.heads * c.key_width,
            "k": c.kv_heads * c.key_width,
            "v": c.kv_heads * c.value_width,
        }
        specs = [
            TensorSpec("token_embd.weight", (V, D)),
            TensorSpec("output_norm.weight", (D,)),
            TensorSpec("output.weight", (V, D), required=False),
        ]
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += [TensorSpec(f"{b}attn_{p}.weight", (rows, D)) for p, rows in projections.items()]
            specs += [
                TensorSpec(f"{b}attn_{p}.bias", (rows,), required=False, group="q, k and v biases")
                for p, rows in projections.items()
            ]
            specs += [
                TensorSpec(b + "attn_norm.weight", (D,)),
                TensorSpec(b + "attn_output.weight", (D, c.heads * c.value_width)),
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
    h = g.norm(x, b + "attn_norm.weight", c.norm_eps)

    def project(name: str) -> Value:
        bias = f"{b}attn_{name}.bias"
        return g.linear(h, f"{b}attn_{name}.weight", bias if g.has(bias) else None)

    def rope(x: Value) -> Value:
        return g.rope(
            x,
            head_width=c.key_width,
            rotary_width=c.rope_width,
            pairs="half",
            base=c.rope_base,
            scaling=c.rope_scaling,
        )

    out = g.attention(
        rope(project("q")),
        rope(project("k")),
        project("v"),
        heads=c.heads,
        kv_heads=c.kv_heads,
        key_width=c.key_width,
        value_width=c.value_width,
        scale=c.key_width**-0.5,
    )
    return g.linear(out, b + "attn_output.weight")


def _feed_forward(c: TransformerConfig, g: GraphBuilder, x: Value, b: str) -> Value:
    h = g.norm(x, b + "ffn_norm.weight", c.norm_eps)
    gate, up = g.linear(h, b + "ffn_gate.weight"), g.linear(h, b + "ffn_up.weight")
    return g.linear(g.glu(gate, up, "silu"), b + "ffn_down.weight")


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Qwen2()]
