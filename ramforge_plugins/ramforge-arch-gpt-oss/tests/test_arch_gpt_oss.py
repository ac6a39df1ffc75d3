"""The architecture gpt-oss: the conformance suite, and what is particular to it."""

from __future__ import annotations

import pytest

from ramforge_arch_gpt_oss import GptOss
from ramforge_core.gguf import Metadata
from ramforge_core.graph import Attention, GraphBuilder, Moe, Route
from ramforge_core.testing import ArchitectureTests

VALUES = {
    "general.architecture": "gpt-oss",
    "gpt-oss.context_length": 128,
    "gpt-oss.embedding_length": 64,
    "gpt-oss.block_count": 4,
    "gpt-oss.feed_forward_length": 96,
    "gpt-oss.attention.head_count": 4,
    "gpt-oss.attention.head_count_kv": 2,
    "gpt-oss.attention.layer_norm_rms_epsilon": 1e-5,
    "gpt-oss.attention.sliding_window": 12,
    "gpt-oss.expert_count": 6,
    "gpt-oss.expert_used_count": 2,
    "gpt-oss.expert_feed_forward_length": 32,
    "gpt-oss.vocab_size": 32,
}


class TestGptOss(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return GptOss()

    @pytest.fixture
    def metadata(self):
        return Metadata.from_dict(VALUES)


def test_windows_sinks_and_biases():
    architecture = GptOss()
    c = architecture.config(Metadata.from_dict(VALUES))
    builder = GraphBuilder({s.name: s.shape for s in architecture.tensors(c)})
    architecture.build(c, builder)
    ops = builder.finish().ops
    attentions = [op for op in ops if isinstance(op, Attention)]
    assert [op.window for op in attentions] == [12, None, 12, None]
    assert all(op.sinks for op in attentions)
    mixtures = [op for op in ops if isinstance(op, Moe)]
    assert {(op.act, op.gate_bias is None, op.down_bias is None) for op in mixtures} == {
        ("swiglu_oai", False, False)
    }
    assert {op.normalise for op in ops if isinstance(op, Route)} == {True}
