"""Stop strings in text that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from ramforge_core.errors import ParameterError


class StopMatcher:
    """Lets text through up to the first stop string.

    The first match is the one that is complete first; of those that are complete with the same character, the longest.
    So the output depends on the text alone, never on how it was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(s, str) and s for s in stops):
            raise ParameterError(
                f"stop strings must be a sequence of texts that are not empty, got {stops!r}"
            )
        self._stops = tuple(stops)
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string was found; after that nothing is shown any more."""
        if self._stopped:
            return "", True
        text = self._held + text
        ends = ((at + len(s), at) for s in self._stops if (at := text.find(s)) >= 0)
        first = min(ends, default=None)
        if first is not None:
            self._held, self._stopped = "", True
            return text[: first[1]], True
        keep = self._open_tail(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What was held back because a stop string could have begun there; for the end of the text."""
        held, self._held = self._held, ""
        return held

    def _open_tail(self, text: str) -> int:
        """Length of the longest tail that a stop string begins with."""
        longest = max(map(len, self._stops), default=1) - 1
        for n in range(min(longest, len(text)), 0, -1):
            tail = text[-n:]
            if any(s.startswith(tail) for s in self._stops):
                return n
        return 0
