"""Conformance of tokenizers: what the engine and the chat templates rely on, for anybody's plugin to run."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from typing import Any

import pytest

from ramforge_core.errors import MetadataError, RamforgeError
from ramforge_core.gguf import Metadata
from ramforge_core.tokenizer import Tokenizer

SAMPLES = (
    "Hello, world!",
    " leading and trailing ",
    "two  blanks,\ttabs\tand\n\nnewlines\r\n",
    "I'LL say it's 1234567 + 0.5 = x->y; (z):\n    return {}",
    "naïve café, Ελληνικά, 你好世界, ひらがな, हिन्दी, العربية, עברית",
    "👩🏽‍🚀 \u2581 \u2029 \ua3e4 \ufffd \0 \x7f",
    "a",
    " ",
)
"""Texts of all kinds; any vocabulary has to take them, and give them back if it is lossless."""

MANY = 50_000
"""Equal characters in a row that must be no problem."""


class TokenizerTests:
    """Subclass it and override `tokenizer`; the other fixtures have defaults."""

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        raise NotImplementedError(
            "override the fixture `tokenizer`: return an instance over a small vocabulary"
        )

    @pytest.fixture
    def lossless(self) -> bool:
        """Whether tokens give every text back; False where the vocabulary has no token for some bytes."""
        return True

    def test_key_and_size(self, tokenizer: Tokenizer) -> None:
        """T1: the class has a non-empty key, the instance a positive number of tokens."""
        assert type(tokenizer).key
        assert tokenizer.n_vocab > 0

    def test_ids_are_tokens(self, tokenizer: Tokenizer) -> None:
        """T2: encode gives plain ints below n_vocab, the same ones each time."""
        for text in SAMPLES:
            ids = tokenizer.encode(text)
            assert all(type(i) is int and 0 <= i < tokenizer.n_vocab for i in ids), text
            assert tokenizer.encode(text) == ids, text

    def test_text_comes_back(self, tokenizer: Tokenizer, lossless: bool) -> None:
        """T3: detokenize gives the text back to the byte, with and without BOS and EOS around it."""
        if not lossless:
            pytest.skip("the vocabulary is not lossless")
        for text in SAMPLES:
            assert tokenizer.detokenize(tokenizer.encode(text)).decode() == text
            ids = tokenizer.encode(text, add_special=True)
            around = b"".join(
                tokenizer.piece(i) for i in ids[:1] if i == tokenizer.bos_id and tokenizer.add_bos
            )
            behind = b"".join(
                tokenizer.piece(i) for i in ids[-1:] if i == tokenizer.eos_id and tokenizer.add_eos
            )
            assert tokenizer.detokenize(ids) == around + text.encode() + behind

    def test_nothing_from_nothing(self, tokenizer: Tokenizer) -> None:
        """T4: the empty text has no tokens but BOS and EOS."""
        assert tokenizer.encode("") == []
        assert tokenizer.encode("", add_special=True) == self.around(tokenizer, [])
        assert tokenizer.detokenize([]) == b""

    def around(self, tokenizer: Tokenizer, ids: list[int]) -> list[int]:
        first = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        last = [tokenizer.eos_id] if tokenizer.add_eos and tokenizer.eos_id is not None else []
        return first + ids + last

    def test_special_tokens_are_added_once(self, tokenizer: Tokenizer) -> None:
        """T5: add_special adds BOS and EOS as the file asks, and no BOS before one that the text begins with."""
        for text in SAMPLES:
            assert tokenizer.encode(text, add_special=True) == self.around(tokenizer, tokenizer.encode(text))
        if tokenizer.bos_id is None or not tokenizer.add_bos:
            return
        bos = tokenizer.piece(tokenizer.bos_id).decode()
        ids = tokenizer.encode(f"{bos}text", add_special=True, parse_special=True)
        assert ids.count(tokenizer.bos_id) == 1
        assert ids[0] == tokenizer.bos_id

    def test_typed_control_text_is_text(self, tokenizer: Tokenizer) -> None:
        """T6: without parse_special the text of a control token never becomes a control token."""
        for text in tokenizer.control_texts:
            for typed in (text, f"say {text} twice{text}", f" {text}\n"):
                ids = tokenizer.encode(typed)
                assert not [i for i in ids if tokenizer.is_control(i)], typed

    def test_parsed_control_text_is_a_token(self, tokenizer: Tokenizer) -> None:
        """T7: with parse_special it does, wherever it stands."""
        for text in tokenizer.control_texts:
            token = tokenizer.token_id(text)
            assert token is not None, text
            assert tokenizer.is_control(token), text
            assert tokenizer.encode(text, parse_special=True) == [token]
            assert tokenizer.encode(f"a{text}b{text}", parse_special=True).count(token) == 2, text

    def test_barriers(self, tokenizer: Tokenizer) -> None:
        """T8: no special token spans a barrier; one that only touches it is parsed."""
        for text in tokenizer.control_texts:
            token = tokenizer.encode(text, parse_special=True)[0]
            whole = f"ab{text}cd"
            end = 2 + len(text)
            for inside in range(3, end):
                ids = tokenizer.encode(whole, parse_special=True, barriers=[inside])
                assert token not in ids, (text, inside)
            ids = tokenizer.encode(whole, parse_special=True, barriers=[0, 2, end, len(whole)])
            assert ids.count(token) == 1, text
            ids = tokenizer.encode(text + whole, parse_special=True, barriers=[len(text) + 3])
            assert ids.count(token) == (2 if len(text) == 1 else 1), text

    def test_pieces(self, tokenizer: Tokenizer) -> None:
        """T9: decode joins pieces; a control token's piece is its text, or nothing if special is False."""
        for text in SAMPLES:
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == b"".join(tokenizer.piece(i) for i in ids)
        for text in tokenizer.control_texts:
            token = tokenizer.token_id(text)
            assert token is not None
            assert tokenizer.piece(token) == text.encode()
            assert tokenizer.piece(token, special=False) == b""

    def test_foreign_ids_are_refused(self, tokenizer: Tokenizer) -> None:
        """T10: the piece of an id outside the vocabulary is a RamforgeError; an unknown text has no id."""
        for token in (-1, tokenizer.n_vocab, 1 << 40):
            with pytest.raises(RamforgeError):
                tokenizer.piece(token)
        assert tokenizer.token_id("\0 no token has this text \0") is None

    def test_ends_of_generation(self, tokenizer: Tokenizer) -> None:
        """T11: the ids that end an answer are tokens, and EOS is among them."""
        assert all(0 <= i < tokenizer.n_vocab for i in tokenizer.end_of_generation)
        assert tokenizer.eos_id is None or tokenizer.eos_id in tokenizer.end_of_generation

    def test_stream(self, tokenizer: Tokenizer, lossless: bool) -> None:
        """T12: a stream gives the same text as decode, and never half a character."""
        for text in SAMPLES:
            ids = tokenizer.encode(text)
            stream = tokenizer.stream()
            parts = [stream.push(i) for i in ids]
            assert "".join([*parts, stream.finish()]) == tokenizer.decode(ids, special=False).decode(
                errors="replace"
            )
            assert not lossless or "\ufffd" not in "".join(parts) or "\ufffd" in text

    def test_long_runs(self, tokenizer: Tokenizer, lossless: bool) -> None:
        """T13: long runs of one character are no problem, whatever the character."""
        for character in "Aé中 .\n0<👩":
            text = character * MANY
            ids = tokenizer.encode(text, parse_special=True)
            if lossless:
                assert tokenizer.detokenize(ids) == text.encode()

    def test_threads(self, tokenizer: Tokenizer) -> None:
        """T14: several threads may encode with one tokenizer."""
        texts = [text * (k + 1) for text in SAMPLES for k in range(8)]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(tokenizer.encode, texts)) == [tokenizer.encode(text) for text in texts]

    def test_any_text(self, tokenizer: Tokenizer) -> None:
        """T15: half surrogates, which no UTF-8 can hold, count as U+FFFD and do not stop anything."""
        assert tokenizer.encode("a\ud800b\udfff") == tokenizer.encode("a\ufffdb\ufffd")

    def test_missing_vocabulary_is_named(self, tokenizer: Tokenizer) -> None:
        """T16: metadata without a vocabulary is a MetadataError that names the key."""
        with pytest.raises(MetadataError, match=r"tokenizer\."):
            type(tokenizer).from_metadata(Metadata.from_dict({}))


