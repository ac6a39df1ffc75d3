"""Ollama's own routes, for the programs that only speak them. Times in nanoseconds, streams of JSON lines."""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timezone
from typing import Annotated, Any, Literal

from attrs import define, field
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from ramforge_core import __version__
from ramforge_core.sampling import SamplingParameters
from ramforge_core.scheduler import Drawn, Ended, Event
from ramforge_serve import sse
from ramforge_serve.constrain import grammars_or_fault
from ramforge_serve.faults import Fault, streamed
from ramforge_serve.openai_chat import FINISH, known_model
from ramforge_serve.openai_types import MAX_MESSAGES
from ramforge_serve.service import Answers, Service, in_thread
from ramforge_serve.tools import CallFinder, render
from ramforge_serve.waiting import finish, pieces


class Options(BaseModel):
    """The options that are honoured; Ollama's others concern how it loads a model."""

    temperature: Annotated[float | None, Field(ge=0)] = None
    top_k: int | None = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    repeat_penalty: Annotated[float | None, Field(ge=0.01, le=100)] = None
    repeat_last_n: Annotated[int | None, Field(ge=-1)] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63)] = None
    num_predict: int | None = None
    stop: list[str] | str | None = None

    def parameters(self) -> SamplingParameters:
        given = self.model_dump(exclude_none=True, exclude={"num_predict", "stop"})
        return SamplingParameters(**given)

    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def max_tokens(self) -> int | None:
        """Below zero means no bound, as in Ollama."""
        return None if self.num_predict is None or self.num_predict < 0 else self.num_predict


class ToolCall(BaseModel):
    function: dict[str, Any]


class Message(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None


class Asked(BaseModel):
    model: str
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options = Options()
    keep_alive: Any = None


class ChatAsked(Asked):
    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)] = []
    tools: list[dict[str, Any]] | None = None


class GenerateAsked(Asked):
    prompt: str = ""
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    images: list[str] | None = None
    context: list[int] | None = None


