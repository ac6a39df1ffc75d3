"""Target: the header of one file, read and shown, whatever its bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fuzz.target import folder
from ramforge_core.errors import RamforgeError
from ramforge_core.gguf import MetadataArray, open_gguf
from ramforge_core.inspection import inspect, render
from ramforge_core.plugins import Registry
from ramforge_core.testing.gguf_writer import gguf_bytes

REGISTRY = Registry(())


def seeds() -> Iterator[bytes]:
    keys = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "a.flag": True,
        "a.float": 0.5,
        "a.nested": [[1, 2], [3]],
        "a.flags": [True, False],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "bb", "<|im_end|>"],
        "tokenizer.ggml.scores": [0.5, -1.0, 2.0],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
        "llama.rope.scaling.type": "yarn",
        "llama.block_count": 1,
    }
    tensors = {
        "token_embd.weight": (8, (3, 32), bytes(3 * 34)),
        "blk.0.attn_q.weight": (0, (2, 4), bytes(32)),
    }
    yield gguf_bytes(keys, tensors)
    yield gguf_bytes(keys, kinds={"general.alignment": "uint64"})
    yield gguf_bytes({"split.no": 0, "split.count": 2, "a": [["x"], ["y", "z"]], "b": [1.5] * 40}, version=2)
    for key, value in keys.items():
        yield gguf_bytes({key: value}, dict(list(tensors.items())[:1]))


def check(data: bytes) -> None:
    with folder() as place:
        path = place / "model.gguf"
        path.write_bytes(data)
        try:
            gguf = open_gguf(path)
        except RamforgeError:
            pass
        else:
            for key, value in gguf.metadata.items():
                if isinstance(value, MetadataArray) and len(value.to_list()) != len(value):
                    raise AssertionError(f"array {key} has another length than it says")
            for info in gguf.tensors.values():
                if not 0 <= info.offset < info.end <= len(data) or info.offset % gguf.alignment:
                    raise AssertionError(f"tensor {info.name} lies outside the file")
        report = inspect(path, REGISTRY)
        if not render(report).replace("\n", "").isprintable():
            raise AssertionError("the report holds control characters")
        json.dumps(report.to_dict(), allow_nan=False)
