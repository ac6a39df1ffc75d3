"""``ramforge inspect``, ``support`` and ``tokenize``, on small files and a tokenizer of the test's own."""

from __future__ import annotations

import json
import sys

import pytest

from ramforge_core.testing.fake_install import fake_install
from ramforge_core.testing.gguf_writer import gguf_bytes, write_gguf

TOKENIZER = """
from ramforge_core.hookspecs import hookimpl
from ramforge_core.tokenizer import Tokenizer

class Bytes(Tokenizer):
    "One token per byte; 256 is the beginning, 257 is <end>."
    key = "test-bytes"
    n_vocab, bos_id, eos_id, add_bos, add_eos = 258, 256, 257, True, False
    end_of_generation = frozenset({257})
    control_texts = ("<end>",)
    @classmethod
    def from_metadata(cls, metadata): return cls()
    def encode(self, text, *, add_special=False, parse_special=False, barriers=()):
        ids = [256] if add_special else []
        for i, part in enumerate(text.split("<end>") if parse_special else [text]):
            ids += [257] * (i > 0) + list(part.encode())
        return ids
    def piece(self, token, *, special=True):
        return bytes([token]) if token < 256 else [b"", b"<end>"][token - 256]
    def token_id(self, text): return 257 if text == "<end>" else None
    def is_control(self, token): return token > 255
    def detokenize(self, ids): return b"".join(map(self.piece, ids))

@hookimpl
def ramforge_tokenizers():
    return [Bytes]
"""


@pytest.fixture
def vocabulary(tmp_path, monkeypatch):
    """A file that holds a vocabulary only, and the plugin that reads it."""
    folder = tmp_path / "plugins"
    points = {"ramforge.tokenizers": {"test-bytes": "test_bytes_module"}}
    fake_install(folder, "ramforge-tokenizer-test", points, {"test_bytes_module": TOKENIZER})
    monkeypatch.syspath_prepend(str(folder))
    metadata = {"general.architecture": "llama", "tokenizer.ggml.model": "test-bytes"}
    yield write_gguf(tmp_path / "vocab.gguf", metadata)
    sys.modules.pop("test_bytes_module", None)


# ------------------------------------------------------------------ tokenize


def test_tokens_are_shown_with_id_and_piece(ramforge, vocabulary):
    assert ramforge("tokenize", vocabulary, 'a"ä') == (
        0,
        ' 97  "a"\n 34  "\\""\n195  "\\\\xc3"\n164  "\\\\xa4"\n',
        "",
    )


def test_special_tokens_by_choice(ramforge, vocabulary):
    def ids(*options: str) -> list[int]:
        return json.loads(ramforge("tokenize", vocabulary, "x<end>", "--json", *options).out)["ids"]

    text = list(b"x<end>")
    assert ids() == text
    assert ids("--add-special") == [256, *text]
    assert ids("--parse-special") == [120, 257]


def test_json_has_text_and_bytes(ramforge, vocabulary):
    shown = json.loads(ramforge("tokenize", vocabulary, "a", "--json").out)
    assert shown == {"ids": [97], "tokens": [{"id": 97, "piece": "a", "bytes": "61"}]}


@pytest.mark.parametrize("option", [[], ["-"]])
def test_stdin_is_read_to_the_last_byte(ramforge, vocabulary, option):
    out = ramforge("tokenize", vocabulary, *option, "--json", stdin=b"a\r\n\n").out
    assert json.loads(out)["ids"] == [97, 13, 10, 10]


def test_an_empty_text(ramforge, vocabulary):
    assert ramforge("tokenize", vocabulary, "") == (0, "", "")


def test_decode_gives_the_bytes_back(process, ramforge, vocabulary):
    started = process(
        "tokenize", vocabulary, "--decode", "[195, 164] 257,255", env={"PYTHONPATH": sys.path[0]}
    )
    assert started.communicate() == (b"\xc3\xa4<end>\xff\n", b"")
    out = ramforge("tokenize", vocabulary, "--decode", "195 164 255", "--json").out
    assert json.loads(out) == {"text": "ä\\xff", "bytes": "c3a4ff"}


@pytest.mark.parametrize("ids", ["258", "-1", "1 two 3", "1.5"])
def test_ids_that_are_none(ramforge, vocabulary, ids):
    outcome = ramforge("tokenize", vocabulary, f"--decode={ids}")
    assert outcome.code == 2
    assert "--decode" in outcome.err