class ShowAsked(BaseModel):
    model: str


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/api/chat", responses=streamed("application/x-ndjson"))
    async def chat(body: ChatAsked, request: Request) -> Response:
        _refuse_images(*(m.images for m in body.messages))
        known_model(service, body.model)
        messages = [{**m.model_dump(exclude_none=True), "content": m.content or ""} for m in body.messages]
        tools = body.tools or []
        if not messages:
            return JSONResponse(_Call(service, body, "message").loaded())
        call = _Call(service, body, "message")
        call.finder = CallFinder([t.get("function", {}).get("name", "") for t in tools]) if tools else None
        return await _answer(service, call, request, await _chat_ids(service, messages, tools))

    @routes.post("/api/generate", responses=streamed("application/x-ndjson"))
    async def generate(body: GenerateAsked, request: Request) -> Response:
        _refuse_images(body.images)
        for name in ("suffix", "context"):
            if getattr(body, name):
                raise Fault(400, f"{name} is not supported; leave it out", "unsupported", name)
        known_model(service, body.model)
        call = _Call(service, body, "response")
        if not body.prompt:
            return JSONResponse(call.loaded())
        if body.raw or service.model.template is None:
            ids = await in_thread(lambda: service.model.tokenizer.encode(body.prompt, add_special=True))
        else:
            system = [{"role": "system", "content": body.system}] if body.system else []
            ids = await _chat_ids(service, [*system, {"role": "user", "content": body.prompt}], [])
        return await _answer(service, call, request, ids)

    @routes.get("/api/tags")
    async def tags() -> dict[str, Any]:
        return {"models": [_entry(service)]}

    @routes.get("/api/ps")
    async def running() -> dict[str, Any]:
        return {"models": [{**_entry(service), "size_vram": 0}]}

    @routes.post("/api/show")
    async def show(body: ShowAsked) -> dict[str, Any]:
        known_model(service, body.model)
        template = service.model.template
        facts = service.model.engine.model
        return {
            "details": _entry(service)["details"],
            "model_info": {
                "general.architecture": facts.architecture.key,
                "general.parameter_count": _parameters(service),
                f"{facts.architecture.key}.context_length": facts.config.context_length,
            },
            "template": template.sources["default"] if template else "",
            "capabilities": ["completion", "tools"] if template else ["completion"],
        }

    @routes.get("/api/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    return routes


def _refuse_images(*given: list[str] | None) -> None:
    if any(given):
        raise Fault(400, "images are not understood by this model", "unsupported", "images")


async def _chat_ids(
    service: Service, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> list[int]:
    template = service.model.template
    if template is None:
        raise Fault(400, "this model has no chat template; use /api/generate", "unsupported", "messages")
    return await in_thread(lambda: template.encode(render(template, messages, tools)))


async def _answer(service: Service, call: _Call, request: Request, ids: list[int]) -> Response:
    body, template = call.body, service.model.template
    constraint = None
    if body.format:
        schema = {"type": "object"} if body.format == "json" else body.format
        grammars = grammars_or_fault(service.grammars, "format")
        constraint = await in_thread(lambda: grammars.json(dict(schema), "format"))
    raw = isinstance(body, GenerateAsked) and body.raw
    stops = (*body.options.stops(), *(template.text_stops if template and not raw else ()))
    call.answers = service.answers()
    call.answers.add(
        ids,
        body.options.parameters(),
        max_tokens=body.options.max_tokens(),
        stop=stops,
        constraint=constraint,
    )
    call.answers.start()
    if body.stream:
        return sse.stream(_lines(call, call.answers), "application/x-ndjson")
    text: list[str] = []
    await finish(call.answers, request, lambda _, event: text.append(call.push(event.text)))
    rest, calls = call.finish()
    return JSONResponse(call.last("".join([*text, rest]), calls))


@define(eq=False)
class _Call:
    """One call of a client. place : where its text goes, `message` or `response`."""

    service: Service
    body: Asked
    place: str
    finder: CallFinder | None = None
    answers: Answers | None = None
    began: float = field(factory=time.perf_counter)

    def push(self, text: str) -> str:
        return text if self.finder is None else self.finder.push(text)

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        if self.finder is None:
            return "", []
        rest, calls = self.finder.finish()
        return rest, [{"function": {"name": c.name, "arguments": json.loads(c.arguments)}} for c in calls]

    def part(self, text: str, calls: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
        said: Any = text
        if self.place == "message":
            said = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
        return {"model": self.body.model, "created_at": now, self.place: said, "done": False, **more}

    def loaded(self) -> dict[str, Any]:
        """The answer to nothing, which Ollama's clients send to have a model loaded."""
        return self.part("", done=True, done_reason="load")

    def last(self, text: str, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        request = self.answers.requests[0] if self.answers else None
        if request is None:
            return self.loaded()
        return self.part(
            text,
            calls,
            done=True,
            done_reason=FINISH[request.answer.finish_reason or "stop"],
            total_duration=_nanoseconds(time.perf_counter() - self.began),
            load_duration=0,
            prompt_eval_count=len(request.prompt_ids),
            prompt_eval_duration=_nanoseconds(request.prompt_s),
            eval_count=len(request.answer.ids),
            eval_duration=_nanoseconds(request.decode_s),
        )


def _lines(call: _Call, answers: Answers) -> AsyncIterator[bytes]:
    def told(place: int, event: Event) -> Iterator[bytes]:
        if isinstance(event, Drawn) and (text := call.push(event.text)):
            yield _line(call.part(text))
        elif isinstance(event, Ended):
            rest, calls = call.finish()
            if rest or calls:
                yield _line(call.part(rest, calls))
            yield _line(call.last(""))

    def idle() -> bytes:
        return _line(call.part(""))  # lines of JSON have no comments

    return pieces(answers, told, idle, lambda fault: _line({"error": fault.message}))


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode() + b"\n"


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def _parameters(service: Service) -> int:
    return sum(math.prod(info.shape) for info in service.model.engine.model.gguf.tensors.values())


def _entry(service: Service) -> dict[str, Any]:
    gguf = service.model.engine.model.gguf
    started = datetime.fromtimestamp(service.started, timezone.utc).isoformat().replace("+00:00", "Z")
    return {
        "name": service.name,
        "model": service.name,
        "modified_at": started,
        "size": gguf.nbytes,
        "digest": service.fingerprint.rpartition("-")[2],
        "details": {
            "format": "gguf",
            "family": gguf.metadata.text("general.architecture"),
            "parameter_size": f"{_parameters(service) / 1e9:.1f}B",
            "quantization_level": "",
        },
    }
