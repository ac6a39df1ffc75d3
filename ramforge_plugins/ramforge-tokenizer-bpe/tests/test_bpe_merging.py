"""The C code against plain readings of the same rules: merging, cutting, classes of characters."""

import random
import unicodedata

import numpy as np
import pytest
import tiny_bpe

from ramforge_tokenizer_bpe._kernels import ffi, lib
from ramforge_tokenizer_bpe.presets import PRESETS
from ramforge_tokenizer_bpe.tokenizer import BytePairTokenizer, words


def cut(pre, text):
    return words(PRESETS[pre].split if pre in PRESETS else lib.RF_SPLIT_DEFAULT, text)


def test_merging_is_the_textbook_algorithm():
    random.seed(7)
    letters = "abcd"
    for _ in range(200):
        known, pairs = list(letters), []
        for _ in range(random.randint(0, 20)):
            pair = (random.choice(known), random.choice(known))
            if len("".join(pair)) < 9 and "".join(pair) not in known:
                pairs.append(pair)
                known.append("".join(pair))
        tokenizer = BytePairTokenizer.from_metadata(tiny_bpe.metadata(pairs=pairs))
        for _ in range(20):
            word = "".join(random.choices(letters, k=random.randint(1, 40)))
            pieces = [tokenizer.piece(i).decode() for i in tokenizer.encode(word)]
            assert pieces == tiny_bpe.merge_slowly(word.encode(), pairs), (word, pairs)


def test_of_equal_merges_the_first_counts():
    pairs = [("a", "b"), ("b", "c"), ("a", "b")]
    tokenizer = BytePairTokenizer.from_metadata(tiny_bpe.metadata(pairs=pairs))
    assert [tokenizer.piece(i) for i in tokenizer.encode("abc")] == [b"ab", b"c"]


def test_merge_of_unknown_strings_never_happens():
    merges = ["a b", "no such", "ab z"]
    tokenizer = BytePairTokenizer.from_metadata(tiny_bpe.metadata(pairs=[("a", "b")], merges=merges))
    assert [tokenizer.piece(i) for i in tokenizer.encode("abz")] == [b"ab", b"z"]


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_whole_words_are_taken_only_where_the_model_does(pre, whole):
    values = tiny_bpe.values(pre, pairs=[("x", "y"), ("xy", "z")])
    values["tokenizer.ggml.merges"] = ["x y"]
    tokenizer = BytePairTokenizer.from_metadata(tiny_bpe.Metadata.from_dict(values))
    assert [tokenizer.piece(i) for i in tokenizer.encode("xyz")] == ([b"xyz"] if whole else [b"xy", b"z"])


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        (
            "gpt-2",
            "I'LL it's  12345 (x):\n",
            ["I", "'", "LL", " it", "'s", " ", " 12345", " (", "x", "):", "\n"],
        ),
        (
            "llama-bpe",
            "I'LL it's  12345 (x):\n",
            ["I", "'LL", " it", "'s", " ", " ", "123", "45", " (", "x", "):\n"],
        ),
        ("qwen2", "12->ab \n\n x", ["1", "2", "->", "ab", " \n\n", " x"]),
        ("smollm", "a12 b", ["a", "1", "2", " b"]),
        ("default", "a+12345= b", ["a", "+", "123", "45", "=", " b"]),
        ("falcon", "`a` 12345\n", ["`", "a", "`", " ", "123", "45", "\n"]),
        ("deepseek-llm", "a b, 12中文\n\n  ", ["a", " b", ",", " ", "12", "中文", "\n", "\n", "  "]),
        ("deepseek-coder", "x1 = 中\r\n", ["x", "1", " =", " ", "中", "\r", "\n"]),
        ("gpt-2", "a\u2029\ua3e4 \t b", ["a", "\u2029", "\ua3e4", " \t", " b"]),
        ("llama-bpe", "\t\tx \u00a0y\u3000", ["\t", "\tx", " ", "\u00a0y", "\u3000"]),
    ],
)
def test_b08_words(pre, text, expected):
    assert cut(pre, text) == expected


@pytest.mark.parametrize(
    "pre", ["default", *sorted({preset.split: name for name, preset in PRESETS.items()}.values())]
)
def test_words_make_up_the_text(pre):
    random.seed(3)
    characters = "aB1 '\n\r\t.$+`中가ß\u00a0\u3000\u0301٣Ⅷ𝟘👩'sll"
    for _ in range(500):
        text = "".join(random.choices(characters, k=random.randint(1, 30)))
        found = cut(pre, text)
        assert "".join(found) == text
        assert all(found)


def test_classes_agree_with_python_where_it_knows_the_character():
    """Python may have an older Unicode; characters keep their class once they are assigned."""
    assigned = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Cs")]
    text = "".join(assigned).encode()
    points, classes = np.empty(len(text), np.uint32), np.empty(len(text), np.uint8)
    starts, longest = np.empty(len(text) + 1, np.uint8), ffi.new("int64_t *")
    buffers = [
        ffi.from_buffer(t, a)
        for t, a in (("uint32_t[]", points), ("uint8_t[]", classes), ("uint8_t[]", starts))
    ]
    assert lib.rf_split(lib.RF_SPLIT_GPT2, text, len(text), *buffers, longest) == len(assigned)
    bits = {"L": 1, "N": 2, "P": 4, "S": 8, "M": 16}
    spaces = {*"\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000", *map(chr, range(0x2000, 0x200B))}
    expected = [32 if c in spaces else bits.get(unicodedata.category(c)[0], 0) for c in assigned]
    differ = [hex(ord(c)) for c, a, b in zip(assigned, classes.tolist(), expected, strict=False) if a != b]
    assert len(differ) < 20, differ  # a few characters did change category between Unicode 13 and 18
