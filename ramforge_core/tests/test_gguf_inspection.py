"""What ``inspect`` shows: facts, text for a terminal, and both of faulty files."""

from __future__ import annotations

import json
import re

import pytest

from ramforge_core.errors import GGUFError
from ramforge_core.gguf import open_gguf
from ramforge_core.inspection import inspect, render
from ramforge_core.plugins import Registry
from ramforge_core.testing.gguf_writer import gguf_bytes, write_gguf

NOTHING = Registry(())
TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "<|im_end|>", "<|eot_id|>"]
METADATA = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.block_count": 1,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 4,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": [0.0] * 7,
    "tokenizer.ggml.token_type": [2, 3, 3, 1, 1, 3, 3],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{% for m in messages %}\n{{ m.content }}\n{% endfor %}",
}
TENSORS = {
    "token_embd.weight": (8, (7, 32), bytes(7 * 34)),
    "blk.0.attn_q.weight": (12, (2, 256), bytes(288)),
    "blk.0.attn_k.weight": (12, (1, 256), bytes(144)),
    "output_norm.weight": (0, (32,), bytes(128)),
}


def look(tmp_path, metadata=METADATA, tensors=TENSORS, **kwargs):
    return inspect(write_gguf(tmp_path / "tiny.gguf", metadata, tensors, **kwargs), NOTHING)


def with_keys(**changes):
    """The metadata with some ``tokenizer.ggml`` keys changed; None takes one out."""
    merged = {**METADATA, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def test_facts(tmp_path):
    report = look(tmp_path)
    facts = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    gguf = open_gguf(tmp_path / "tiny.gguf")
    assert facts["path"] == str(gguf.path)
    assert (facts["version"], facts["alignment"], facts["nbytes"]) == (3, 32, gguf.nbytes)
    assert facts["incomplete"] is None
    assert facts["files"] == [{"path": str(gguf.path), "nbytes": gguf.nbytes, "tensors": 4}]
    assert facts["metadata"]["general.name"] == "tiny"
    assert facts["metadata"]["tokenizer.ggml.tokens"] == TOKENS
    assert facts["architecture"] == "llama"
    assert facts["chat_template"] == METADATA["tokenizer.chat_template"]
    first = facts["tensors"][0]
    info = gguf.tensors["token_embd.weight"]
    assert first == {
        "name": "token_embd.weight",
        "shape": [7, 32],
        "type": "q8_0",
        "ggml_type": 8,
        "file": 0,
        "offset": info.offset,
        "nbytes": 238,
    }


def test_quantization_summary(tmp_path):
    shares = look(tmp_path).to_dict()["quantization"]
    assert [(s["name"], s["tensors"], s["values"], s["nbytes"]) for s in shares] == [
        ("q4_k", 2, 768, 432),
        ("q8_0", 1, 224, 238),
        ("f32", 1, 32, 128),
    ]
    assert [s["bits_per_weight"] for s in shares] == [4.5, 8.5, 32]
    assert sum(s["share"] for s in shares) == pytest.approx(1)
    assert shares[0]["share"] == pytest.approx(432 / 798)


def test_A29_tied_embeddings_are_said_and_counted_once(tmp_path):
    report = look(tmp_path)
    assert report.to_dict()["tied_embeddings"] is True
    assert report.parameters == 768 + 224 + 32
    assert "tied embeddings" in render(report)
    untied = look(tmp_path, tensors={**TENSORS, "output.weight": (8, (7, 32), bytes(7 * 34))})
    assert untied.to_dict()["tied_embeddings"] is False
    assert untied.parameters == report.parameters + 224
    assert "tied embeddings" not in render(untied)


def test_tokenizer_facts_and_every_id_that_ends_an_answer(tmp_path):
    facts = look(tmp_path, with_keys(eot_token_id=3)).to_dict()["tokenizer"]
    assert facts["model"] == "llama"
    assert facts["tokens"] == 7
    assert facts["special"] == {"bos": 1, "eos": 2, "eot": 3}
    ends = {end["id"]: end["text"] for end in facts["end_of_generation"]}
    assert ends == {2: "</s>", 3: "a", 5: "<|im_end|>", 6: "<|eot_id|>"}
    assert (facts["add_bos"], facts["add_eos"]) == (True, None)
    assert facts["warnings"] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "gpt2"}, "tokenizer.ggml.pre is missing"),
        ({"model": "gpt2", "pre": "default"}, "tokenizer.ggml.pre is 'default'"),
        ({"eos_token_id": 7}, "eos_token_id is 7, but the vocabulary has 7 tokens"),
        ({"bos_token_id": -1}, "bos_token_id is -1"),
        ({"scores": [0.0]}, "scores has 1 items for 7 tokens"),
        ({"token_type": [1] * 8}, "token_type has 8 items for 7 tokens"),
        ({"eos_token_id": "two"}, "'tokenizer.ggml.eos_token_id' must be an integer"),
        ({"tokens": [1, 2]}, "'tokenizer.ggml.tokens' is an array of uint32, not of strings"),
        ({"model": 5}, "'tokenizer.ggml.model' must be a text"),
        ({"add_bos_token": 1}, "'tokenizer.ggml.add_bos_token' must be true or false"),
    ],
)
def test_A14_B06_odd_tokenizer_keys_are_warnings(tmp_path, changes, said):
    report = look(tmp_path, with_keys(**changes))
    assert any(said in warning for warning in report.warnings)
    assert said in render(report)
    assert said in json.dumps(report.to_dict())


