"""The architecture qwen2: the conformance suite, and what is particular to it."""

from __future__ import annotations

import pytest

from ramforge_arch_qwen2 import Qwen2
from ramforge_core.errors import TensorError
from ramforge_core.gguf import Metadata
from ramforge_core.graph import GraphBuilder, Linear, Rope
from ramforge_core.model import check_tensors
from ramforge_core.testing import ArchitectureTests
from ramforge_core.testing.architecture import tensor_info

VALUES = {
    "general.architecture": "qwen2",
    "qwen2.context_length": 128,
    "qwen2.embedding_length": 64,
    "qwen2.block_count": 2,
    "qwen2.feed_forward_length": 96,
    "qwen2.attention.head_count": 4,
    "qwen2.attention.head_count_kv": 2,
    "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
    "qwen2.rope.freq_base": 1000000.0,
    "qwen2.vocab_size": 32,
}


class TestQwen2(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return Qwen2()

    @pytest.fixture
    def metadata(self):
        return Metadata.from_dict(VALUES)


def specs():
    return Qwen2().tensors(Qwen2().config(Metadata.from_dict(VALUES)))


def test_pairs_are_half_split_and_biases_are_used():
    builder = GraphBuilder({s.name: s.shape for s in specs()})
    Qwen2().build(Qwen2().config(Metadata.from_dict(VALUES)), builder)
    ops = builder.finish().ops
    assert {op.pairs for op in ops if isinstance(op, Rope)} == {"half"}
    assert sum(op.bias is not None for op in ops if isinstance(op, Linear)) == 2 * 3


def test_biases_are_all_or_none():
    tensors = {s.name: tensor_info(s.name, s.shape) for s in specs() if s.name != "blk.1.attn_v.bias"}
    with pytest.raises(TensorError, match=r"missing tensor 'blk\.1\.attn_v\.bias'"):
        check_tensors(tensors, "qwen2", specs())


def test_a_bias_has_its_exact_shape():
    tensors = {s.name: tensor_info(s.name, s.shape) for s in specs()}
    tensors["blk.1.attn_k.bias"] = tensor_info("blk.1.attn_k.bias", (64,))
    with pytest.raises(TensorError, match=r"'blk\.1\.attn_k\.bias' has shape \(64,\), expected \(32,\)"):
        check_tensors(tensors, "qwen2", specs())
