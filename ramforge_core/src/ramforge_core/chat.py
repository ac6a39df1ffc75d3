"""Messages to a prompt, through the chat template that the model's file carries.

What people write must stay text: a message that contains ``<|im_end|>`` may not close its own turn. So before the
template is rendered, a sentinel character goes into every place of a message where a control token could begin or
end; afterwards the sentinels are taken out, and where they stood are the prompt's *barriers*, which no control token
may span. The template sees the messages otherwise unchanged, so that its trimming and splitting works as always.

Jinja2 is imported when the first template is rendered, and not before.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from ramforge_core.errors import ParameterError, TemplateError

if TYPE_CHECKING:
    from ramforge_core.gguf import Metadata
    from ramforge_core.template_sandbox import SandboxedTemplate
    from ramforge_core.tokenizer import Tokenizer

_log = logging.getLogger("ramforge")

TEMPLATE_KEY = "tokenizer.chat_template"
_SPECIAL_TOKENS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MARKER = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z_]{2,32}\]")
_TIME_FLAGS = re.compile(r"%([^A-Za-z%]*)[A-Za-z%]?")
_MAX_TIME_FORMAT = 256
_PROBE = ("first question", "first answer", "second question")

Message = Mapping[str, Any]
"""``role`` and ``content``, both text; templates may read further fields."""


@frozen
class Prompt:
    """Rendered text, and the ascending character offsets that no control token may span."""

    text: str
    barriers: tuple[int, ...]


@define(eq=False, slots=False)
class ChatTemplate:
    """The chat template of one model, with the tokenizer that it writes for.

    sources : the default template under ``default``, further ones under their names (``tool_use``).
    special_tokens : text of ``bos_token``, ``eos_token``, ``unk_token``, ``pad_token``; empty where there is none.
    """

    tokenizer: Tokenizer
    sources: Mapping[str, str]
    special_tokens: Mapping[str, str]
    _compiled: dict[str, SandboxedTemplate] = field(factory=dict, init=False, repr=False)

    @classmethod
    def from_metadata(cls, metadata: Metadata, tokenizer: Tokenizer) -> ChatTemplate | None:
        """Read the templates of a file; None if it has none (a base model: use the prompt as it is).

        Raises MetadataError if a template is not text.
        """
        sources = {}
        for key in metadata:
            if key == TEMPLATE_KEY or key.startswith(TEMPLATE_KEY + "."):
                sources[key[len(TEMPLATE_KEY) + 1 :] or "default"] = metadata.text(key)
        if not sources:
            return None
        sources.setdefault("default", next(iter(sources.values())))
        special_tokens = dict.fromkeys(_SPECIAL_TOKENS, "")
        for name, key in _SPECIAL_TOKENS.items():
            token = metadata.integer(key) if key in metadata else None
            if token is not None and 0 <= token < tokenizer.n_vocab:
                special_tokens[name] = tokenizer.piece(token).decode("utf-8", "replace")
        return cls(tokenizer, sources, special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        now: datetime | None = None,
    ) -> Prompt:
        """Render a conversation.

        A leading system message that the template refuses (by ``raise_exception``) or silently leaves out goes in front
        of the first user's text, with an empty line between.

        now : the time that ``strftime_now`` tells; by default the clock of this machine.

        Raises TemplateError when the template is faulty, unsafe, endless or refuses the messages (the error holds its
        own words), ParameterError when a message has no sensible role or content.
        """
        from ramforge_core.template_sandbox import TemplateRefusal

        _check(messages)
        refusal, merged = None, _without_system(messages)
        try:
            prompt = self._render(messages, add_generation_prompt, tools, now)
            if merged is None or messages[0].get("content", "").strip() in prompt.text:
                return prompt
        except TemplateRefusal as error:
            if merged is None:
                raise
            refusal = error
        try:
            return self._render(merged, add_generation_prompt, tools, now)
        except TemplateError:
            if refusal is None:
                return prompt
            raise refusal from None  # the system's message was not the reason, so the first refusal is the one to tell

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt: one BOS if the vocabulary wants it or the template prints it, never two, and no EOS."""
        tokenizer = self.tokenizer
        ids = tokenizer.encode(prompt.text, parse_special=True, barriers=prompt.barriers)
        bos = tokenizer.bos_id
        if bos is None:
            return ids
        printed = next((n for n, token in enumerate(ids) if token != bos), len(ids))
        return [bos] * (printed > 0 or tokenizer.add_bos) + ids[printed:]

    @cached_property
    def text_stops(self) -> tuple[str, ...]:
        """Stop strings for a model whose vocabulary cannot end a turn the way its template does; else empty.

        Such a file (a base model with a borrowed template) never produces an end-of-generation token. Its answers
        then end at the text that the template writes after an answer. Says so once in a warning.
        """
        try:
            tail = self._after_answer()
        except TemplateError:
            return ()
        tokenizer = self.tokenizer
        begins = "" if tokenizer.bos_id in tokenizer.end_of_generation else self.special_tokens["bos_token"]
        if any(text in tail and text != begins for text in tokenizer.control_texts if text):
            return ()
        line = next((part.strip() for part in tail.splitlines() if part.strip()), "")
        stops = tuple(dict.fromkeys(_MARKER.findall(tail))) or ((line,) if line else ())
        if stops:
            _log.warning(
                "the chat template ends a turn with %r, which is no control token of this vocabulary; "
                "answers are ended at that text instead",
                stops[0],
            )
        return stops

    def _after_answer(self) -> str:
        """What the template writes between an answer and the next question."""
        roles = ("user", "assistant", "user")
        messages = [{"role": role, "content": text} for role, text in zip(roles, _PROBE, strict=True)]
        text = self._render(messages, False, None, None).text
        return text.partition(_PROBE[1])[2].partition(_PROBE[2])[0]

    def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        now: datetime | None,
    ) -> Prompt:
        template = self._template("tool_use" if tools and "tool_use" in self.sources else "default")
        said = list(_texts([messages, tools]))
        sentinel = _sentinel([*said, *self.sources.values()])
        answers, others = self._guards
        marked = [(answers if m["role"] == "assistant" else others).mark(m, sentinel) for m in messages]
        rendered = template.render(
            {
                "messages": marked,
                "tools": others.mark(tools, sentinel) if tools else None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                "strftime_now": lambda style: _strftime(now or datetime.now(), style),
                **self.special_tokens,
            },
            sum(map(len, said)),
        )
        # a template may also write JSON with everything but ASCII escaped
        parts = re.split(f"{sentinel}|{re.escape(json.dumps(sentinel)[1:-1])}", rendered)
        offset, barriers = 0, []
        for part in parts[:-1]:
            offset += len(part)
            barriers.append(offset)
        return Prompt("".join(parts), tuple(dict.fromkeys(barriers)))

    def _template(self, name: str) -> SandboxedTemplate:
        from ramforge_core.template_sandbox import SandboxedTemplate

        if name not in self._compiled:
            self._compiled[name] = SandboxedTemplate(self.sources[name])
        return self._compiled[name]

    @cached_property
    def _guards(self) -> tuple[_Guard, _Guard]:
        """For what the model said, and for what anybody else says.

        Some files declare the markers of their own template as user-defined tokens instead of control tokens; those are
        guarded as well. Not in answers, though: templates look there for markers such as ``</think>``.
        """
        controls = self.tokenizer.control_texts
        written = {marker for source in self.sources.values() for marker in _MARKER.findall(source)}
        tokens = {marker for marker in written if self.tokenizer.token_id(marker) is not None}
        return _Guard(controls), _Guard([*controls, *sorted(tokens)])


