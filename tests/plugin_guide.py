"""The examples of docs/plugins.md, as distributions that tests install."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ramforge_core.gguf import Metadata
from ramforge_core.testing.gguf_writer import write_gguf

DOCS = Path(__file__).resolve().parent.parent / "docs"
GUIDE = (DOCS / "plugins.md").read_text(encoding="utf-8")
MODULES = {match[1]: match[2] for match in re.finditer(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE, re.DOTALL)}


def manifests():
    """(distribution, group, key, module) of every example."""
    for block in re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL):
        name = re.search(r'^name = "(.+)"', block, re.MULTILINE)[1]
        group = re.search(r'\[project\.entry-points\."(.+)"\]', block)[1]
        key, module = re.search(r'\[project\.entry-points\.[^\]]+\]\n(\w+) = "(\w+)"', block).groups()
        yield name, group, key, module


def install_examples(site):
    """Install all examples of the guide."""
    for distribution, group, key, module in manifests():
        site.add(distribution, {group: {key: module}}, {module: MODULES[module]})


EXAMPLE = {
    "example.context_length": 64,
    "example.embedding_length": 64,
    "example.block_count": 2,
    "example.feed_forward_length": 96,
    "example.attention.head_count": 4,
    "example.attention.head_count_kv": 2,
    "example.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": [bytes([i]) for i in range(256)] + [b"<end>"],
}


def example_file(path, architecture):
    """A model with all weights in the example's format."""
    rng = np.random.default_rng(0)
    tensors = {}
    for spec in architecture.tensors(architecture.config(Metadata.from_dict(EXAMPLE))):
        blocks = rng.integers(0, 256, (int(np.prod(spec.shape)) // 32, 18), np.uint8)
        blocks[:, :2] = np.array([0.003], "<f2").view(np.uint8)
        tensors[spec.name] = (20, spec.shape, blocks.tobytes())
    metadata = {"general.architecture": "example", "tokenizer.ggml.model": "bytes", **EXAMPLE}
    return write_gguf(path, metadata, tensors)
