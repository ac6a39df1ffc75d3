"""The architecture olmo2: the conformance suite, and what is particular to it."""

from __future__ import annotations

import pytest

from ramforge_arch_olmo2 import Olmo2
from ramforge_core.gguf import Metadata
from ramforge_core.graph import Attention, GraphBuilder, Norm, Rope, RopeScaling
from ramforge_core.testing import ArchitectureTests

VALUES = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 4,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "vocab_size": 32,
}


def metadata_of(**changes):
    return Metadata.from_dict({f"olmo2.{k}": v for k, v in {**VALUES, **changes}.items()})


def ops_of(kind, **changes):
    config = Olmo2().config(metadata_of(**changes))
    builder = GraphBuilder({s.name: s.shape for s in Olmo2().tensors(config)})
    Olmo2().build(config, builder)
    return [op for op in builder.finish().ops if isinstance(op, kind)]


class TestOlmo2(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return Olmo2()

    @pytest.fixture
    def metadata(self):
        return metadata_of()


def test_norms_go_over_the_whole_of_q_and_k():
    norms = {op.weight: op.group for op in ops_of(Norm)}
    assert norms["blk.0.attn_q_norm.weight"] == 64
    assert norms["blk.0.attn_k_norm.weight"] == 32
    assert "blk.0.attn_norm.weight" not in norms


def test_olmo2_has_no_window():
    assert {op.window for op in ops_of(Attention)} == {None}


def test_three_of_four_blocks_of_olmo3_are_local_and_not_scaled():
    keys = {"attention.sliding_window": 16, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    assert [op.window for op in ops_of(Attention, **keys)] == [16, 16, 16, None]
    assert [op.scaling for op in ops_of(Rope, **keys)] == [None] * 6 + [RopeScaling("linear", 8.0)] * 2
