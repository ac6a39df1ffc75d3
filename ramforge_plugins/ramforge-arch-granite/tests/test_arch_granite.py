"""The architecture granite: the conformance suite, and what is particular to it."""

from __future__ import annotations

import pytest

from ramforge_arch_granite import Granite
from ramforge_core.gguf import Metadata
from ramforge_core.graph import Attention, GraphBuilder, Rope, Scale
from ramforge_core.testing import ArchitectureTests

VALUES = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "logit_scale": 8.0,
    "embedding_scale": 12.0,
    "residual_scale": 0.25,
    "attention.scale": 0.125,
    "vocab_size": 32,
}


def metadata_of(**changes):
    return Metadata.from_dict({f"granite.{k}": v for k, v in {**VALUES, **changes}.items()})


def ops_of(kind, **changes):
    config = Granite().config(metadata_of(**changes))
    builder = GraphBuilder({s.name: s.shape for s in Granite().tensors(config)})
    Granite().build(config, builder)
    return [op for op in builder.finish().ops if isinstance(op, kind)]


class TestGranite(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return Granite()

    @pytest.fixture
    def metadata(self):
        return metadata_of()


def test_factors():
    assert [op.factor for op in ops_of(Scale)] == [12.0, *[0.25] * 4, 0.125]
    assert {op.scale for op in ops_of(Attention)} == {0.125}
    assert {op.pairs for op in ops_of(Rope)} == {"adjacent"}


def test_a_model_without_positions_is_not_rotated():
    assert not ops_of(Rope, **{"rope.scaling.finetuned": False})
