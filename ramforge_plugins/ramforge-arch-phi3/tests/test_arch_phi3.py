"""The architecture phi3: the conformance suite, and what is particular to it."""

from __future__ import annotations

import pytest

from ramforge_arch_phi3 import Phi3
from ramforge_core.errors import MetadataError
from ramforge_core.gguf import Metadata
from ramforge_core.graph import Attention, GraphBuilder, Rope, RopeScaling, Slice
from ramforge_core.testing import ArchitectureTests

VALUES = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_count": 12,
    "attention.sliding_window": 20,
    "vocab_size": 32,
}


def metadata_of(**changes):
    return Metadata.from_dict({f"phi3.{k}": v for k, v in {**VALUES, **changes}.items()})


def ops_of(kind, **changes):
    config = Phi3().config(metadata_of(**changes))
    builder = GraphBuilder({s.name: s.shape for s in Phi3().tensors(config)})
    Phi3().build(config, builder)
    return [op for op in builder.finish().ops if isinstance(op, kind)]


class TestPhi3(ArchitectureTests):
    @pytest.fixture
    def architecture(self):
        return Phi3()

    @pytest.fixture
    def metadata(self):
        return metadata_of()


def test_q_k_v_and_gate_up_are_cut_from_one_matrix_each():
    cuts = [(op.x.width, op.start, op.out.width) for op in ops_of(Slice)]
    assert cuts == [(128, 0, 64), (128, 64, 32), (128, 96, 32), (192, 0, 96), (192, 96, 96)] * 2


def test_a_part_of_each_head_is_rotated():
    assert {(op.head_width, op.rotary_width, op.pairs) for op in ops_of(Rope)} == {(16, 12, "half")}


@pytest.mark.parametrize(("says", "window"), [(20, 20), (0, None)])
def test_window(says, window):
    assert {op.window for op in ops_of(Attention, **{"attention.sliding_window": says})} == {window}


def test_a_senseless_window_is_refused():
    with pytest.raises(MetadataError, match="sliding_window"):
        ops_of(Attention, **{"attention.sliding_window": -1})


def test_longrope_is_known_by_its_multiplier():
    keys = {
        "context_length": 131072,
        "rope.scaling.original_context_length": 4096,
        "rope.scaling.attn_factor": 1.19,
    }
    for rope in ops_of(Rope, **keys):
        assert rope.scaling == RopeScaling("longrope", 1.0, 4096, 1.19)
        assert (rope.factors, rope.long_factors) == ("rope_factors_short.weight", "rope_factors_long.weight")
