"""The architecture ``deepseek2``: tensors and graph. The rotation works on adjacent pairs.

Keys and values of all heads are made from one short vector for each token, the latent. Nothing but the latent and one
rotated key is stored: queries are brought to the latent's side (attn_k_b), and what is attended is brought back
(attn_v_b). So to the cache this is one key/value head whose values are the first part of its keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from attrs import evolve, frozen

from ramforge_core.architecture import Architecture, TensorSpec
from ramforge_core.errors import MetadataError, UnsupportedError
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
    feed_forward,
    feed_forward_tensors,
    head,
    model_tensors,
    norm,
    norm_tensors,
    positive,
    read_transformer,
    rotation,
)

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata

KEY = "deepseek2"
SCORES: Mapping[int, Literal["softmax", "sigmoid"]] = {0: "softmax", 1: "softmax", 2: "sigmoid"}
"""By expert_gating_func, 0 for a file that does not say (gguf-py, ``ExpertGatingFuncType``)."""


@frozen(kw_only=True)
class DeepSeekConfig(TransformerConfig):
    """key_width, value_width : of the cache, rope_width + latent and latent.

    plain_width, head_value_width : of a head, its key without the rotated part and its value.
    query_latent : width that queries are compressed to, 0 if they are not. scale : of scores.
    dense_blocks : the first ones, without experts. shared_width : of the shared experts together.
    """

    mixture: Mixture
    plain_width: int
    head_value_width: int
    query_latent: int
    scale: float
    dense_blocks: int
    shared_width: int
    scores: Literal["softmax", "sigmoid"]
    normalise: bool
    routed_scale: float

    @property
    def latent(self) -> int:
        return self.value_width


class DeepSeek2(Architecture):
    """DeepSeek V2 and its kin."""

    key = KEY

    def config(self, metadata: Metadata) -> DeepSeekConfig:
        experts = read_mixture(metadata, KEY)
        if experts is None:
            raise MetadataError(f"metadata key '{KEY}.expert_count' is 0 or missing")
        if (groups := metadata.integer(f"{KEY}.expert_group_count", default=1)) > 1:
            raise UnsupportedError(
                f"metadata key '{KEY}.expert_group_count' is {groups}: experts cannot be in groups yet"
            )
        gating = metadata.integer(f"{KEY}.expert_gating_func", default=0)
        if (scores := SCORES.get(gating)) is None:
            raise UnsupportedError(
                f"metadata key '{KEY}.expert_gating_func' is {gating}: expected 1 (softmax) or 2 (sigmoid)"
            )
        names = ("attention.key_length_mla", "attention.value_length_mla", "attention.kv_lora_rank")
        key, value, latent = (_size(metadata, name) for name in names)
        c = read_transformer(
            metadata,
            KEY,
            DeepSeekConfig,
            mixture=experts,
            plain_width=0,
            head_value_width=value,
            query_latent=metadata.integer(f"{KEY}.attention.q_lora_rank", default=0),
            scale=key**-0.5,
            dense_blocks=metadata.integer(f"{KEY}.leading_dense_block_count", default=0),
            shared_width=metadata.integer(f"{KEY}.expert_shared_count", default=0) * experts.width,
            scores=scores,
            normalise=bool(metadata.get(f"{KEY}.expert_weights_norm")),
            routed_scale=positive(metadata, f"{KEY}.expert_weights_scale", 1.0),
        )
        if (c.kv_heads, c.key_width, c.value_width) != (
            1,
            latent + c.rope_width,
            latent,
        ) or key <= c.rope_width:
            raise MetadataError(
                f"metadata keys '{KEY}.attention.head_count_kv', '{KEY}.attention.key_length' and "
                f"'{KEY}.attention.value_length' are {c.kv_heads}, {c.key_width} and {c.value_width}; "
                f"expected 1, {latent + c.rope_width} and {latent}, since kv_lora_rank is {latent} and "
                f"'{KEY}.rope.dimension_count' {c.rope_width}"
            )
        c = evolve(c, plain_width=key - c.rope_width)
        if c.rope_scaling is None or c.rope_scaling.kind != "yarn":
            return c
        # yarn stretches the scores here, and cos and sin stay as they are (llama.cpp, src/models/deepseek2.cpp)
        stretch = 1 + metadata.number(f"{KEY}.rope.scaling.yarn_log_multiplier", default=0.0) * math.log(
            c.rope_scaling.factor
        )
        return evolve(
            c, scale=c.scale * stretch**2, rope_scaling=evolve(c.rope_scaling, attention_factor=1.0)
        )

    def tensors(self, c: DeepSeekConfig) -> Sequence[TensorSpec]:
        D, H, query = c.embedding_length, c.heads, c.heads * (c.plain_width + c.rope_width)
        specs = model_tensors(c)
        for i in range(c.block_count):
            b = f"blk.{i}."
            specs += norm_tensors(b, D, "attn_norm", "ffn_norm")
            if c.query_latent:
                specs += norm_tensors(b, c.query_latent, "attn_q_a_norm")
                specs.append(TensorSpec(b + "attn_q_a.weight", (c.query_latent, D)))
                specs.append(TensorSpec(b + "attn_q_b.weight", (query, c.query_latent)))
            else:
                specs.append(TensorSpec(b + "attn_q.weight", (query, D)))
            specs += norm_tensors(b, c.latent, "attn_kv_a_norm")
            specs += [
                TensorSpec(b + "attn_kv_a_mqa.weight", (c.key_width, D)),
                TensorSpec(b + "attn_k_b.weight", (H, c.latent, c.plain_width)),
                TensorSpec(b + "attn_v_b.weight", (H, c.head_value_width, c.latent)),
                TensorSpec(b + "attn_output.weight", (D, H * c.head_value_width)),
            ]
            if i < c.dense_blocks:
                specs += feed_forward_tensors(c, b)
                continue
            specs += expert_tensors(c, c.mixture, b)
            specs.append(TensorSpec(b + "exp_probs_b.bias", (c.mixture.experts,), required=False))
            if c.shared_width:
                specs += shared_expert_tensors(c, c.shared_width, b)
        return specs

    def build(self, c: DeepSeekConfig, g: GraphBuilder) -> None:
        with g.stage("embedding"):
            x = g.embed("token_embd.weight")
        for i in range(c.block_count):
            b = f"blk.{i}."
            with g.stage(f"blk.{i}"):
                x = g.add(x, _attention(c, g, norm(c, g, x, b + "attn_norm"), b))
                h = norm(c, g, x, b + "ffn_norm")
                x = g.add(x, feed_forward(g, h, b) if i < c.dense_blocks else _experts(c, g, h, b))
        with g.stage("head", rows="wanted"):
            g.logits(head(c, g, x))


def _attention(c: DeepSeekConfig, g: GraphBuilder, x: Value, b: str) -> Value:
    rotate = rotation(c, g, "adjacent", head_width=c.rope_width)
    if c.query_latent:
        q = norm(c, g, g.linear(x, b + "attn_q_a.weight"), b + "attn_q_a_norm")
        q = g.linear(q, b + "attn_q_b.weight")
    else:
        q = g.linear(x, b + "attn_q.weight")
    plain = g.head_linear(g.slice(q, 0, c.plain_width, c.heads), b + "attn_k_b.weight")
    turned = rotate(g.slice(q, c.plain_width, c.rope_width, c.heads))
    kv = g.linear(x, b + "attn_kv_a_mqa.weight")
    latent = norm(c, g, g.slice(kv, 0, c.latent), b + "attn_kv_a_norm")
    key = rotate(g.slice(kv, c.latent, c.rope_width))
    out = g.attention(
        g.join(plain, turned, c.heads),
        g.join(latent, key),
        latent,
        heads=c.heads,
        kv_heads=1,
        key_width=c.key_width,
        value_width=c.latent,
        scale=c.scale,
    )
    return g.linear(g.head_linear(out, b + "attn_v_b.weight"), b + "attn_output.weight")


def _experts(c: DeepSeekConfig, g: GraphBuilder, x: Value, b: str) -> Value:
    bias = b + "exp_probs_b.bias"
    routed = mixture(
        c.mixture,
        g,
        x,
        b,
        normalise=c.normalise,
        scores=c.scores,
        scale=c.routed_scale,
        bias=bias if g.has(bias) else None,
    )
    return g.add(routed, shared_expert(g, x, b)) if c.shared_width else routed


def _size(metadata: Metadata, name: str) -> int:
    key = f"{KEY}.{name}"
    value = metadata.integer(key)
    if value < 1:
        raise MetadataError(f"metadata key {key!r} is {value}, expected at least 1")
    return value


@hookimpl
def ramforge_architectures() -> Sequence[Architecture]:
    return [DeepSeek2()]
