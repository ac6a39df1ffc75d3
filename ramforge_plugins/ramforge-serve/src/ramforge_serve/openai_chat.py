"""``/v1/chat/completions``."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from attrs import define, field
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ramforge_core.scheduler import Drawn, Event, Prefilled
from ramforge_serve import sse
from ramforge_serve.constrain import Grammar, grammars_or_fault
from ramforge_serve.faults import Fault, streamed
from ramforge_serve.openai_types import ChatRequest, Message
from ramforge_serve.service import Answers, Service, in_thread
from ramforge_serve.tools import Call, CallFinder, forced_schema, render
from ramforge_serve.waiting import finish, pieces

FINISH = {"stop": "stop", "length": "length", "context": "length"}
"""What an answer's end is called in OpenAI's interface."""


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions", responses=streamed("text/event-stream"))
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        call = await _prepare(service, body)
        call.answers.start()
        if body.stream:
            return sse.stream(_events(call))
        await finish(call.answers, request, call.take)
        return JSONResponse(call.whole())

    return routes


async def _prepare(service: Service, body: ChatRequest) -> _Call:
    """Everything that can be refused is refused here, before a stream has begun."""
    known_model(service, body.model)
    body.refuse_what_is_not_done()
    if body.top_logprobs is not None and not body.logprobs:
        raise Fault(400, "top_logprobs only go with logprobs: true", "invalid_value", "top_logprobs")
    template = service.model.template
    if template is None:
        raise Fault(400, "this model has no chat template; use /v1/completions", "unsupported", "messages")
    messages = [_plain(message, f"messages.{i}.content") for i, message in enumerate(body.messages)]
    tools, forced = _tools(body)
    constraint = await in_thread(lambda: _constraint(service, body, tools, forced))
    ids = await in_thread(lambda: template.encode(render(template, messages, tools)))
    call = _Call(service, body, service.answers())
    stops = (*body.stops(), *template.text_stops)
    for i in range(body.n or 1):
        call.answers.add(
            ids,
            body.parameters(i),
            max_tokens=body.max_completion_tokens or body.max_tokens,
            stop=stops,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            constraint=constraint and constraint.copy(),
        )
        names = [tool["function"]["name"] for tool in tools]
        call.choices.append(_Choice(CallFinder(names, forced=forced is not None) if tools else None))
    return call


def _tools(body: ChatRequest) -> tuple[list[dict[str, Any]], str | None]:
    """The tools to tell of, and whether one has to be called: its name, "" for any, None for no must."""
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    choice = body.tool_choice or "auto"
    if choice == "none":
        return [], None
    if choice == "auto":
        return tools, None
    if not tools:
        raise Fault(
            400, "tool_choice asks for a call, but there are no tools", "invalid_value", "tool_choice"
        )
    if choice == "required":
        return tools, ""
    name = choice.function.name
    if name not in [tool["function"]["name"] for tool in tools]:
        raise Fault(
            400, f"tool_choice asks for {name!r}, which is none of the tools", "invalid_value", "tool_choice"
        )
    return tools, name


def _constraint(
    service: Service, body: ChatRequest, tools: list[dict[str, Any]], forced: str | None
) -> Grammar | None:
    """What bounds the answers: a must of tools, or the format that was asked for."""
    wanted = body.response_format
    if forced is not None:
        schema, param = forced_schema(tools, forced or None), "tools"
    elif wanted is None or wanted.type == "text":
        return None
    elif wanted.type == "json_object":
        schema, param = {"type": "object"}, "response_format"
    elif wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise Fault(
            400, "a json_schema needs its schema", "invalid_value", "response_format.json_schema.schema"
        )
    else:
        schema, param = wanted.json_schema.schema_, "response_format.json_schema.schema"
    return grammars_or_fault(service.grammars, param).json(schema, param)


def _plain(message: Message, place: str) -> dict[str, Any]:
    """A message as templates want it: the content a text, arguments of calls an object."""
    role = "system" if message.role == "developer" else message.role
    plain = {**message.model_dump(exclude_none=True), "role": role, "content": message.text(place)}
    for call in plain.get("tool_calls", ()):
        with suppress(ValueError, RecursionError):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return plain


def known_model(service: Service, name: str | None) -> None:
    """Raises Fault if a client asks for another model than the one that is served."""
    if not service.knows(name):
        raise Fault(
            404, f"the model {name!r} is not served here; {service.name!r} is", "model_not_found", "model"
        )


@define
class _Choice:
    """What is gathered of an answer. finder : where there are tools."""

    finder: CallFinder | None
    text: list[str] = field(factory=list)
    calls: list[Call] = field(factory=list)
    logprobs: list[dict[str, Any]] = field(factory=list)

    def push(self, text: str) -> str:
        """The part of an answer's text that is not a call's."""
        shown = text if self.finder is None else self.finder.push(text)
        self.text.append(shown)
        return shown

    def finish(self) -> str:
        """What was held back, once the answer is over; calls are in ``calls``."""
        if self.finder is None:
            return ""
        shown, self.calls = self.finder.finish()
        self.finder = None
        self.text.append(shown)
        return shown


@define(eq=False)
class _Call:
    """One call of a client and what its answers came to."""

    service: Service
    body: ChatRequest
    answers: Answers
    id: str = field(factory=lambda: f"chatcmpl-{secrets.token_hex(12)}", init=False)
    created: int = field(factory=lambda: int(time.time()), init=False)
    choices: list[_Choice] = field(factory=list, init=False)

    def take(self, place: int, event: Drawn) -> None:
        self.choices[place].push(event.text)
        if event.logprob is not None:
            self.choices[place].logprobs.append(self.logprob(event))

    def logprob(self, event: Drawn) -> dict[str, Any]:
        top = [self._named(token, value) for token, value in event.top]
        return {**self._named(event.token, event.logprob or 0.0), "top_logprobs": top}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self.service.model.tokenizer.piece(token)
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

    def reason(self, place: int) -> str:
        if self.choices[place].calls:
            return "tool_calls"
        return FINISH[self.answers.requests[place].answer.finish_reason or "stop"]

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.service.name,
            "system_fingerprint": self.service.fingerprint,
        }

    def whole(self) -> dict[str, Any]:
        return {
            **self.head("chat.completion"),
            "choices": [self._finished(i, choice) for i, choice in enumerate(self.choices)],
            "usage": usage(self.answers),
        }

    def _finished(self, place: int, choice: _Choice) -> dict[str, Any]:
        choice.finish()
        message: dict[str, Any] = {"role": "assistant", "content": "".join(choice.text), "refusal": None}
        if choice.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = [call.to_openai(i) for i, call in enumerate(choice.calls)]
        return {
            "index": place,
            "message": message,
            "logprobs": {"content": choice.logprobs, "refusal": None} if self.body.logprobs else None,
            "finish_reason": self.reason(place),
        }

    def chunk(self, place: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": place, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        asked = self.body.stream_options is not None and self.body.stream_options.include_usage
        return {
            **self.head("chat.completion.chunk"),
            "choices": [choice],
            **({"usage": None} if asked else {}),
        }

    def drawn(self, place: int, shown: str, event: Drawn) -> dict[str, Any]:
        logprobs = None if event.logprob is None else {"content": [self.logprob(event)], "refusal": None}
        return self.chunk(place, {"content": shown}, logprobs=logprobs)


def _events(call: _Call) -> AsyncIterator[bytes]:
    """The events of a streamed answer."""

    def told(place: int, event: Event) -> Iterator[bytes]:
        choice = call.choices[place]
        if isinstance(event, Prefilled):
            yield sse.progress(event)
        elif isinstance(event, Drawn):
            shown = choice.push(event.text)
            if shown or event.logprob is not None:
                yield sse.event(call.drawn(place, shown, event))
        else:
            if rest := choice.finish():
                yield sse.event(call.chunk(place, {"content": rest}))
            for i, found in enumerate(choice.calls):
                yield sse.event(call.chunk(place, {"tool_calls": [found.to_openai(i)]}))
            yield sse.event(call.chunk(place, {}, finish_reason=call.reason(place)))

    def last() -> Iterator[bytes]:
        if call.body.stream_options is not None and call.body.stream_options.include_usage:
            head = call.head("chat.completion.chunk")
            yield sse.event({**head, "choices": [], "usage": usage(call.answers)})

    roles = [{"role": "assistant", "content": ""}] * len(call.choices)
    first = b"".join(sse.event(call.chunk(i, role)) for i, role in enumerate(roles))
    return pieces(call.answers, told, sse.waiting, sse.failed, last, first=first, end=sse.DONE)


def usage(answers: Answers) -> dict[str, Any]:
    """Tokens of all answers of a call; the prompt counts once, however many answers it has."""
    prompt = len(answers.requests[0].prompt_ids)
    made = sum(len(r.answer.ids) for r in answers.requests)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": answers.requests[0].reused_tokens},
    }
