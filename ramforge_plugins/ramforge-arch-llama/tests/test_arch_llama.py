"""The architecture llama: the conformance suite, and what is particular to it."""

from __future__ import annotations

import pytest

from ramforge_arch_llama import Llama
from ramforge_core.errors import MetadataError, TensorError, UnsupportedError
from ramforge_core.gguf import Metadata
from ramforge_core.graph import GraphBuilder, Rope, RopeScaling, Route
from ramforge_core.model import check_tensors
from ramforge_core.testing import ArchitectureTests
from ramforge_core.testing.architecture import tensor_info
from ramforge_core.transformer import ROPE_FACTORS

VALUES = {
    "general.architecture": "llama",
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.vocab_size": 32,
}


def config(**changes: object):
    return Llama().config(Metadata.from_dict({**VALUES, **{f"llama.{k}": v for k, v in changes.items()}}))


def graph(c, present=lambda spec: spec.required):
    builder = GraphBuilder({s.name: s.shape for s in Llama().tensors(c) if present(s)})
    Llama().build(c, builder)
    return builder.finish()


class TestLlama(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return Llama()

    @pytest.fixture
    def metadata(self):
        return Metadata.from_dict(VALUES)


def test_a30_head_widths_come_from_the_metadata():
    c = config(**{"attention.key_length": 24, "attention.value_length": 40})
    shapes = {s.name: s.shape for s in Llama().tensors(c)}
    assert shapes["blk.0.attn_q.weight"] == (96, 64)
    assert shapes["blk.0.attn_v.weight"] == (80, 64)
    assert shapes["blk.0.attn_output.weight"] == (64, 160)


def test_pairs_are_adjacent():
    assert {op.pairs for op in graph(config()).ops if isinstance(op, Rope)} == {"adjacent"}


def test_a29_tied_embeddings():
    assert graph(config()).weights[-1] == "output_norm.weight"
    assert graph(config(), lambda s: s.required or s.name == "output.weight").weights[-1] == "output.weight"


def test_a31_rope_factors_are_used():
    ops = graph(config(), lambda s: s.required or s.name == ROPE_FACTORS).ops
    assert {op.factors for op in ops if isinstance(op, Rope)} == {ROPE_FACTORS}


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"rope.scale_linear": 2.0}, RopeScaling("linear", 2.0)),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 1.0,
                "rope.scaling.original_context_length": 32,
            },
            RopeScaling("yarn", 1.0, 32),
        ),
    ],
)
def test_rope_scaling(keys, scaling):
    assert config(**keys).rope_scaling == scaling


def test_unknown_rope_scaling_is_refused():
    with pytest.raises(UnsupportedError, match=r"rope\.scaling\.type' is 'dynamic'"):
        config(**{"rope.scaling.type": "dynamic"})


def test_heads_must_divide():
    with pytest.raises(MetadataError, match="head_count_kv"):
        config(**{"attention.head_count_kv": 3})


def test_experts_take_the_place_of_the_feed_forward_part():
    c = config(expert_count=8, expert_used_count=2)
    names = [s.name for s in Llama().tensors(c)]
    assert "blk.1.ffn_down_exps.weight" in names
    assert "blk.1.ffn_down.weight" not in names
    routes = [op for op in graph(c).ops if isinstance(op, Route)]
    assert [(op.scores, op.normalise, op.out.width) for op in routes] == [("softmax", True, 4)] * 2


@pytest.mark.parametrize("chosen", [0, 9])
def test_experts_in_use_are_among_those_there_are(chosen):
    with pytest.raises(MetadataError, match="expert_used_count"):
        config(expert_count=8, expert_used_count=chosen)


def test_biases_are_all_or_none():
    specs = Llama().tensors(config())
    tensors = {s.name: tensor_info(s.name, s.shape) for s in specs if s.required}
    tensors["blk.0.attn_q.bias"] = tensor_info("blk.0.attn_q.bias", (64,))
    with pytest.raises(TensorError, match=r"missing tensors 'blk\.0\.attn_k\.bias'"):
        check_tensors(tensors, "llama", specs)


def test_tensors_that_nobody_uses_are_refused():
    specs = Llama().tensors(config())
    tensors = {s.name: tensor_info(s.name, s.shape) for s in specs if s.required}
    tensors["blk.0.attn_sinks.weight"] = tensor_info("blk.0.attn_sinks.weight", (4,))
    with pytest.raises(UnsupportedError, match=r"unknown tensor 'blk\.0\.attn_sinks\.weight'"):
        check_tensors(tensors, "llama", specs)
