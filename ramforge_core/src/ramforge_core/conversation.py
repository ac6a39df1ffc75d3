"""A conversation with a model, whose past turns are not computed again."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field

from ramforge_core.api import LanguageModel
from ramforge_core.errors import ParameterError, SessionError
from ramforge_core.generation import Generation
from ramforge_core.sequence import KeptSequence
from ramforge_core.sessions import load_session, save_session


@define(eq=False)
class Conversation:
    """Turns of a person and of the model. Call `close` at the end, or use as a context manager.

    system : instructions that stand before all turns; may be changed at any time. messages : the turns so far.
    answer : the last one made, with its statistics.
    Raises ParameterError if the model has no chat template.
    """

    model: LanguageModel = field(repr=False)
    system: str | None = None
    messages: list[dict[str, str]] = field(factory=list, init=False)
    answer: Generation | None = field(default=None, init=False, repr=False)
    _kept: KeptSequence = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.model.template is None:
            raise ParameterError(
                "this model has no chat template, so it knows no turns; use `ramforge run --raw`"
            )
        self._kept = self.model.sequence()

    def say(self, text: str, **options: Any) -> Generator[str, None, None]:
        """The pieces of the model's answer to ``text``; options as for `LanguageModel.generate`.

        What was said when it ends, or when it is broken off, counts as the answer; if that is nothing, the turn
        does not count. Raises ContextFullError before anything is changed if the conversation has become too long.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        self.answer = self.model.generate(asked, system=self.system, kept=self._kept, **options)
        said: list[str] = []
        try:
            for piece in self.answer:
                said.append(piece)
                yield piece
        finally:
            if said:
                self.messages = [*asked, {"role": "assistant", "content": "".join(said)}]

    def forget(self) -> None:
        """Begin anew, with the same system text."""
        self.messages = []
        self._kept.cut(0)

    def save(self, file: Path) -> int:
        """Write all of it to a file, keys and values included. Returns its bytes. Raises OSError."""
        return save_session(file, self.model, self._kept, {"system": self.system, "messages": self.messages})

    def load(self, file: Path) -> None:
        """Go on with a saved one in place of this one.

        Raises what `load_session` raises; this conversation stays as it was then.
        """
        kept, note = load_session(file, self.model)
        try:
            system, messages = _turns(file, note)
        except BaseException:
            kept.close()
            raise
        self._kept.close()
        self._kept, self.system, self.messages = kept, system, messages

    def close(self) -> None:
        self._kept.close()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _turns(file: Path, note: Mapping[str, Any]) -> tuple[str | None, list[dict[str, str]]]:
    system, messages = note.get("system"), note.get("messages")
    sound = isinstance(messages, list) and all(
        isinstance(m, dict)
        and m.keys() == {"role", "content"}
        and all(isinstance(v, str) for v in m.values())
        for m in messages
    )
    if not sound or not (system is None or isinstance(system, str)):
        raise SessionError(f"{file}: this session holds no conversation")
    return system, messages or []
