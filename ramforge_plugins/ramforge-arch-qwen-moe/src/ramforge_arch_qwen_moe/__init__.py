"""The architectures ``qwen2moe`` and ``qwen3moe``: tensors and graphs. The rotation works on half-split pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.errors import MetadataError
from ramforge_core.graph import GraphBuilder, Value
from ramforge_core.hookspecs import hookimpl
from ramforge_core.mixture import (
    Mixture,
    expert_tensors,
    mixture,
    read_mixture,
    shared_expert,
    shared_expert_tensors,
)
from ramforge_core.transformer import (
    TransformerConfig,
    attention,
    attention_tensors,
    head,
    model_tensors,
    norm_tensors,
    read_transformer,
    rotation,
)

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


@frozen(kw_only=True)
class QwenMoeConfig(TransformerConfig):
    """shared_width : inside the shared expert, 0 if there is none."""

    mixture: Mixture
    shared_width: int = 0


class Qwen3Moe(Architecture):
    """Qwen 3 with experts."""

    key = "qwen3moe"

    def config(self, metadata: Metadata) -> QwenMoeConfig:
        found = read_mixture(metadata, self.key)
        if found is None:
            raise MetadataError(f"metadata key '{self.key}.expert_count' is 0 or missing")
        return read_transformer(
            metadata, self.key, QwenMoeConfig, mixture=found, shared_width=self.shared_width(metadata)
        )

    def shared_width(self, metadata: Metadata) -> int:
        return 0

    def tensors(self, c: QwenMoeConfig) -> Sequence[TensorSpec]:
        specs = model_tensors(c)
        for b in (f"blk.{i}." for i in range(c.block_count)):
            specs += [
                *norm_tensors(b, c.embedding_length, "attn_norm", "ffn_norm"),
                *attention_tensors(c, b),
                *self.norms_of_heads(c, b),
                *expert_tensors(c, c.mixture, b),
            ]
            if c.shared_width:
                specs += shared_expert_tensors(c, c.shared_width, b)
                specs.append(TensorSpec(b + "ffn_gate_inp_shexp.weight", (1, c.embedding_length)))
        return specs

    def norms_of_heads(self, c: QwenMoeConfig, b: str) -> Sequence[TensorSpec]:
        return norm_tensors(b, c.key_width, "attn_q_norm", "attn_k_norm")

    def build(self, c: QwenMoeConfig, g: GraphBuilder) -> None:
        rotate = rotation(c, g, "half")
        with g.stage("embedding"):
            x = g.embed("token_embd.weight")
        for i in range(c.block_count):
            b = f"blk.{i}."
            with g.stage(f"blk.{i}"):
                x = g.add(x, attention(c, g, g.norm(x, b + "attn_norm.weight", c.norm_eps), b, rotate))
                x = g.add(x, self.experts(c, g, g.norm(x, b + "ffn_norm.weight", c.norm_eps), b))
        with g.stage("head", rows="wanted"):
            g.logits(head(c, g, x))

    def experts(self, c: QwenMoeConfig, g: GraphBuilder, x: Value, b: str) -> Value:
        return mixture(c.mixture, g, x, b, normalise=True)


class Qwen2Moe(Qwen3Moe):
    """Qwen 1.5 and 2 with experts, one of which every token goes through, as far as its gate lets it."""

    key = "qwen2moe"

    def shared_width(self, metadata: Metadata) -> int:
        name = f"{self.key}.expert_shared_feed_forward_length"
        width = metadata.integer(name)
        if width < 1:
            raise MetadataError(f"metadata key {name!r} is {width}, expected at least 1")
        return width

    def norms_of_heads(self, c: QwenMoeConfig, b: str) -> Sequence[TensorSpec]:
        return ()

    def experts(self, c: QwenMoeConfig, g: GraphBuilder, x: Value, b: str) -> Value:
        routed = mixture(c.mixture, g, x, b, normalise=False)
        gate = g.linear(x, b + "ffn_gate_inp_shexp.weight")
        return g.add(routed, g.gate(shared_expert(g, x, b), gate))


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [Qwen2Moe(), Qwen3Moe()]
