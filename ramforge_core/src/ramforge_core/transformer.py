"""What most decoder architectures have in common: configuration keys, tensors, and the usual parts of a block.

Not a base model: each architecture says how its blocks are put together, and takes from here what is as everywhere.
The parts use a bias or a norm where the file has its tensor, and ``tensors`` says which a file may have. Keys and
tensor names as in gguf-py's ``constants.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from attrs import frozen

from ramforge_core.architecture import ModelConfig, TensorSpec
from ramforge_core.errors import MetadataError, UnsupportedError
from ramforge_core.gguf import MetadataArray
from ramforge_core.graph import GraphBuilder, RopeScaling, Value

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata

Rotation = Callable[[Value], Value]
"""Builds the rotation of a value's heads."""

MAX_SIZE = 2**31 - 1
"""Of every width, count and context: what the int32 of backends and file formats holds."""

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the rotation's frequencies: how GGUF files carry Llama 3's scaling."""
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""The same for short and for long contexts, which is the scaling longrope."""


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


Config = TypeVar("Config", bound=TransformerConfig)


def read_transformer(
    metadata: Metadata,
    arch: str,
    make: Callable[..., Config] = TransformerConfig,  # type: ignore[assignment]
    *,
    eps_key: str = "attention.layer_norm_rms_epsilon",
    **more: Any,
) -> Config:
    """Read the keys ``<arch>.*``.

    make, more : the class of the configuration, if not `TransformerConfig`, and the fields that it adds.
    eps_key : where ``norm_eps`` is; layer norms have attention.layer_norm_epsilon.
    Required: context_length, embedding_length, block_count, feed_forward_length, attention.head_count,
    ``eps_key``. Defaults: attention.head_count_kv = head_count; attention.key_length and
    value_length = embedding_length / head_count; rope.dimension_count = key_length; rope.freq_base = 10000;
    vocab_size = length of the token list; rope.scaling.type = none.
    Raises MetadataError naming the key that is missing or senseless.
    """

    def size(name: str, default: int | None = None) -> int:
        key = f"{arch}.{name}"
        value = metadata.integer(key) if default is None else metadata.integer(key, default=default)
        if not 1 <= value <= MAX_SIZE:
            raise MetadataError(f"metadata key {key!r} is {value}, expected 1 to {MAX_SIZE}")
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
    return make(
        context_length=size("context_length"),
        embedding_length=embedding,
        block_count=size("block_count"),
        vocab_size=_vocab_size(metadata, arch),
        heads=heads,
        kv_heads=kv_heads,
        key_width=key_width,
        value_width=size("attention.value_length", max(embedding // heads, 1)),
        feed_forward_length=size("feed_forward_length"),
        norm_eps=positive(metadata, f"{arch}.{eps_key}"),
        rope_width=rope_width,
        rope_base=positive(metadata, f"{arch}.rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(metadata, arch),
        **more,
    )


def positive(metadata: Metadata, key: str, default: float | None = None) -> float:
    """A number above 0. Raises MetadataError, for a missing key too if there is no ``default``."""
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
    # files of Phi 3 say the multiplier and not the type
    usual = "longrope" if f"{key}.attn_factor" in metadata else "none"
    kind = metadata.text(f"{key}.type", default=usual)
    if kind == "none":
        # the key that files had before rope.scaling.type existed
        factor = positive(metadata, f"{arch}.rope.scale_linear", 1.0)
        return None if factor == 1.0 else RopeScaling("linear", factor)
    factor = positive(metadata, f"{key}.factor", 1.0)
    if kind == "linear":
        return None if factor == 1.0 else RopeScaling("linear", factor)
    original = metadata.integer(
        f"{key}.original_context_length", default=metadata.integer(f"{arch}.context_length")
    )
    if kind == "longrope":
        return RopeScaling("longrope", 1.0, original, positive(metadata, f"{key}.attn_factor", 1.0))
    if kind != "yarn":
        raise UnsupportedError(
            f"metadata key '{key}.type' is {kind!r}; supported: none, linear, longrope, yarn"
        )
    return RopeScaling(
        "yarn",
        factor,
        original_context=original,
        attention_factor=positive(metadata, f"{key}.attn_factor", 1.0) * (1 + 0.1 * math.log(factor)),
        beta_fast=positive(metadata, f"{key}.yarn_beta_fast", 32.0),
        beta_slow=positive(metadata, f"{key}.yarn_beta_slow", 1.0),
    )


# -- windows ----------------------------------------------------------------------------------------------------------


@frozen
class SlidingWindow:
    """Blocks that see only the last ``width`` positions: all but every ``period``-th, or those in ``pattern``."""

    width: int
    period: int
    pattern: tuple[bool, ...] | None = None

    def of(self, block: int) -> int | None:
        """Positions that a block sees; None for all."""
        local = (block + 1) % self.period != 0 if self.pattern is None else self.pattern[block]
        return self.width if local else None


def read_window(metadata: Metadata, arch: str, period: int, default: int = 0) -> SlidingWindow | None:
    """Read attention.sliding_window and attention.sliding_window_pattern (a period, or a flag for each block).

    period, default : where the file says no pattern, and no width. Returns None for a width of 0.
    Raises MetadataError.
    """
    width = metadata.integer(f"{arch}.attention.sliding_window", default=default)
    if width == 0:
        return None
    key = f"{arch}.attention.sliding_window_pattern"
    pattern = metadata.get(key)
    if isinstance(pattern, MetadataArray):
        flags, blocks = pattern.to_list(), metadata.integer(f"{arch}.block_count")
        if len(flags) < blocks or not all(isinstance(flag, (bool, int)) for flag in flags):
            raise MetadataError(
                f"metadata key {key!r} has {len(flags)} values, expected a flag for each of {blocks} blocks"
            )
        return SlidingWindow(width, 1, tuple(bool(flag) for flag in flags))
    period = metadata.integer(key, default=period)
    if not 0 <= width <= MAX_SIZE or period < 1:
        raise MetadataError(
            f"metadata keys '{arch}.attention.sliding_window' and {key!r} are {width} and {period}, expected at "
            f"least 1 and a window of at most {MAX_SIZE}"
        )
    return SlidingWindow(width, period)


# -- tensors ----------------------------------------------------------------------------------------------------------


def model_tensors(c: TransformerConfig) -> list[TensorSpec]:
    """Those of no block: token embeddings, the last norm, and the head where it is not the embeddings again."""
    D, V = c.embedding_length, c.vocab_size
    return [
        TensorSpec("token_embd.weight", (V, D)),
        TensorSpec("output_norm.weight", (D,)),
        TensorSpec("output.weight", (V, D), required=False),
    ]


def rope_tensors(c: TransformerConfig) -> list[TensorSpec]:
    """Divisors of the rotation's frequencies that a file may have."""
    shape = (c.rope_width // 2,)
    pair = (TensorSpec(n, shape, required=False, group="longrope") for n in (SHORT_FACTORS, LONG_FACTORS))
    return [TensorSpec(ROPE_FACTORS, shape, required=False), *pair]


def norm_tensors(b: str, width: int, *names: str) -> list[TensorSpec]:
    """Norm weights of block ``b``, a name with its dot ("blk.0.")."""
    return [TensorSpec(f"{b}{name}.weight", (width,)) for name in names]


def attention_tensors(c: TransformerConfig, b: str) -> list[TensorSpec]:
    """q, k and v with biases that a file has all or none of, and the output projection with one that it may have."""
    widths = {
        "q": c.heads * c.key_width,
        "k": c.kv_heads * c.key_width,
        "v": c.kv_heads * c.value_width,
    }
    return [
        *(TensorSpec(f"{b}attn_{p}.weight", (rows, c.embedding_length)) for p, rows in widths.items()),
        *(
            TensorSpec(f"{b}attn_{p}.bias", (rows,), required=False, group="q, k and v biases")
            for p, rows in widths.items()
        ),
        *output_tensors(c, b),
    ]


def output_tensors(c: TransformerConfig, b: str) -> list[TensorSpec]:
    """The output projection of an attention."""
    D = c.embedding_length
    return [
        TensorSpec(b + "attn_output.weight", (D, c.heads * c.value_width)),
        TensorSpec(b + "attn_output.bias", (D,), required=False, group="attention output biases"),
    ]


def feed_forward_tensors(c: TransformerConfig, b: str) -> list[TensorSpec]:
    """Gate, up and down, with biases that a file has all or none of."""
    D, F = c.embedding_length, c.feed_forward_length
    shapes = {"gate": (F, D), "up": (F, D), "down": (D, F)}
    return [
        *(TensorSpec(f"{b}ffn_{p}.weight", shape) for p, shape in shapes.items()),
        *(
            TensorSpec(f"{b}ffn_{p}.bias", shape[:1], required=False, group="feed-forward biases")
            for p, shape in shapes.items()
        ),
    ]


# -- parts of the graph -----------------------------------------------------------------------------------------------


def projection(g: GraphBuilder, x: Value, name: str) -> Value:
    """x times ``name.weight``, plus ``name.bias`` if the file has it."""
    bias = f"{name}.bias"
    return g.linear(x, f"{name}.weight", bias if g.has(bias) else None)


def norm(c: TransformerConfig, g: GraphBuilder, x: Value, name: str) -> Value:
    """The RMS norm of x with ``name.weight``."""
    return g.norm(x, f"{name}.weight", c.norm_eps)


def rotation(
    c: TransformerConfig, g: GraphBuilder, pairs: Literal["adjacent", "half"], **changes: Any
) -> Rotation:
    """The rotation that the configuration asks for. ``changes`` : other arguments of `GraphBuilder.rope`."""
    usual = {
        "head_width": c.key_width,
        "rotary_width": c.rope_width,
        "pairs": pairs,
        "base": c.rope_base,
        "scaling": c.rope_scaling,
        "factors": next((name for name in (SHORT_FACTORS, ROPE_FACTORS) if g.has(name)), None),
        "long_factors": LONG_FACTORS if g.has(LONG_FACTORS) else None,
    }
    return partial(g.rope, **{**usual, **changes})


def attention(
    c: TransformerConfig, g: GraphBuilder, x: Value, b: str, rotate: Rotation | None, **options: Any
) -> Value:
    """The attention of block ``b`` on its normed input. Arguments as of `attend`."""
    q, k, v = (projection(g, x, f"{b}attn_{p}") for p in "qkv")
    return attend(c, g, (q, k, v), b, rotate, **options)


def attend(
    c: TransformerConfig,
    g: GraphBuilder,
    qkv: tuple[Value, Value, Value],
    b: str,
    rotate: Rotation | None,
    **options: Any,
) -> Value:
    """The attention of block ``b`` from q, k and v on: norms of q and k, rotation, heads, output projection.

    A norm goes over each head or over all of q and k, whichever width its weight has.
    rotate : None in a block without positions. options : of `GraphBuilder.attention`; scale is key_width ** -0.5
    unless given.
    """

    def prepare(x: Value, name: str) -> Value:
        weight = f"{b}{name}.weight"
        if g.has(weight):
            x = g.norm(x, weight, c.norm_eps, group=g.shapes[weight][0])
        return rotate(x) if rotate else x

    q, k, v = qkv
    usual = {
        "heads": c.heads,
        "kv_heads": c.kv_heads,
        "key_width": c.key_width,
        "value_width": c.value_width,
        "scale": c.key_width**-0.5,
    }
    out = g.attention(prepare(q, "attn_q_norm"), prepare(k, "attn_k_norm"), v, **{**usual, **options})
    return projection(g, out, b + "attn_output")


def feed_forward(g: GraphBuilder, x: Value, b: str, act: Literal["silu", "gelu"] = "silu") -> Value:
    """The gated feed-forward part of block ``b`` on its normed input."""
    gate, up = projection(g, x, b + "ffn_gate"), projection(g, x, b + "ffn_up")
    return projection(g, g.glu(gate, up, act), b + "ffn_down")


def head(c: TransformerConfig, g: GraphBuilder, x: Value) -> Value:
    """The last norm and the logits; a file without a head of its own uses the token embeddings again."""
    x = norm(c, g, x, "output_norm")
    return g.linear(x, "output.weight" if g.has("output.weight") else "token_embd.weight")