def _strftime(now: datetime, style: str) -> str:
    """The time for a template, which may not ask for a width (glibc's ``%9999d``) or a long text."""
    if isinstance(style, str):
        if len(style) > _MAX_TIME_FORMAT:
            raise ValueError(
                f"strftime_now wants a format of at most {_MAX_TIME_FORMAT} characters, got {len(style)}"
            )
        if any(re.search(r"\d", flags) for flags in _TIME_FLAGS.findall(style)):
            raise ValueError(f"strftime_now wants a format without widths, got {style!r}")
    return now.strftime(style)


class _Guard:
    """Finds where in a text a control token begins, or could begin or end together with what stands around it."""

    def __init__(self, control_texts: Sequence[str]) -> None:
        self._texts = frozenset(text for text in control_texts if text)
        self._longest = max(map(len, self._texts), default=0)
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: tuple(sorted(ns)) for start, ns in lengths.items()}
        firsts = "|".join(sorted({re.escape(text[0]) for text in self._texts}))
        self._firsts = re.compile(firsts or r"(?!)")
        self._lasts = frozenset(text[-1] for text in self._texts)

    def mark(self, value: Any, sentinel: str) -> Any:
        """A copy of messages or tools with sentinels in all texts but the roles."""
        if isinstance(value, str):
            return self._mark_text(value, sentinel)
        if isinstance(value, Mapping):
            return {k: v if k == "role" else self.mark(v, sentinel) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark(item, sentinel) for item in value]
        return value

    def _mark_text(self, text: str, sentinel: str) -> str:
        at = sorted(self.places(text))
        edges = zip([0, *at], [*at, len(text)], strict=True)
        return sentinel.join(text[start:end] for start, end in edges)

    def places(self, text: str) -> set[int]:
        """Offsets that lie inside every control token which takes part of this text.

        Such a token begins in the text (then the offset after its first character will do) or before it, and ends
        within it. Templates may trim the text, so what counts as its edge is sought without blanks as well.
        """
        inside = {m.start() + 1 for m in self._firsts.finditer(text) if self._begins(text, m.start())}
        body = text.strip()
        start = text.find(body)
        for edge, piece in ((0, text), (start, body)):
            inside.update(edge + n for n in self._open_end(piece))
            inside.update(edge + n for n in self._open_start(piece))
        return inside

    def _begins(self, text: str, start: int) -> bool:
        lengths = self._lengths.get(text[start : start + 2], ()) + self._lengths.get(text[start], ())
        return any(text[start : start + n] in self._texts for n in lengths)

    def _open_end(self, text: str) -> Iterator[int]:
        """After the first character of each tail that a control token begins with."""
        for n in range(1, min(self._longest, len(text) + 1)):
            tail = text[-n:]
            if self._firsts.match(tail) and any(t.startswith(tail) and t != tail for t in self._texts):
                yield len(text) - n + 1

    def _open_start(self, text: str) -> Iterator[int]:
        """Before the last character of each head that a control token ends with."""
        for n in range(1, min(self._longest, len(text) + 1)):
            head = text[:n]
            if head[-1] in self._lasts and any(t.endswith(head) and t != head for t in self._texts):
                yield n - 1


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise ParameterError("a chat needs at least one message, got none")
    for number, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise ParameterError(f"message {number} has role {role!r}; expected a word such as 'user'")
        if not isinstance(message.get("content", ""), str):
            raise ParameterError(
                f"message {number} has content of type {type(message['content']).__name__}, not text"
            )


def _without_system(messages: Sequence[Message]) -> list[Message] | None:
    """The conversation with a leading system message moved into the first user's; None where that cannot be done."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return None
    text = "\n\n".join(part for m in messages[:2] if (part := m.get("content", "")))
    return [{**messages[1], "content": text}, *messages[2:]]


def _texts(value: Any) -> Iterator[str]:
    """All texts inside messages and tools."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(tuple(value.keys()))
        yield from _texts(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _sentinel(texts: Sequence[str]) -> str:
    """A character, a noncharacter if possible, that occurs in none of the texts, nor does its JSON escape."""
    for code in (*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xFFFFE)):
        if not any(form in text for text in texts for form in (chr(code), json.dumps(chr(code))[1:-1])):
            return chr(code)
    raise ParameterError("the messages use every private character of Unicode; remove some")
