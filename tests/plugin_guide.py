"""The examples of docs/plugins.md and its pages, as distributions that tests install."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ramforge_core.gguf import Metadata
from ramforge_core.testing.gguf_writer import write_gguf

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = (DOCS / "plugins.md", *sorted((DOCS / "plugins").glob("*.md")))
GUIDE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
FILE = re.compile(r"```python\n# ((?:tests/)?(\w+)\.py)\n(.*?)```", re.DOTALL)
"""A file of an example: its path in the example's folder, its name as a module, its text."""
MODULES = {match[2]: match[3] for match in FILE.finditer(GUIDE)}
"""By name, the modules that are the plugins and their tests."""
COPIES = {
    match[1]: match[2]
    for match in re.finditer(r"```\w+\n(?:#|//) (examples/\S+)\n(.*?)```", GUIDE, re.DOTALL)
}
"""By path in the repository, files that a page shows."""


def manifests():
    """(distribution, group, key, module) of every example."""
    for block in re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL):
        name = re.search(r'^name = "(.+)"', block, re.MULTILINE)[1]
        group = re.search(r'\[project\.entry-points\."(.+)"\]', block)[1]
        key, module = re.search(r'\[project\.entry-points\.[^\]]+\]\n([\w-]+) = "(\w+)"', block).groups()
        yield name, group, key, module


def install_examples(site):
    """Install all examples of the guide."""
    for distribution, group, key, module in manifests():
        site.add(distribution, {group: {key: module}}, {module: MODULES[module]})


SIZES = {
    "context_length": 64,
    "embedding_length": 256,
    "block_count": 2,
    "feed_forward_length": 512,
    "attention.head_count": 8,
    "attention.head_count_kv": 4,
    "attention.layer_norm_epsilon": 1e-5,
    "logit_scale": 0.0625,
}
EXAMPLE = {
    **{f"command-r.{name}": value for name, value in SIZES.items()},
    "tokenizer.ggml.tokens": [bytes([i]) for i in range(256)] + [b"<end>"],
}


def example_file(path, architecture):
    """A model of the example's architecture with all weights in the example's format."""
    rng = np.random.default_rng(0)
    tensors = {}
    config = architecture.config(Metadata.from_dict(EXAMPLE))
    for spec in (s for s in architecture.tensors(config) if s.required):
        blocks = rng.integers(0, 256, (int(np.prod(spec.shape)) // 256, 66), np.uint8)
        blocks[:, 64:] = np.array([0.05], "<f2").view(np.uint8)
        tensors[spec.name] = (35, spec.shape, blocks.tobytes())
    metadata = {"general.architecture": "command-r", "tokenizer.ggml.model": "bytes", **EXAMPLE}
    return write_gguf(path, metadata, tensors)
