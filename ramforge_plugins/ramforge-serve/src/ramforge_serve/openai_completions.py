"""``/v1/completions``: texts that are continued as they are, without a chat template."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from attrs import define, field
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from ramforge_core.scheduler import Drawn, Ended, Event, Prefilled
from ramforge_serve import sse
from ramforge_serve.faults import Fault, streamed
from ramforge_serve.openai_chat import FINISH, known_model
from ramforge_serve.openai_types import MAX_CHOICES, CompletionRequest
from ramforge_serve.service import Answers, Service, in_thread
from ramforge_serve.waiting import finish, pieces


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/completions", responses=streamed("text/event-stream"))
    async def completions(body: CompletionRequest, request: Request) -> Response:
        call = await _prepare(service, body)
        call.answers.start()
        if body.stream:
            return sse.stream(_events(call))
        await finish(call.answers, request, call.take)
        return JSONResponse(call.whole())

    return routes


async def _prepare(service: Service, body: CompletionRequest) -> _Call:
    known_model(service, body.model)
    body.refuse_what_is_not_done()
    for name in ("suffix", "echo"):
        if getattr(body, name):
            raise Fault(400, f"{name} is not supported; leave it out", "unsupported", name)
    if body.best_of not in (None, body.n or 1):
        raise Fault(400, "best_of is not supported beyond n; leave it out", "unsupported", "best_of")
    prompts = await in_thread(lambda: _prompts(service, body.prompt))
    n = body.n or 1
    if len(prompts) * n > MAX_CHOICES:
        raise Fault(
            400, f"{len(prompts)} prompts times n = {n} are more than {MAX_CHOICES}", "invalid_value", "n"
        )
    call = _Call(service, body, service.answers())
    for ids in prompts:
        for i in range(n):
            call.answers.add(
                ids,
                body.parameters(i),
                max_tokens=16 if body.max_tokens is None else body.max_tokens,
                stop=body.stops(),
                logprobs=body.logprobs,
            )
    call.choices = [_Choice() for _ in call.answers.requests]
    return call


def _prompts(service: Service, given: str | list[str] | list[int] | list[list[int]]) -> list[list[int]]:
    """Token ids of each prompt. Raises Fault for ids that the vocabulary has not."""
    tokenizer = service.model.tokenizer
    several: list[Any] = (
        [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else [*given]
    )
    prompts = [tokenizer.encode(p, add_special=True) if isinstance(p, str) else p for p in several]
    if not prompts:
        raise Fault(400, "there is no prompt", "invalid_value", "prompt")
    vocab = service.model.engine.model.graph.logits.width
    for ids in prompts:
        if (bad := next((t for t in ids if not 0 <= t < vocab), None)) is not None:
            raise Fault(400, f"token {bad} is outside the vocabulary of {vocab}", "invalid_value", "prompt")
    return prompts


@define
class _Choice:
    """What is gathered of an answer. offset : characters of its text so far."""

    text: list[str] = field(factory=list)
    drawn: list[tuple[int, Drawn]] = field(factory=list)
    offset: int = 0


@define(eq=False)
class _Call:
    service: Service
    body: CompletionRequest
    answers: Answers
    id: str = field(factory=lambda: f"cmpl-{secrets.token_hex(12)}", init=False)
    created: int = field(factory=lambda: int(time.time()), init=False)
    choices: list[_Choice] = field(factory=list, init=False)

    def take(self, place: int, event: Drawn) -> None:
        choice = self.choices[place]
        choice.text.append(event.text)
        choice.drawn.append((choice.offset, event))
        choice.offset += len(event.text)

    def logprobs(self, drawn: list[tuple[int, Drawn]]) -> dict[str, Any] | None:
        """The shape that this older interface has for them."""
        if self.body.logprobs is None:
            return None
        tokenizer = self.service.model.tokenizer

        def text(token: int) -> str:
            return tokenizer.piece(token).decode("utf-8", "replace")

        return {
            "tokens": [text(e.token) for _, e in drawn],
            "token_logprobs": [e.logprob for _, e in drawn],
            "top_logprobs": [{text(t): value for t, value in e.top} for _, e in drawn],
            "text_offset": [offset for offset, _ in drawn],
        }

    def part(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.service.name,
            "system_fingerprint": self.service.fingerprint,
            "choices": choices,
            **more,
        }

    def choice(
        self, place: int, text: str, drawn: list[tuple[int, Drawn]], reason: str | None
    ) -> dict[str, Any]:
        return {"text": text, "index": place, "logprobs": self.logprobs(drawn), "finish_reason": reason}

    def reason(self, place: int) -> str:
        return FINISH[self.answers.requests[place].answer.finish_reason or "stop"]

    def whole(self) -> dict[str, Any]:
        choices = [
            self.choice(i, "".join(c.text), c.drawn, self.reason(i)) for i, c in enumerate(self.choices)
        ]
        return self.part(choices, usage=self.usage())

    def usage(self) -> dict[str, Any]:
        """Each prompt counts once, however many answers it has."""
        requests, n = self.answers.requests, self.body.n or 1
        prompt = sum(len(r.prompt_ids) for r in requests[::n])
        made = sum(len(r.answer.ids) for r in requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": sum(r.reused_tokens for r in requests[::n])},
        }


def _events(call: _Call) -> AsyncIterator[bytes]:
    asked = call.body.stream_options is not None and call.body.stream_options.include_usage
    nothing = {"usage": None} if asked else {}

    def told(place: int, event: Event) -> Iterator[bytes]:
        if isinstance(event, Prefilled):
            yield sse.progress(event)
        elif isinstance(event, Ended):
            yield sse.event(call.part([call.choice(place, "", [], call.reason(place))], **nothing))
        elif event.text or event.logprob is not None:
            drawn = [(call.choices[place].offset, event)]
            call.choices[place].offset += len(event.text)
            yield sse.event(call.part([call.choice(place, event.text, drawn, None)], **nothing))

    def last() -> Iterator[bytes]:
        if asked:
            yield sse.event(call.part([], usage=call.usage()))

    return pieces(call.answers, told, sse.waiting, sse.failed, last, end=sse.DONE)