def test_a_tokenizer_that_is_not_installed(ramforge, tmp_path):
    file = write_gguf(tmp_path / "v.gguf", {"tokenizer.ggml.model": "runes"})
    outcome = ramforge("tokenize", file, "x")
    assert (outcome.code, outcome.out) == (4, "")
    assert "'runes'" in outcome.err


def test_the_default_model_tokenizes(ramforge, smollm2):
    outcome = ramforge("tokenize", smollm2, "Hello<|im_end|>", "--parse-special", "--json")
    assert outcome.code == 0
    tokens = json.loads(outcome.out)["tokens"]
    assert [t["piece"] for t in tokens] == ["Hello", "<|im_end|>"]
    ids = ",".join(str(t["id"]) for t in tokens)
    assert ramforge("tokenize", smollm2, "--decode", ids).out == "Hello<|im_end|>\n"


# ------------------------------------------------------------------ inspect and support


METADATA = {"general.architecture": "llama", "general.name": "tiny \x1b[31m red"}
TENSORS = {"a.weight": (0, (2, 4), bytes(32)), "b.weight": (250, (4,), bytes(16))}


def test_inspect_shows_metadata_and_tensors(ramforge, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", METADATA, {"a.weight": TENSORS["a.weight"]})
    outcome = ramforge("inspect", file)
    assert (outcome.code, outcome.err) == (0, "")
    for part in ("general.architecture", "llama", "a.weight", "f32"):
        assert part in outcome.out
    assert "\x1b" not in outcome.out
    facts = json.loads(ramforge("inspect", file, "--json").out)
    assert facts["architecture"] == "llama"
    assert [(t["name"], t["shape"], t["nbytes"]) for t in facts["tensors"]] == [("a.weight", [2, 4], 32)]


def test_unsupported_types_are_shown_not_refused(ramforge, tmp_path):
    file = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    for command in ("inspect", "support"):
        outcome = ramforge(command, file)
        assert (outcome.code, outcome.err) == (0, "")
        assert "250" in outcome.out
    assert json.loads(ramforge("support", file, "--json").out)["runnable"] is False


@pytest.mark.parametrize("command", ["inspect", "support"])
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_file_that_is_cut_short_is_shown_and_is_an_error(ramforge, tmp_path, command, as_json):
    whole = gguf_bytes(METADATA, {"a.weight": TENSORS["a.weight"]})
    file = tmp_path / "m.gguf"
    file.write_bytes(whole[:-1])
    outcome = ramforge(command, file, *as_json)
    assert outcome.code == 3
    assert "a.weight" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    if as_json:
        json.loads(outcome.out)


@pytest.mark.parametrize("name", ["../../x", "a\x1b[2Jb\nc", "x --index-url=y"])
@pytest.mark.parametrize("command", ["run", "inspect", "support", "tokenize", "plan", "verify"])
def test_a_hostile_name_of_a_file_is_shown_escaped_and_never_as_advice(ramforge, tmp_path, command, name):
    names = {"general.architecture": name, "tokenizer.ggml.model": name}
    file = write_gguf(tmp_path / "m.gguf", names, TENSORS)
    outcome = ramforge(command, file, stdin=b"x")
    shown = outcome.out + outcome.err
    assert repr(name) in shown
    assert "package to try" not in shown
    assert "\x1b" not in shown
    if outcome.code:
        assert outcome.code == 4
        assert len(outcome.err.splitlines()) == 1


def test_support_lists_what_is_installed(ramforge):
    outcome = ramforge("support")
    assert outcome.code == 0
    assert "ramforge-sources" in outcome.out
    facts = json.loads(ramforge("support", "--json").out)
    assert {s["key"] for s in facts["sources"]} >= {"hf", "pypi"}


def test_support_works_with_a_broken_plugin(ramforge, tmp_path, monkeypatch):
    points = {"ramforge.backends": {"broken": "broken_backend_module"}}
    fake_install(tmp_path, "ramforge-broken", points, {"broken_backend_module": "1 / 0"})
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = ramforge("support")
    assert outcome.code == 0
    assert "ZeroDivisionError" in outcome.out
    assert json.loads(ramforge("support", "--json").out)["broken"][0]["distribution"] == "ramforge-broken"
