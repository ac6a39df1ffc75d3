"""The architectures gemma2 and gemma3: the conformance suite, and what is particular to them."""

from __future__ import annotations

import pytest

from ramforge_arch_gemma import Gemma2, Gemma3
from ramforge_core.errors import MetadataError
from ramforge_core.gguf import Metadata
from ramforge_core.graph import Attention, Glu, GraphBuilder, Rope, RopeScaling, Scale, Softcap
from ramforge_core.testing import ArchitectureTests

SIZES = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 7,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 24,
    "attention.value_length": 24,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 12,
    "vocab_size": 32,
}
PARTICULAR = {
    Gemma2: {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    Gemma3: {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4},
}


def metadata_of(cls, **changes):
    values = {**SIZES, **PARTICULAR[cls], **changes}
    return Metadata.from_dict({f"{cls.key}.{k}": v for k, v in values.items()})


def ops_of(cls, **changes):
    architecture = cls()
    config = architecture.config(metadata_of(cls, **changes))
    builder = GraphBuilder({s.name: s.shape for s in architecture.tensors(config)})
    architecture.build(config, builder)
    return builder.finish().ops


def of(kind, ops):
    return [op for op in ops if isinstance(op, kind)]


@pytest.mark.parametrize("cls", [Gemma2, Gemma3])
class TestGemma(ArchitectureTests):
    @pytest.fixture
    def architecture(self, cls):
        return cls()

    @pytest.fixture
    def metadata(self, cls):
        return metadata_of(cls)


def test_every_second_block_of_gemma2_is_local():
    assert [op.window for op in of(Attention, ops_of(Gemma2))] == [12, None, 12, None, 12, None, 12]


def test_five_of_six_blocks_of_gemma3_are_local_and_have_their_own_rotation():
    ops = ops_of(Gemma3, **{"rope.scaling.type": "linear", "rope.scaling.factor": 8.0})
    assert [op.window for op in of(Attention, ops)] == [12] * 5 + [None, 12]
    turns = [(op.base, op.scaling) for op in of(Rope, ops)]
    assert turns == [(1e4, None)] * 10 + [(1e6, RopeScaling("linear", 8.0))] * 2 + [(1e4, None)] * 2


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [(3, [12, 12, None] * 2 + [12]), (1, [None] * 7), ([True, *[False] * 6], [12, *[None] * 6])],
)
def test_a_file_may_say_the_pattern(pattern, windows):
    ops = ops_of(Gemma3, **{"attention.sliding_window_pattern": pattern})
    assert [op.window for op in of(Attention, ops)] == windows


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        ("attention.sliding_window_pattern", [True, False]),
        ("attention.sliding_window_pattern", ["yes"] * 7),
        ("attention.sliding_window_pattern", 0),
        ("attention.sliding_window", -4),
    ],
)
def test_a_senseless_pattern_is_refused(key, bad):
    with pytest.raises(MetadataError, match=r"gemma3\.attention\.sliding_window"):
        ops_of(Gemma3, **{key: bad})


def test_gemma3_without_a_window_sees_everything():
    ops = ops_of(Gemma3, **{"attention.sliding_window": 0})
    assert {op.window for op in of(Attention, ops)} == {None}
    assert {op.base for op in of(Rope, ops)} == {1e6}


def test_softcaps_scale_and_activation():
    ops = ops_of(Gemma2)
    assert {op.softcap for op in of(Attention, ops)} == {50.0}
    assert ops[-1] == of(Softcap, ops)[0]
    assert ops[-1].cap == 30.0
    assert of(Scale, ops)[0].factor == 8.0
    assert {op.act for op in of(Glu, ops)} == {"gelu"}
    none = ops_of(Gemma2, attn_logit_softcapping=0.0, final_logit_softcapping=0.0)
    assert not of(Softcap, none)
    assert {op.softcap for op in of(Attention, none)} == {None}
    assert not of(Softcap, ops_of(Gemma3))


@pytest.mark.parametrize(("cls", "largest"), [(Gemma2, 46), (Gemma3, 62)])
def test_scores_of_the_27b_model_are_scaled_by_the_width_of_the_model(cls, largest):
    assert {op.scale for op in of(Attention, ops_of(cls))} == {24**-0.5}
    assert {op.scale for op in of(Attention, ops_of(cls, block_count=largest))} == {16**-0.5}


def test_more_heads_than_the_model_is_wide_is_no_division_by_nought():
    heads = {"attention.head_count": 128, "attention.head_count_kv": 128}
    assert {op.scale for op in of(Attention, ops_of(Gemma2, block_count=46, **heads))} == {1.0}
