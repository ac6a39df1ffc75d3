"""``/v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from attrs import define, field
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ramforge_core.scheduler import Drawn, Ended, Prefilled
from ramforge_serve import sse
from ramforge_serve.faults import Fault, fault_of
from ramforge_serve.openai_types import ChatRequest, Message
from ramforge_serve.service import Answers, Service, in_thread
from ramforge_serve.waiting import finish

FINISH = {"stop": "stop", "length": "length", "context": "length"}
"""What an answer's end is called in OpenAI's interface."""


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        call = await _prepare(service, body)
        call.answers.start()
        if body.stream:
            return sse.stream(_events(call))
        try:
            await finish(call.answers, request, call.take)
        finally:
            call.answers.close()
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
    ids = await in_thread(lambda: template.encode(template.render(messages)))
    call = _Call(service, body, service.answers())
    stops = (*body.stops(), *template.text_stops)
    for i in range(body.n or 1):
        call.answers.add(
            ids,
            body.parameters(i),
            max_tokens=body.max_completion_tokens or body.max_tokens,
            stop=stops,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        )
    call.choices = [_Choice() for _ in call.answers.requests]
    return call


def _plain(message: Message, place: str) -> dict[str, Any]:
    """A message as templates want it."""
    role = "system" if message.role == "developer" else message.role
    return {**message.model_dump(exclude_none=True), "role": role, "content": message.text(place)}


def known_model(service: Service, name: str | None) -> None:
    """Raises Fault if a client asks for another model than the one that is served."""
    if not service.knows(name):
        raise Fault(
            404, f"the model {name!r} is not served here; {service.name!r} is", "model_not_found", "model"
        )


@define
class _Choice:
    """What is gathered of an answer."""

    text: list[str] = field(factory=list)
    logprobs: list[dict[str, Any]] = field(factory=list)


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
        self.choices[place].text.append(event.text)
        if event.logprob is not None:
            self.choices[place].logprobs.append(self.logprob(event))

    def logprob(self, event: Drawn) -> dict[str, Any]:
        top = [self._named(token, value) for token, value in event.top]
        return {**self._named(event.token, event.logprob or 0.0), "top_logprobs": top}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self.service.model.tokenizer.piece(token)
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

    def reason(self, place: int) -> str:
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
            "choices": [
                {
                    "index": i,
                    "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
                    "logprobs": {"content": choice.logprobs, "refusal": None} if self.body.logprobs else None,
                    "finish_reason": self.reason(i),
                }
                for i, choice in enumerate(self.choices)
            ],
            "usage": usage(self.answers),
        }

    def chunk(self, place: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": place, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        asked = self.body.stream_options is not None and self.body.stream_options.include_usage
        return {
            **self.head("chat.completion.chunk"),
            "choices": [choice],
            **({"usage": None} if asked else {}),
        }


async def _events(call: _Call) -> AsyncIterator[bytes]:
    """The events of a streamed answer."""
    answers = call.answers
    try:
        for i in range(len(answers.requests)):
            yield sse.event(call.chunk(i, {"role": "assistant", "content": ""}))
        while answers.running:
            got = await answers.next(sse.PING_S)
            if got is None:
                yield sse.comment("waiting")
                continue
            place, event = got
            if isinstance(event, Prefilled):
                yield sse.comment(f"prompt {event.done} of {event.total} tokens")
            elif isinstance(event, Drawn) and (event.text or event.logprob is not None):
                logprobs = None
                if event.logprob is not None:
                    logprobs = {"content": [call.logprob(event)], "refusal": None}
                yield sse.event(call.chunk(place, {"content": event.text}, logprobs=logprobs))
            elif isinstance(event, Ended):
                yield sse.event(call.chunk(place, {}, finish_reason=call.reason(place)))
        if call.body.stream_options is not None and call.body.stream_options.include_usage:
            yield sse.event({**call.head("chat.completion.chunk"), "choices": [], "usage": usage(answers)})
    except Exception as error:  # the stream has begun: the client is told in it
        yield sse.event(fault_of(error).body())
    finally:
        answers.close()
    yield sse.DONE


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
