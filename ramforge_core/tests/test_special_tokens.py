"""Special tokens in text: against a plain reading of llama.cpp's order, and what must stay linear (B12)."""

import random
import time

import pytest

from ramforge_core.errors import ParameterError
from ramforge_core.special_tokens import SpecialMatch, SpecialMatcher, SpecialToken


def split_slowly(text, tokens):
    """The longest token first, in every piece of text that is left, from left to right."""
    pieces = [(0, len(text), None)]
    for special in sorted(tokens, key=lambda t: (-len(t.text.encode()), t.token)):
        after = []
        for begin, end, token in pieces:
            at = text.find(special.text, begin, end) if token is None else -1
            while at >= 0:
                stop = at + len(special.text)
                while special.strip_right and stop < end and text[stop] in " \n":
                    stop += 1
                after += [(begin, at, None), (at, stop, special.token)]
                begin = stop
                at = text.find(special.text, begin, end)
            after.append((begin, end, token))
        pieces = [piece for piece in after if piece[0] < piece[1]]
    return [SpecialMatch(*piece) for piece in pieces if piece[2] is not None]


def test_order_is_longest_first_everywhere():
    random.seed(5)
    for _ in range(2000):
        texts = {
            "".join(random.choices("ab <é", k=random.randint(1, 5))) for _ in range(random.randint(0, 6))
        }
        tokens = [SpecialToken(t, i, strip_right=random.random() < 0.3) for i, t in enumerate(sorted(texts))]
        text = "".join(random.choices("ab <é", k=random.randint(0, 40)))
        assert SpecialMatcher(tokens).split(text) == split_slowly(text, tokens), (text, tokens)


def test_characters_that_mean_something_to_regular_expressions():
    tokens = [SpecialToken(text, i) for i, text in enumerate(["^a", "]b", "-c", "\\d", "[e", "&&f", "||"])]
    found = SpecialMatcher(tokens).split("x^a]b-c\\d[e&&f||y")
    assert [match.token for match in found] == [0, 1, 2, 3, 4, 5, 6]


def test_b01_no_token_spans_a_barrier():
    matcher = SpecialMatcher([SpecialToken("<end>", 1), SpecialToken("<tool>", 2, control=False)])
    text = "<end><tool><end>"
    assert [m.token for m in matcher.split(text)] == [1, 2, 1]
    assert [m.token for m in matcher.split(text, [0, 5, 11, 16])] == [1, 2, 1]
    assert [m.token for m in matcher.split(text, [1, 7])] == [1]
    assert [m.token for m in matcher.split(text, range(17))] == []


def test_a_token_behind_a_barrier_is_still_found():
    matcher = SpecialMatcher([SpecialToken("aa", 1)])
    assert matcher.split("aaaa", [1]) == [SpecialMatch(1, 3, 1)]


@pytest.mark.parametrize("barriers", [[-1], [5], [0, 9]])
def test_barriers_outside_the_text_are_refused(barriers):
    with pytest.raises(ParameterError, match="from 0 to 4"):
        SpecialMatcher([SpecialToken("aa", 1)]).split("aaaa", barriers)


def test_b12_time_does_not_depend_on_how_many_special_tokens_there_are():
    blanks = [SpecialToken(" " * n, n, control=False) for n in range(2, 25)]
    unused = [SpecialToken(f"<unused{n}>", 100 + n) for n in range(6000)]
    matcher = SpecialMatcher(blanks + unused)
    for text in (" " * 300_000, "<" * 300_000, "<unused" * 50_000, "<unused77>  " * 30_000):
        begin = time.process_time()
        found = matcher.split(text, range(0, len(text), 1000))
        assert time.process_time() - begin < 3
        assert sum(match.end - match.start for match in found) <= len(text)
