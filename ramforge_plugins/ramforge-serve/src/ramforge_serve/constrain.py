"""Answers bound to a grammar, through llguidance (the extra ``constrain``)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import numpy as np
from attrs import define
from numpy.typing import NDArray

from ramforge_core.tokenizer import Tokenizer
from ramforge_serve.faults import Fault

_BLANKS = r"\n? {0,16}"
"""Between the parts of JSON: lines and indents, but no end of them, which small models like too well."""

_SCHEMA_BYTES = 32 << 10
"""With the limits below, a schema takes at most seconds to read, half a second for a token, and some 10 MB; the
library's own limits are ten times as wide in memory."""


class Grammar:
    """Lets through only tokens that go on as the grammar wants; in the end only one that ends the answer."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def copy(self) -> Grammar:
        """As this one is now, for another answer."""
        return Grammar(self._matcher.deep_copy())

    def allow(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        allowed = np.unpackbits(mask, bitorder="little", count=logits.size)  # 0 beyond the mask
        return np.where(allowed, logits, np.float32(-np.inf))

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        """Some schemas show only on the way that they are too much to follow."""
        if self._matcher.is_error():
            raise Fault(400, f"the schema cannot be followed: {_reason(self._matcher)}", "invalid_value")


@define(eq=False)
class Grammars:
    """Makes grammars for one vocabulary. Some 400 bytes for each of its tokens; build it before memory is divided."""

    _vocabulary: Any

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Grammars | None:
        """None where llguidance is not installed, or the vocabulary has no token that ends an answer."""
        if find_spec("llguidance") is None or not tokenizer.end_of_generation:
            return None
        import llguidance

        wrapped = llguidance.TokenizerWrapper(_Vocabulary(tokenizer))
        return cls(llguidance.LLTokenizer(wrapped))

    def json(self, schema: dict[str, Any], param: str) -> Grammar:
        """JSON that a schema describes. Raises Fault naming ``param`` for a schema that cannot be bound to."""
        from llguidance import LLMatcher, LLParserLimits

        try:
            text = json.dumps(schema)
            if len(text) > _SCHEMA_BYTES:
                raise _refused(f"it has {len(text)} bytes, more than {_SCHEMA_BYTES}", param)
            grammar = LLMatcher.grammar_from_json_schema(text, {"whitespace_pattern": _BLANKS})
        except (ValueError, RecursionError) as error:
            raise _refused(str(error), param) from error
        limits = LLParserLimits(
            max_grammar_size=50_000, max_lexer_states=20_000, step_lexer_fuel=200_000, step_max_items=20_000
        )
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refused(_reason(matcher), param)
        return Grammar(matcher)


def _refused(reason: str, param: str) -> Fault:
    return Fault(400, f"the schema cannot be bound to: {reason}", "invalid_value", param)


def _reason(matcher: Any) -> str:
    """Why a matcher gave up, without its state, which has the answer so far in it."""
    return str(matcher.get_error()).partition("\n")[0]


class _Vocabulary:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.end_of_generation)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.piece(t) for t in range(tokenizer.n_vocab)]
        self.special_token_ids = [t for t in range(tokenizer.n_vocab) if tokenizer.is_control(t)]

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"))


def grammars_or_fault(grammars: Grammars | None, param: str) -> Grammars:
    if grammars is None:
        raise Fault(
            400,
            "answers bound to JSON need the package llguidance on the server: install ramforge-serve[constrain]",
            "unsupported",
            param,
        )
    return grammars
