"""The architectures qwen2moe and qwen3moe: the conformance suite, and what is particular to them."""

from __future__ import annotations

import pytest

from ramforge_arch_qwen_moe import Qwen2Moe, Qwen3Moe
from ramforge_core.errors import MetadataError
from ramforge_core.gguf import Metadata
from ramforge_core.graph import Gate, GraphBuilder, Linear, Norm, Rope, Route
from ramforge_core.testing import ArchitectureTests

VALUES = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "expert_count": 6,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "vocab_size": 32,
}


def metadata_of(architecture, **changes):
    values = {f"{architecture.key}.{k}": v for k, v in {**VALUES, **changes}.items()}
    return Metadata.from_dict({"general.architecture": architecture.key, **values})


def ops_of(architecture, metadata, biases=True):
    c = architecture.config(metadata)
    specs = [s for s in architecture.tensors(c) if s.required or biases]
    builder = GraphBuilder({s.name: s.shape for s in specs})
    architecture.build(c, builder)
    return builder.finish().ops


class TestQwen2Moe(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return Qwen2Moe()

    @pytest.fixture
    def metadata(self, architecture):
        return metadata_of(architecture, expert_shared_feed_forward_length=48)


class TestQwen3Moe(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return Qwen3Moe()

    @pytest.fixture
    def metadata(self, architecture):
        return metadata_of(architecture)


def test_qwen2moe_has_a_gated_shared_expert_and_weights_that_do_not_sum_to_one():
    ops = ops_of(Qwen2Moe(), metadata_of(Qwen2Moe(), expert_shared_feed_forward_length=48))
    assert sum(isinstance(op, Gate) and op.gate.width == 1 for op in ops) == 2
    assert {op.normalise for op in ops if isinstance(op, Route)} == {False}
    assert {op.pairs for op in ops if isinstance(op, Rope)} == {"half"}
    assert sum(op.bias is not None for op in ops if isinstance(op, Linear)) == 2 * 4


def test_qwen3moe_norms_each_head_and_has_weights_that_sum_to_one():
    ops = ops_of(Qwen3Moe(), metadata_of(Qwen3Moe()), biases=False)
    assert not any(isinstance(op, Gate) for op in ops)
    assert {op.normalise for op in ops if isinstance(op, Route)} == {True}
    assert sum(isinstance(op, Norm) and op.group == 16 for op in ops) == 2 * 2


@pytest.mark.parametrize("architecture", [Qwen2Moe(), Qwen3Moe()], ids=lambda a: a.key)
def test_there_must_be_experts(architecture):
    with pytest.raises(MetadataError, match="expert_count"):
        architecture.config(metadata_of(architecture, expert_count=0, expert_shared_feed_forward_length=48))
