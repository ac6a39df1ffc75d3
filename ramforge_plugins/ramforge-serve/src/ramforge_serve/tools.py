"""Tools: how a model is told of them, and how calls are found in what it says.

Families write calls differently. Understood are ``<tool_call>{...}</tool_call>`` (Hermes, Qwen and many more),
``[TOOL_CALLS][...]`` (Mistral), and an answer that is nothing but ``{"name": ..., "parameters": ...}`` (Llama 3).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from ramforge_core.chat import ChatTemplate, Prompt

Message = Mapping[str, Any]

_OPENINGS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "{")
_TAGGED = re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|$)", re.DOTALL)

_INSTRUCTIONS = """\
You may call one or more of these functions to help the user. They are described in JSON:
{tools}
To call one, answer with nothing but JSON that names it and its arguments, inside these tags:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>
If no function helps, answer in words."""
"""For models whose template does not know tools."""


@frozen
class Call:
    """A tool that the model wants called; arguments as JSON text."""

    name: str
    arguments: str

    def to_openai(self, index: int) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {
            "index": index,
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": function,
        }


def render(template: ChatTemplate, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Prompt:
    """A prompt that tells of the tools, in the template's own way if it has one. Raises as `ChatTemplate.render`."""
    if not tools:
        return template.render(messages)
    prompt = template.render(messages, tools=tools)
    if all(tool["function"]["name"] in prompt.text for tool in tools) and prompt != template.render(messages):
        return prompt
    told = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool) for tool in tools))
    head, rest = (messages[0], messages[1:]) if messages[0]["role"] == "system" else (None, messages)
    text = f"{head['content']}\n\n{told}" if head else told
    return template.render([{"role": "system", "content": text}, *map(_in_words, rest)])


def _in_words(message: Message) -> Message:
    """Calls and results as turns that every template knows."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if not message.get("tool_calls"):
        return message
    calls = [
        json.dumps({"name": call["function"]["name"], "arguments": call["function"]["arguments"]})
        for call in message["tool_calls"]
    ]
    tagged = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return {"role": "assistant", "content": "\n".join([message["content"], *tagged]).strip()}


def forced_schema(tools: Sequence[dict[str, Any]], name: str | None) -> dict[str, Any]:
    """JSON schema of a call of one of the tools, or of the one called ``name``."""
    offered = [t["function"] for t in tools if name in (None, t["function"]["name"])]
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": f["name"]},
                    "arguments": f.get("parameters") or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for f in offered
        ]
    }


class CallFinder:
    """Splits an answer that comes piece by piece into text to show and calls.

    forced : the whole answer is one call.
    """

    def __init__(self, names: Sequence[str], *, forced: bool = False) -> None:
        self._names = names
        self._held = ""
        self._holding = forced
        self._shown = ""

    def push(self, text: str) -> str:
        """The text that may be shown now: all but what could be the beginning of a call."""
        self._held += text
        if self._holding:
            return ""
        at_start = not self._shown.strip()
        places = [
            (at, opening)
            for opening in _OPENINGS
            if (at := self._held.find(opening)) >= 0
            and (opening != "{" or (at_start and not self._held[:at].strip()))
        ]
        if places:
            self._holding = True
            return self._show(min(places)[0])
        return self._show(len(self._held) - self._open_tail())

    def finish(self) -> tuple[str, list[Call]]:
        """The rest of the text, and the calls; what only looked like a call is text after all."""
        calls = find_calls(self._held, self._names)
        return ("", calls) if calls else (self._held, [])

    def _show(self, n: int) -> str:
        text, self._held = self._held[:n], self._held[n:]
        self._shown += text
        return text

    def _open_tail(self) -> int:
        longest = max(map(len, _OPENINGS)) - 1
        tails = range(min(longest, len(self._held)), 0, -1)
        return next((n for n in tails if any(o.startswith(self._held[-n:]) for o in _OPENINGS[:-1])), 0)


def find_calls(text: str, names: Sequence[str]) -> list[Call]:
    """All calls in a whole answer, of tools that exist; empty if it holds anything but sound ones."""
    text = text.strip().removeprefix("<|python_tag|>").strip()
    if "<tool_call>" in text:
        parts = _TAGGED.findall(text)
    elif text.startswith("[TOOL_CALLS]"):
        parts = [text.removeprefix("[TOOL_CALLS]")]
    else:
        parts = [text]
    found: list[Any] = []
    for part in parts:
        try:
            value = json.loads(part)
        except (ValueError, RecursionError):
            return []
        found += value if isinstance(value, list) else [value]
    calls = [_call(value, names) for value in found]
    return [call for call in calls if call is not None] if all(calls) else []


def _call(value: Any, names: Sequence[str]) -> Call | None:
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        return Call(value["name"], arguments)
    return (
        Call(value["name"], json.dumps(arguments, ensure_ascii=False))
        if isinstance(arguments, dict)
        else None
    )