def test_no_warnings_where_all_is_well(tmp_path):
    assert list(look(tmp_path).warnings) == []
    assert list(look(tmp_path, with_keys(model="gpt2", pre="llama-bpe")).warnings) == []


@pytest.mark.parametrize(
    ("keys", "tensors", "wanted"),
    [
        ({}, {}, {"scaling": "none", "factor": None, "original_context": None}),
        (
            {"scaling.type": "linear", "scaling.factor": 4.0},
            {},
            {"scaling": "linear", "factor": 4.0, "original_context": None},
        ),
        (
            {"scaling.type": "yarn", "scaling.factor": 2, "scaling.original_context_length": 32},
            {},
            {"scaling": "yarn", "factor": 2.0, "original_context": 32},
        ),
        ({}, {"rope_freqs.weight": (0, (2,), bytes(8))}, {"scaling": "llama3"}),
        ({}, {"rope_factors_long.weight": (0, (2,), bytes(8))}, {"scaling": "longrope"}),
    ],
)
def test_A31_rope_scaling_is_shown(tmp_path, keys, tensors, wanted):
    metadata = {**METADATA, **{f"llama.rope.{key}": value for key, value in keys.items()}}
    report = look(tmp_path, metadata, {**TENSORS, **tensors})
    facts = report.to_dict()["rope"]
    assert facts == facts | wanted
    assert facts["base"] == 10000.0
    assert re.search(rf"^  scaling +{wanted['scaling']}$", render(report), re.MULTILINE)


def test_A31_fixtures_say_their_rope_scaling(shared):
    for name, scaling in (("llama3", "llama3"), ("linear", "linear"), ("yarn", "yarn")):
        report = inspect(shared / "fixtures" / f"llama-rope-{name}", NOTHING)
        assert report.rope.scaling == scaling


def test_A35_long_arrays_are_counted_not_listed(tmp_path):
    metadata = with_keys(
        tokens=[f"token{i}" for i in range(5000)], merges=["a b"] * 300, scores=None, token_type=None
    )
    report = look(tmp_path, metadata)
    text = render(report)
    assert "5000 items" in text
    assert "token17" not in text
    assert "5000 tokens, 300 merges" in text
    assert report.to_dict()["metadata"]["tokenizer.ggml.tokens"] == {"array_of": "string", "items": 5000}
    assert "token17" not in json.dumps(report.to_dict())


def test_A36_nothing_that_a_file_wrote_can_act_on_a_terminal(tmp_path):
    hostile = "\x1b]0;owned\x07\r\n\u202egnp.exe \u2581🙂\x9b"
    metadata = {
        **with_keys(tokens=[hostile, "b"], eos_token_id=0, model=hostile, pre=hostile),
        "general.name": hostile,
        hostile: 1,
        "general.architecture": hostile,
        "tokenizer.chat_template": f"one {hostile}\ntwo",
    }
    report = look(tmp_path, metadata, {hostile: (0, (4,), bytes(16))})
    text = render(report)
    assert "\u2581🙂" in text
    assert "\\x1b]0;owned\\x07" in text
    assert text.replace("\n", "").isprintable()
    assert report.chat_template == f"one {hostile}\ntwo", (
        "programs get the real thing, JSON escapes by itself"
    )
    json.dumps(report.to_dict(), allow_nan=False)


def test_A36_invalid_utf8_in_tokens_is_escaped(tmp_path):
    report = look(tmp_path, with_keys(tokens=[b"\xff", b"a", b"\xfe\xff"], eos_token_id=2))
    assert report.tokenizer.end_of_generation == {2: "\\xfe\\xff"}
    assert "\\xfe\\xff" in render(report)


