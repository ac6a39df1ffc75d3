"""The architecture smollm3: the conformance suite, and what is particular to it."""

from __future__ import annotations

import pytest

from ramforge_arch_smollm3 import SmolLM3
from ramforge_core.gguf import Metadata
from ramforge_core.graph import Attention, GraphBuilder, Rope
from ramforge_core.testing import ArchitectureTests

VALUES = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 5,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "vocab_size": 32,
}


def metadata_of(**changes):
    return Metadata.from_dict({f"smollm3.{k}": v for k, v in {**VALUES, **changes}.items()})


def ops_of(kind, **changes):
    config = SmolLM3().config(metadata_of(**changes))
    builder = GraphBuilder({s.name: s.shape for s in SmolLM3().tensors(config)})
    SmolLM3().build(config, builder)
    return [op for op in builder.finish().ops if isinstance(op, kind)]


class TestSmolLM3(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return SmolLM3()

    @pytest.fixture
    def metadata(self):
        return metadata_of()


def test_every_fourth_block_does_not_rotate():
    turned = {op.out for op in ops_of(Rope)}
    assert [op.q in turned for op in ops_of(Attention)] == [True, True, True, False, True]
    assert [op.k in turned for op in ops_of(Attention)] == [True, True, True, False, True]
    assert {op.pairs for op in ops_of(Rope)} == {"adjacent"}
