"""Declared architectures: their sizes can be read, and they say that they cannot run."""

from __future__ import annotations

import pytest

from ramforge_arch_declared import KEYS, Declared, ramforge_architectures
from ramforge_core.errors import UnsupportedError
from ramforge_core.gguf import Metadata
from ramforge_core.graph import GraphBuilder


def test_all_are_provided_and_none_is_runnable():
    architectures = ramforge_architectures()
    assert [a.key for a in architectures] == list(KEYS)
    assert not any(a.runnable for a in architectures)


@pytest.mark.parametrize("key", KEYS)
def test_config_reads_sizes(key):
    sizes = {
        "context_length": 128,
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "vocab_size": 32,
    }
    config = Declared(key).config(Metadata.from_dict({f"{key}.{k}": v for k, v in sizes.items()}))
    assert (config.block_count, config.key_width, config.kv_heads) == (2, 16, 4)
    with pytest.raises(UnsupportedError, match=key):
        Declared(key).build(config, GraphBuilder({}))
