"""The generation loop on a scripted model: every way to end, and text that streams whole (field cases C01 to C10)."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ramforge_core.answer import Answer
from ramforge_core.errors import ParameterError
from ramforge_core.generation import Generation
from ramforge_core.sampling import Sampler, SamplingParameters
from ramforge_core.stream import StreamStats
from ramforge_core.tokenizer import TokenStream

END, TURN = 300, 301


class Bytes:
    """Tokens 0..255 are bytes, 300 and 301 control tokens, the others given texts."""

    end_of_generation = frozenset({END, TURN})

    def __init__(self, **pieces: str) -> None:
        self.pieces = {int(k[1:]): v.encode() for k, v in pieces.items()} | {
            END: b"<|end|>",
            TURN: b"<|turn|>",
            302: b"<|tool|>",
        }

    def piece(self, token: int, *, special: bool = True) -> bytes:
        if token < 256:
            return bytes([token])
        return self.pieces[token] if special or token < 300 else b""

    def token_id(self, text: str) -> int | None:
        return next((t for t, p in self.pieces.items() if p == text.encode()), None)

    def stream(self, *, special: bool = False) -> TokenStream:
        return TokenStream(self, special=special)


class Script:
    """An engine whose greedy tokens are given; counts its passes."""

    reads = StreamStats()

    def __init__(self, tokens, context=1000) -> None:
        self.tokens, self.context, self.passes = list(tokens), context, 0

    def cache(self):
        return SimpleNamespace(truncate=lambda positions: None)

    def _logits(self):
        logits = np.zeros(400, np.float32)
        logits[self.tokens[self.passes]] = 1
        self.passes += 1
        return logits

    def prefill(self, tokens, cache, start=0, progress=None):
        return self._logits()

    def run(self, tokens, start, cache, wanted):
        assert start + len(tokens) <= self.context
        return [self._logits()]


def answer(tokens, tokenizer=None, prompt=(1, 2, 3), context=1000, **options):
    engine = Script(tokens, context)
    greedy = Sampler(SamplingParameters(temperature=0))
    made = Answer(tokenizer or Bytes(), context - len(prompt) + 1, **options)
    g = Generation(engine, list(prompt), greedy, made)
    return g, list(g), engine


def test_c01_a_character_over_four_tokens_comes_whole():
    g, pieces, _ = answer([*"😸".encode(), 65, *"赋".encode(), END])
    assert pieces == ["😸", "A", "赋"]
    assert g.finish_reason == "stop"


def test_c02_an_incomplete_tail_is_one_replacement_character():
    assert answer([0xF0, 0x9F, END])[1] == ["\ufffd"]


def test_c02_invalid_bytes_do_not_stall_later_text():
    _, pieces, _ = answer([0xC0, 0xFF, ord("a"), END])
    assert "".join(pieces) == "\ufffd\ufffda"


def test_c04_a_stop_over_several_tokens_is_never_shown():
    tokens = Bytes(t256="ABC", t257="DEF", t258="G", t259="HI", t260="JK")
    g, pieces, _ = answer([256, 257, 258, 259, 260, 256], tokens, stop=["DEFGHIJ"])
    assert "".join(pieces) == "ABC"
    assert g.finish_reason == "stop"


@pytest.mark.parametrize(
    ("token", "stop", "shown"), [("stop!", "stop", ""), ("a...", "..", "a"), ("xstopy", "stop", "x")]
)
def test_c06_a_stop_inside_a_token_cuts_right_before_it(token, stop, shown):
    g, pieces, _ = answer([256, 65], Bytes(t256=token), stop=[stop])
    assert "".join(pieces) == shown
    assert g.finish_reason == "stop"


def test_an_unfinished_stop_is_text_after_all():
    _, pieces, _ = answer([ord("D"), ord("E"), END], stop=["DEF"])
    assert "".join(pieces) == "DE"


@pytest.mark.parametrize("end", [END, TURN])
def test_c07_every_end_of_generation_token_ends(end):
    g, pieces, engine = answer([65, end, 66])
    assert (pieces, g.ids, g.finish_reason, engine.passes) == (["A"], [65], "stop", 2)


def test_c09_a_control_token_can_be_a_stop():
    g, pieces, _ = answer([65, 302, 66], stop=["<|tool|>"])
    assert (pieces, g.finish_reason) == (["A"], "stop")


def test_c10_control_tokens_print_nothing_unless_asked():
    assert "".join(answer([65, 302, 66, END])[1]) == "AB"
    assert "".join(answer([65, 302, 66, END], special=True)[1]) == "A<|tool|>B"


def test_length_is_reached_without_a_pass_for_nothing():
    g, pieces, engine = answer([65, 66, 67, 68], max_tokens=3)
    assert ("".join(pieces), g.finish_reason, engine.passes) == ("ABC", "length", 3)


def test_no_tokens_no_pass():
    g, pieces, engine = answer([65], max_tokens=0)
    assert (pieces, g.finish_reason, engine.passes) == ([], "length", 0)


def test_a_full_context_ends_the_answer():
    g, pieces, _ = answer([65, 66, 67, 68], context=5)
    assert ("".join(pieces), g.finish_reason) == ("ABC", "context")


def test_counts():
    g, _, _ = answer([65, 66, END])
    assert (g.stats.prompt_tokens, g.stats.generated_tokens, g.stats.decode_passes) == (3, 2, 2)


@pytest.mark.parametrize("options", [{"max_tokens": -1}, {"stop": [""]}])
def test_senseless_options_are_refused(options):
    with pytest.raises(ParameterError):
        answer([END], **options)
