"""The architecture deepseek2: the conformance suite, and what is particular to it."""

from __future__ import annotations

import math

import pytest

from ramforge_arch_deepseek2 import DeepSeek2
from ramforge_core.errors import MetadataError, UnsupportedError
from ramforge_core.gguf import Metadata
from ramforge_core.graph import Attention, GraphBuilder, HeadLinear, Moe, Rope, Route
from ramforge_core.testing import ArchitectureTests

VALUES = {
    "general.architecture": "deepseek2",
    "deepseek2.context_length": 128,
    "deepseek2.embedding_length": 64,
    "deepseek2.block_count": 3,
    "deepseek2.feed_forward_length": 96,
    "deepseek2.attention.head_count": 4,
    "deepseek2.attention.head_count_kv": 1,
    "deepseek2.attention.key_length": 40,
    "deepseek2.attention.value_length": 32,
    "deepseek2.attention.key_length_mla": 24,
    "deepseek2.attention.value_length_mla": 16,
    "deepseek2.attention.kv_lora_rank": 32,
    "deepseek2.attention.q_lora_rank": 48,
    "deepseek2.rope.dimension_count": 8,
    "deepseek2.attention.layer_norm_rms_epsilon": 1e-6,
    "deepseek2.leading_dense_block_count": 1,
    "deepseek2.expert_count": 6,
    "deepseek2.expert_used_count": 2,
    "deepseek2.expert_shared_count": 2,
    "deepseek2.expert_feed_forward_length": 32,
    "deepseek2.vocab_size": 32,
}


def config(**changes):
    return DeepSeek2().config(
        Metadata.from_dict({**VALUES, **{f"deepseek2.{k}": v for k, v in changes.items()}})
    )


def ops(c, *, optional=True):
    specs = [s for s in DeepSeek2().tensors(c) if s.required or optional]
    builder = GraphBuilder({s.name: s.shape for s in specs})
    DeepSeek2().build(c, builder)
    return builder.finish().ops


class TestDeepSeek2(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return DeepSeek2()

    @pytest.fixture
    def metadata(self):
        return Metadata.from_dict(VALUES)


def test_the_cache_holds_the_latent_and_one_rotated_key():
    found = [op for op in ops(config()) if isinstance(op, Attention)]
    assert {(op.kv_heads, op.key_width, op.value_width) for op in found} == {(1, 40, 32)}
    assert {op.scale for op in found} == {24**-0.5}
    assert sum(isinstance(op, HeadLinear) for op in ops(config())) == 2 * 3
    assert {(op.pairs, op.head_width) for op in ops(config()) if isinstance(op, Rope)} == {("adjacent", 8)}


def test_the_first_blocks_are_dense_and_shared_experts_are_one():
    c = config()
    assert sum(isinstance(op, Moe) for op in ops(c)) == 2
    shapes = {s.name: s.shape for s in DeepSeek2().tensors(c)}
    assert shapes["blk.0.ffn_down.weight"] == (64, 96)
    assert shapes["blk.1.ffn_down_shexp.weight"] == (64, 64)


def test_v3_chooses_by_sigmoid_and_bias():
    c = config(expert_gating_func=2, expert_weights_norm=True, expert_weights_scale=2.5)
    route = next(op for op in ops(c) if isinstance(op, Route))
    assert (route.scores, route.normalise, route.scale) == ("sigmoid", True, 2.5)
    assert route.bias == "blk.1.exp_probs_b.bias"
    assert next(op for op in ops(c, optional=False) if isinstance(op, Route)).bias is None


def test_another_way_of_choosing_is_refused():
    with pytest.raises(UnsupportedError, match="expert_gating_func' is 3"):
        config(expert_gating_func=3)


def test_queries_may_be_uncompressed():
    names = {s.name for s in DeepSeek2().tensors(config(**{"attention.q_lora_rank": 0}))}
    assert "blk.0.attn_q.weight" in names
    assert "blk.0.attn_q_a.weight" not in names


def test_yarn_stretches_scores_and_not_cos_and_sin():
    yarn = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 40.0,
        "rope.scaling.original_context_length": 32,
        "rope.scaling.yarn_log_multiplier": 0.0707,
    }
    c = config(**yarn)
    assert c.rope_scaling.attention_factor == 1
    assert c.scale == pytest.approx(24**-0.5 * (1 + 0.0707 * math.log(40)) ** 2)


def test_groups_of_experts_are_refused():
    with pytest.raises(UnsupportedError, match="expert_group_count"):
        config(expert_group_count=8)


def test_widths_must_fit_together():
    with pytest.raises(MetadataError, match="expected 1, 40 and 32"):
        config(**{"attention.key_length": 48})