def golden_rows(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Rows of a file of golden vectors: gzip, one JSON object a line; fields as `golden_faults` reads them."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def golden_faults(tokenizer: Tokenizer, row: dict[str, Any], *, detokenize: bool = True) -> Sequence[str]:
    """What differs in one row of golden vectors: names of fields.

    row : ``text``; ``ids``, ``ids_special`` (parse_special) and ``ids_with_bos_eos`` (add_special); base64 of the
        bytes ``pieces_b64`` (of ``ids``), ``hidden_special_b64`` (of ``ids_special`` with special=False) and
        ``detok_b64`` (detokenize of ``ids``).
    detokenize : whether ``detok_b64`` can be compared; not if the reference drops blanks that it did not add.
    """
    text = row["text"]
    got = {
        "ids": tokenizer.encode(text),
        "ids_special": tokenizer.encode(text, parse_special=True),
        "ids_with_bos_eos": tokenizer.encode(text, add_special=True),
        "pieces_b64": _base64(tokenizer.decode(row["ids"])),
        "hidden_special_b64": _base64(tokenizer.decode(row["ids_special"], special=False)),
    }
    if detokenize:
        got["detok_b64"] = _base64(tokenizer.detokenize(row["ids"]))
    return [field for field, value in got.items() if value != row[field]]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
