"""What an answer is made of, token by token: its text, and the ways that it can end."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Literal

from attrs import define, field

from ramforge_core.errors import ParameterError
from ramforge_core.stops import StopMatcher
from ramforge_core.tokenizer import Tokenizer, TokenStream

FinishReason = Literal["stop", "length", "context"]


@define(eq=False)
class Answer:
    """Takes drawn tokens and gives the text that they complete, up to the end.

    room : tokens that the context has left for it after the prompt, and one: the last one need not be run.
    max_tokens : None goes on until the model ends it or the room is used. special : show control tokens.
    ids : tokens so far, without the one that ended it.
    finish_reason : None while it goes on; then stop (end-of-generation token or stop string), length (max_tokens
    reached) or context (no room left).
    Raises ParameterError for a ``max_tokens`` below zero or an empty stop string.
    """

    tokenizer: Tokenizer
    room: int
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    special: bool = False
    ids: list[int] = field(factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    _ends: Set[int] = field(init=False, repr=False)
    _stream: TokenStream = field(init=False, repr=False)
    _matcher: StopMatcher = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ParameterError(f"max_tokens is {self.max_tokens}, expected 0 or more")
        if any(not s for s in self.stop):
            raise ParameterError("a stop string is empty; every text contains it")
        stops = {token for s in self.stop if (token := self.tokenizer.token_id(s)) is not None}
        self._ends = self.tokenizer.end_of_generation | stops
        self._stream = self.tokenizer.stream(special=self.special)
        self._matcher = StopMatcher(self.stop)
        if self.max_tokens == 0:
            self.finish_reason = "length"

    def accept(self, token: int) -> str:
        """The text that this token completes, maybe none; afterwards see ``finish_reason``."""
        if token in self._ends:
            self.finish_reason = "stop"
            return self._rest()
        self.ids.append(token)
        piece, stopped = self._matcher.push(self._stream.push(token))
        if stopped:
            self.finish_reason = "stop"
        elif len(self.ids) == self.max_tokens:
            self.finish_reason = "length"
            piece += self._rest()
        elif len(self.ids) >= self.room:
            self.finish_reason = "context"
            piece += self._rest()
        return piece

    def _rest(self) -> str:
        """What was held back, now that no more text comes; a stop string may be complete with it."""
        piece, stopped = self._matcher.push(self._stream.finish())
        if stopped:
            self.finish_reason = "stop"
            return piece
        return piece + self._matcher.flush()
