"""The architectures qwen2 and qwen3: the conformance suite, and what is particular to them."""

from __future__ import annotations

import pytest

from ramforge_arch_qwen import Qwen2, Qwen3
from ramforge_core.errors import TensorError
from ramforge_core.gguf import Metadata
from ramforge_core.graph import GraphBuilder, Linear, Norm, Rope
from ramforge_core.model import check_tensors
from ramforge_core.testing import ArchitectureTests
from ramforge_core.testing.architecture import tensor_info

SIZES = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1000000.0,
    "vocab_size": 32,
}


def metadata_of(architecture, **changes):
    return Metadata.from_dict({f"{architecture.key}.{k}": v for k, v in {**SIZES, **changes}.items()})


def specs_of(architecture, **changes):
    return architecture.tensors(architecture.config(metadata_of(architecture, **changes)))


def ops_of(architecture, **changes):
    builder = GraphBuilder({s.name: s.shape for s in specs_of(architecture, **changes)})
    architecture.build(architecture.config(metadata_of(architecture, **changes)), builder)
    return builder.finish().ops


@pytest.mark.parametrize("cls", [Qwen2, Qwen3])
class TestQwen(ArchitectureTests):
    @pytest.fixture
    def architecture(self, cls):
        return cls()

    @pytest.fixture
    def metadata(self, architecture):
        return metadata_of(architecture)


def test_pairs_are_half_split_and_biases_are_used():
    ops = ops_of(Qwen2())
    assert {op.pairs for op in ops if isinstance(op, Rope)} == {"half"}
    biases = {op.bias for op in ops if isinstance(op, Linear)}
    assert {f"blk.{i}.attn_{p}.bias" for i in range(2) for p in "qkv"} <= biases


def test_biases_are_all_or_none():
    specs = specs_of(Qwen2())
    tensors = {s.name: tensor_info(s.name, s.shape) for s in specs if s.name != "blk.1.attn_v.bias"}
    with pytest.raises(TensorError, match=r"missing tensor 'blk\.1\.attn_v\.bias'"):
        check_tensors(tensors, "qwen2", specs)


def test_a_bias_has_its_exact_shape():
    specs = specs_of(Qwen2())
    tensors = {s.name: tensor_info(s.name, s.shape) for s in specs}
    tensors["blk.1.attn_k.bias"] = tensor_info("blk.1.attn_k.bias", (64,))
    with pytest.raises(TensorError, match=r"'blk\.1\.attn_k\.bias' has shape \(64,\), expected \(32,\)"):
        check_tensors(tensors, "qwen2", specs)


def test_qwen3_norms_every_head_of_q_and_k_before_the_rotation():
    ops = ops_of(Qwen3(), **{"attention.key_length": 24, "attention.value_length": 24})
    norms = {op.weight: op for op in ops if isinstance(op, Norm)}
    for name, width in (("q", 96), ("k", 48)):
        norm = norms[f"blk.1.attn_{name}_norm.weight"]
        assert (norm.group, norm.x.width) == (24, width)
        assert norm.out in {op.x for op in ops if isinstance(op, Rope)}
