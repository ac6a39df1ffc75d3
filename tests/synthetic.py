"""Synthetic models: sound GGUF files of random quantized blocks, for tests of memory, disk and faults.

The text is nonsense, but scales are small, so that logits stay finite and every correct road gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from attrs import frozen

from ramforge_core.testing.gguf_writer import write_gguf

BLOCKS = {  # ggml type id, values and bytes of a block, offsets of its float16 scales
    "q4_k": (12, 256, 144, (0, 2)),
    "q6_k": (14, 256, 210, (208,)),
    "q8_0": (8, 32, 34, (0,)),
    "f16": (1, 1, 2, ()),
}


@frozen
class Sizes:
    """What a model's tensors follow from. ``tied``: no output.weight. Rows of the vocabulary need not be even.

    experts : in each layer, of which a token uses ``chosen``; 0 for none.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocab: int
    context: int = 4096
    quant: str = "q4_k"
    rich: str = "q6_k"
    tied: bool = False
    experts: int = 0
    chosen: int = 2


TINY = Sizes(layers=4, width=256, heads=4, kv_heads=2, feed_forward=768, vocab=515)
SMALL = Sizes(layers=8, width=512, heads=8, kv_heads=4, feed_forward=1536, vocab=4099)
LARGE = Sizes(layers=12, width=1536, heads=12, kv_heads=4, feed_forward=4608, vocab=16003, context=1024)
"""About 2 MB, 20 MB and 220 MB."""


def write_model(
    path: Path,
    sizes: Sizes = TINY,
    arch: str = "llama",
    *,
    shards: int = 1,
    seed: int = 1,
    eos: int = 2,
    template: str | None = None,
    alignment: int = 32,
) -> Path:
    """Write a model of ``sizes``; with ``shards`` a split one. Returns the file, or the first shard.

    Tensors lie in the order in which llama.cpp's converter writes them, which is not the order of use.
    """
    rng = np.random.default_rng(seed)
    tensors = dict(_tensors(sizes, arch, rng))
    metadata = _metadata(sizes, arch, eos)
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    if shards == 1:
        return write_gguf(path, metadata, tensors, alignment=alignment)
    names = list(tensors)
    cuts = [round(i * len(names) / shards) for i in range(shards + 1)]
    paths = []
    for i, (first, end) in enumerate(pairwise(cuts)):
        part = {n: tensors[n] for n in names[first:end]}
        split = {"split.no": i, "split.count": shards, "split.tensors.count": len(names)}
        name = path.with_name(f"{path.stem}-{i + 1:05d}-of-{shards:05d}.gguf")
        kinds = {"split.no": "uint16", "split.count": "uint16", "split.tensors.count": "int32"}
        paths.append(write_gguf(name, (metadata if i == 0 else {}) | split, part, kinds=kinds))
    return paths[0]


def _metadata(s: Sizes, arch: str, eos: int) -> dict[str, object]:
    pieces = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{i:02X}>".encode() for i in range(256)]
    pieces += [f"\u2581w{i}".encode() for i in range(len(pieces), s.vocab)]
    types = [2, 3, 3] + [6] * 256 + [1] * (s.vocab - 259)
    keys = {
        "context_length": s.context,
        "embedding_length": s.width,
        "block_count": s.layers,
        "feed_forward_length": s.feed_forward,
        "attention.head_count": s.heads,
        "attention.head_count_kv": s.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    if s.experts:
        keys |= {"expert_count": s.experts, "expert_used_count": s.chosen}
    return {
        "general.architecture": arch,
        "general.name": "synthetic",
        **{f"{arch}.{key}": value for key, value in keys.items()},
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": np.array(
            [0.0] * 3 + [-1.0] * 256 + [-float(i) for i in range(s.vocab - 259)], np.float32
        ),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": eos,
    }


def _tensors(
    s: Sizes, arch: str, rng: np.random.Generator
) -> Iterator[tuple[str, tuple[int, tuple[int, ...], bytes]]]:
    head = s.width // s.heads

    def matrix(name: str, rows: int, columns: int, quant: str = s.quant):
        ggml_type, values, nbytes, scales = BLOCKS[quant]
        if quant == "f16":
            data = rng.standard_normal((rows, columns)).astype(np.float16) * np.float16(0.3 / columns**0.5)
            return name, (ggml_type, (rows, columns), data.tobytes())
        blocks = rng.integers(0, 256, (rows * columns // values, nbytes), np.uint8)
        scale = np.array([0.5 / columns**0.5 / (127 if quant == "q8_0" else 32)], np.float16).view(np.uint8)
        for at in scales:
            blocks[:, at : at + 2] = scale
        return name, (ggml_type, (rows, columns), blocks.tobytes())

    def experts(name: str, rows: int, columns: int, quant: str = s.quant):
        name, (ggml_type, shape, data) = matrix(name, s.experts * rows, columns, quant)
        return name, (ggml_type, (s.experts, rows, shape[1]), data)

    def vector(name: str, width: int, around: float):
        values = around + 0.1 * rng.standard_normal(width)
        return name, (0, (width,), values.astype(np.float32).tobytes())

    yield matrix("token_embd.weight", s.vocab, s.width, s.rich if s.tied else s.quant)
    for b in (f"blk.{i}." for i in range(s.layers)):
        yield vector(b + "attn_norm.weight", s.width, 1)
        if s.experts:
            router = rng.standard_normal((s.experts, s.width)).astype(np.float32)
            yield b + "ffn_gate_inp.weight", (0, router.shape, router.tobytes())
            yield experts(b + "ffn_gate_exps.weight", s.feed_forward, s.width)
            yield experts(b + "ffn_up_exps.weight", s.feed_forward, s.width)
            yield experts(b + "ffn_down_exps.weight", s.width, s.feed_forward, s.rich)
        else:
            yield matrix(b + "ffn_down.weight", s.width, s.feed_forward, s.rich)
            yield matrix(b + "ffn_gate.weight", s.feed_forward, s.width)
            yield matrix(b + "ffn_up.weight", s.feed_forward, s.width)
        yield vector(b + "ffn_norm.weight", s.width, 1)
        if arch == "qwen2":
            yield vector(b + "attn_k.bias", s.kv_heads * head, 0)
        yield matrix(b + "attn_k.weight", s.kv_heads * head, s.width)
        yield matrix(b + "attn_output.weight", s.width, s.width)
        if arch == "qwen2":
            yield vector(b + "attn_q.bias", s.width, 0)
        yield matrix(b + "attn_q.weight", s.width, s.width)
        if arch == "qwen2":
            yield vector(b + "attn_v.bias", s.kv_heads * head, 0)
        yield matrix(b + "attn_v.weight", s.kv_heads * head, s.width, s.rich)
    yield vector("output_norm.weight", s.width, 1)
    if not s.tied:
        yield matrix("output.weight", s.vocab, s.width, s.rich)
