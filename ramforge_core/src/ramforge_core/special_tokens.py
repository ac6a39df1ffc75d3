"""Finding the texts of special tokens in text: longest tokens first, each where the text is still free.

The order is llama.cpp's (src/llama-vocab.cpp): a longer special token takes its places in the whole text before a
shorter one gets any. The time is linear in the text however many special tokens there are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter

from attrs import frozen

from ramforge_core.errors import ParameterError

BLANKS = " \t\n\v\f\r"


@frozen
class SpecialToken:
    """A token that is matched as text: strip_right if it swallows the blanks behind it."""

    text: str
    token: int
    control: bool = True
    strip_right: bool = False


@frozen
class SpecialMatch:
    """Characters [start, end) of a text are this token."""

    start: int
    end: int
    token: int


class SpecialMatcher:
    """Finds some special tokens. Immutable and safe from several threads."""

    def __init__(self, tokens: Sequence[SpecialToken]) -> None:
        ordered = sorted(tokens, key=lambda t: (-len(t.text.encode()), t.token))
        self._tokens = {t.text: t for t in ordered}
        self._rank = {t.text: rank for rank, t in enumerate(ordered)}
        self._heads: dict[str, int] = {}  # first character to how many characters all that begin with it have
        for text in self._tokens:
            self._heads[text[0]] = min(len(text), self._heads.get(text[0], len(text)))
        lengths: dict[str, set[int]] = {}
        for text in self._tokens:
            lengths.setdefault(self._head(text), set()).add(len(text))
        self._lengths = {head: tuple(sorted(found, reverse=True)) for head, found in lengths.items()}
        first = re.escape("".join(sorted(self._heads)))
        self._first = re.compile(f"[{first}]") if first else None

    def _head(self, text: str) -> str:
        """So many characters of a special token's text as others with its first character have too."""
        return text[: self._heads[text[0]]]

    def split(self, text: str, barriers: Sequence[int] = ()) -> list[SpecialMatch]:
        """The special tokens in a text, in order, none overlapping; blanks that one swallows are part of it.

        barriers : character offsets that no special token may span. Raises ParameterError if outside the text.
        """
        fence = _fence(text, barriers)
        present = self._present(text)
        if not present:
            return []
        taken = bytearray(len(text))
        matches = []
        for found in sorted(present, key=self._rank.__getitem__):
            special = self._tokens[found]
            at = text.find(found)
            while at >= 0:
                end = at + len(found)
                blocked = taken.rfind(1, at, end)
                if blocked >= 0:
                    free = taken.find(0, blocked + 1)
                    at = text.find(found, free) if free >= 0 else -1
                    continue
                if fence.find(1, at + 1, end) >= 0:
                    at = text.find(found, at + 1)
                    continue
                while special.strip_right and end < len(text) and text[end] in BLANKS and not taken[end]:
                    end += 1
                taken[at:end] = b"\1" * (end - at)
                matches.append(SpecialMatch(at, end, special.token))
                at = text.find(found, end)
        return sorted(matches, key=attrgetter("start"))

    def _present(self, text: str) -> set[str]:
        """Those texts that occur somewhere, and maybe some more that begin one of them."""
        found: set[str] = set()
        if self._first is None:
            return found
        for match in self._first.finditer(text):
            at = match.start()
            head = text[at : at + self._heads[match[0]]]
            for length in self._lengths.get(head, ()):
                candidate = text[at : at + length]
                if candidate in self._tokens:
                    found.add(candidate)
                    break  # shorter ones that begin it are added below, once
        for longest in tuple(found):
            lengths = self._lengths[self._head(longest)]
            found.update(longest[:n] for n in lengths if n < len(longest) and longest[:n] in self._tokens)
        return found


def _fence(text: str, barriers: Sequence[int]) -> bytearray:
    """A mark for each offset that is a barrier."""
    if not barriers:
        return bytearray()
    if not 0 <= min(barriers) <= max(barriers) <= len(text):
        raise ParameterError(
            f"barriers must be offsets from 0 to {len(text)}, got {min(barriers)} to {max(barriers)}"
        )
    fence = bytearray(len(text) + 1)
    for barrier in barriers:
        fence[barrier] = 1
    return fence