def test_numbers_that_json_lacks_become_text(tmp_path):
    metadata = {
        **METADATA,
        "x.nan": float("nan"),
        "x.infinite": [float("inf"), 1.0],
        "x.deep": [[float("nan")]],
    }
    facts = look(tmp_path, metadata).to_dict()["metadata"]
    assert facts["x.deep"] == [["nan"]]
    assert (facts["x.nan"], facts["x.infinite"]) == ("nan", ["inf", 1.0])


def test_texts_left_in_the_file_are_shown_from_their_beginning(tmp_path):
    metadata = {**METADATA, "tokenizer.huggingface.json": "{" + "x" * 200_000}
    report = look(tmp_path, metadata)
    assert report.to_dict()["metadata"]["tokenizer.huggingface.json"]["text_bytes"] == 200_001
    assert "(195 KiB)" in render(report)


def test_long_chat_templates_are_whole_for_programs_and_short_for_people(tmp_path):
    template = "\n".join(f"line {i} " + "y" * 2000 for i in range(100))
    report = look(tmp_path, {**METADATA, "tokenizer.chat_template": template})
    assert report.to_dict()["chat_template"] == template
    assert len(render(report)) < 6000
    assert "100 lines" in render(report)
    assert "none in this file" in render(look(tmp_path, {"general.architecture": "llama"}))


def test_A01_a_cut_file_is_shown_and_marked(tmp_path):
    raw = gguf_bytes(METADATA, TENSORS)
    path = tmp_path / "cut.gguf"
    path.write_bytes(raw[:-200])
    report = inspect(path, NOTHING)
    assert "'blk.0.attn_k.weight'" in report.incomplete
    assert report.to_dict()["incomplete"] == report.incomplete
    assert len(report.to_dict()["tensors"]) == 4
    assert "INCOMPLETE: " in render(report)
    assert report.incomplete in report.support.reasons
    path.write_bytes(raw[:200])
    report = inspect(path, NOTHING)
    assert "metadata key" in report.incomplete
    assert report.to_dict()["metadata"]["general.name"] == "tiny"
    assert "INCOMPLETE: " in render(report)
    with pytest.raises(GGUFError, match="cut short"):
        open_gguf(path)


def test_A26_unknown_types_are_counted_by_id(tmp_path):
    new = {
        "new.0": (250, (256,), bytes(100)),
        "new.1": (250, (256,), bytes(100)),
        "old": (4, (32,), bytes(20)),
    }
    report = look(tmp_path, tensors={**TENSORS, **new})
    shares = {s["ggml_type"]: s for s in report.to_dict()["quantization"]}
    assert (shares[250]["tensors"], shares[250]["nbytes"], shares[250]["share"]) == (2, None, None)
    assert shares[8]["nbytes"] == 238
    text = render(report)
    assert "type 250" in text
    assert "removed from ggml" in text
    assert any("250 in 2 tensors" in reason for reason in report.support.reasons)


def test_A33_files_without_or_with_a_foreign_architecture(tmp_path):
    report = look(tmp_path, {"general.name": "x"})
    assert report.architecture is None
    assert any("'general.architecture'" in reason for reason in report.support.reasons)
    report = look(tmp_path, {"general.architecture": "foo", "foo.attention.head_count": 4})
    assert report.architecture == "foo"
    assert any("architecture 'foo'" in reason for reason in report.support.reasons)
    assert not any("llama.attention" in reason for reason in report.support.reasons)
    report = look(tmp_path, {"general.architecture": 7})
    assert report.architecture is None
    assert any("'general.architecture' must be a text" in warning for warning in report.warnings)


def test_files_of_a_split_model_are_listed(tmp_path):
    for shard in range(2):
        split = {"split.no": shard, "split.count": 2, "split.tensors.count": 2}
        tensors = {f"blk.{shard}.attn_q.weight": (0, (4,), bytes(16))}
        name = f"x-0000{shard + 1}-of-00002.gguf"
        write_gguf(tmp_path / name, {**(METADATA if shard == 0 else {}), **split}, tensors)
    report = inspect(tmp_path / "x-00002-of-00002.gguf", NOTHING)
    paths = [str(tmp_path / f"x-0000{number}-of-00002.gguf") for number in (1, 2)]
    assert [(f["path"], f["tensors"]) for f in report.to_dict()["files"]] == [(path, 1) for path in paths]
    assert [t["file"] for t in report.to_dict()["tensors"]] == [0, 1]
    assert "x-00002-of-00002.gguf is one shard of 2" in render(report)


def test_what_support_says_is_part_of_it(tmp_path):
    report = look(tmp_path)
    assert report.to_dict()["support"] == report.support.to_dict()
    assert report.support.runnable is False
    assert "runs: no" in render(report)
    assert "no installed plugin" in render(report)
