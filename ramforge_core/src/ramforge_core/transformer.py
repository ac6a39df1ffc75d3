"""What most decoder architectures have in common: the configuration keys of GGUF and their meaning.

Not a base model: each architecture says its own tensors and graph. Keys as in gguf-py's ``constants.py``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attrs import frozen

from ramforge_core.architecture import ModelConfig
from ramforge_core.errors import MetadataError, UnsupportedError
from ramforge_core.gguf import MetadataArray
from ramforge_core.graph import RopeScaling

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata


@frozen(kw_only=True)
class TransformerConfig(ModelConfig):
    """Sizes of a decoder whose blocks are all alike.

    heads, kv_heads : query heads, and the key/value heads that groups of them share.
    key_width, value_width : width of a head's keys (and queries) and of its values.
    feed_forward_length : width inside the feed-forward part.
    norm_eps : added under the root of the RMS norm.
    rope_width : values of a head that are rotated.
    """

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    feed_forward_length: int
    norm_eps: float
    rope_width: int
    rope_base: float
    rope_scaling: RopeScaling | None


def read_transformer(metadata: Metadata, arch: str) -> TransformerConfig:
    """Read the keys ``<arch>.*``.

    Required: context_length, embedding_length, block_count, feed_forward_length, attention.head_count,
    attention.layer_norm_rms_epsilon. Defaults: attention.head_count_kv = head_count; attention.key_length and
    value_length = embedding_length / head_count; rope.dimension_count = key_length; rope.freq_base = 10000;
    vocab_size = length of the token list; rope.scaling.type = none.
    Raises MetadataError naming the key that is missing or senseless.
    """

    def size(name: str, default: int | None = None) -> int:
        key = f"{arch}.{name}"
        value = metadata.integer(key) if default is None else metadata.integer(key, default=default)
        if value < 1:
            raise MetadataError(f"metadata key {key!r} is {value}, expected at least 1")
        return value

    embedding, heads = size("embedding_length"), size("attention.head_count")
    kv_heads = size("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise MetadataError(
            f"metadata key '{arch}.attention.head_count' is {heads}, "
            f"not a multiple of '{arch}.attention.head_count_kv' = {kv_heads}"
        )
    key_width = size("attention.key_length", max(embedding // heads, 1))
    rope_width = size("rope.dimension_count", key_width)
    if rope_width > key_width or rope_width % 2:
        raise MetadataError(
            f"metadata key '{arch}.rope.dimension_count' is {rope_width}, "
            f"expected an even number up to the head width {key_width}"
        )
    return TransformerConfig(
        context_length=size("context_length"),
        embedding_length=embedding,
        block_count=size("block_count"),
        vocab_size=_vocab_size(metadata, arch),
        heads=heads,
        kv_heads=kv_heads,
        key_width=key_width,
        value_width=size("attention.value_length", max(embedding // heads, 1)),
        feed_forward_length=size("feed_forward_length"),
        norm_eps=_positive(metadata, f"{arch}.attention.layer_norm_rms_epsilon"),
        rope_width=rope_width,
        rope_base=_positive(metadata, f"{arch}.rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(metadata, arch),
    )


def _positive(metadata: Metadata, key: str, default: float | None = None) -> float:
    value = metadata.number(key) if default is None else metadata.number(key, default=default)
    if not (math.isfinite(value) and value > 0):
        raise MetadataError(f"metadata key {key!r} is {value}, expected a number above 0")
    return value


def _vocab_size(metadata: Metadata, arch: str) -> int:
    key = f"{arch}.vocab_size"
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, MetadataArray):
        return metadata.integer(key, default=len(tokens))
    size = metadata.integer(key, default=0)
    if size < 1:
        raise MetadataError(f"metadata keys {key!r} and 'tokenizer.ggml.tokens' say no vocabulary size")
    return size


def _rope_scaling(metadata: Metadata, arch: str) -> RopeScaling | None:
    key = f"{arch}.rope.scaling"
    kind = metadata.text(f"{key}.type", default="none")
    if kind == "none":
        # the key that files had before rope.scaling.type existed
        factor = _positive(metadata, f"{arch}.rope.scale_linear", 1.0)
        return None if factor == 1.0 else RopeScaling("linear", factor)
    factor = _positive(metadata, f"{key}.factor", 1.0)
    if kind == "linear":
        return None if factor == 1.0 else RopeScaling("linear", factor)
    if kind != "yarn":
        raise UnsupportedError(f"metadata key '{key}.type' is {kind!r}; supported: none, linear, yarn")
    return RopeScaling(
        "yarn",
        factor,
        original_context=metadata.integer(
            f"{key}.original_context_length", default=metadata.integer(f"{arch}.context_length")
        ),
        attention_factor=_positive(metadata, f"{key}.attn_factor", 1.0) * (1 + 0.1 * math.log(factor)),
        beta_fast=_positive(metadata, f"{key}.yarn_beta_fast", 32.0),
        beta_slow=_positive(metadata, f"{key}.yarn_beta_slow", 1.0),
    )
