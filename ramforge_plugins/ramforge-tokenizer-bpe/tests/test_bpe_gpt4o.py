"""The split of gpt-4o vocabularies against its pattern, on an alphabet that `re` has classes for."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import numpy as np

from ramforge_tokenizer_bpe.presets import PRESETS
from ramforge_tokenizer_bpe.tokenizer import Cut

# As in llama.cpp, src/llama-vocab.cpp: letters outside ASCII count as capital and as small.
UPPER, LOWER, LETTER = "[A-Zé世]", "[a-zé世]", "[A-Za-zé世]"
END = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?"
LEAD = "[^\r\nA-Za-zé世0-9]?"
PATTERN = re.compile(
    f"{LEAD}{UPPER}*{LOWER}+{END}|{LEAD}{UPPER}+{LOWER}*{END}|[0-9]{{1,3}}"
    f"| ?[^\\sA-Za-zé世0-9]+[\r\n/]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)


def words(text: str) -> list[str]:
    found = Cut(PRESETS["gpt-4o"].split, text.encode())
    at = [*np.flatnonzero(found.starts[: found.count]).tolist(), found.count]
    return [text[a:b] for a, b in pairwise(at)]


def test_words_are_those_of_the_pattern():
    rng = random.Random(7)
    alphabet = "aAbBsStTlLreRE''é世 \t\n\r/.,019"
    for _ in range(20000):
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 14)))
        assert words(text) == PATTERN.findall(text), repr(text)


def test_a_word_ends_before_a_capital_that_follows_a_small_letter():
    assert words("HTMLParser's getURLs") == ["HTMLParser's", " get", "URLs"]
    assert words("LOUD don't") == ["LOUD", " don't"]
    assert words("a//\n  b") == ["a", "//\n", " ", " b"]
