"""What clients of OpenAI's interface send. Fields that are not known are ignored, as OpenAI does; fields that are known
and cannot be honoured are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ramforge_core.sampling import SamplingParameters
from ramforge_serve.faults import Fault

MAX_CHOICES = 8


MAX_MESSAGES = 1024
"""Of one request. Each takes a few tokens of the context, and much more memory than it has characters."""


class TextPart(BaseModel):
    type: str
    text: str = ""


class ToolFunctionCall(BaseModel):
    name: str
    arguments: str = ""


class ToolCall(BaseModel):
    id: str = ""
    type: Literal["function"] = "function"
    function: ToolFunctionCall


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def text(self, place: str) -> str:
        """The content as one text. Raises Fault for parts that are no text."""
        if not isinstance(self.content, list):
            return self.content or ""
        for part in self.content:
            if part.type != "text":
                raise Fault(
                    400,
                    f"content of type {part.type!r} is not understood by this model",
                    "unsupported",
                    place,
                )
        return "".join(part.text for part in self.content)


class FunctionTool(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    type: Literal["function"]
    function: FunctionTool


class NamedFunction(BaseModel):
    name: str


class ToolChoice(BaseModel):
    type: Literal["function"] = "function"
    function: NamedFunction


class StreamOptions(BaseModel):
    include_usage: bool = False


class JsonSchema(BaseModel):
    name: str = "answer"
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Sampling(BaseModel):
    """What both kinds of completion take."""

    model: str | None = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: int | None = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    repeat_penalty: Annotated[float | None, Field(ge=0.01, le=100)] = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    stop: str | list[str] | None = None
    n: Annotated[int | None, Field(ge=1, le=MAX_CHOICES)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    def refuse_what_is_not_done(self) -> None:
        for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
            if getattr(self, name):
                raise Fault(400, f"{name} is not supported; leave it out", "unsupported", name)
        if self.stream_options is not None and not self.stream:
            raise Fault(400, "stream_options only go with stream: true", "invalid_value", "stream_options")

    def stops(self) -> tuple[str, ...]:
        given = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(given) > 16 or not all(given):
            raise Fault(400, "stop takes up to 16 texts, none of them empty", "invalid_value", "stop")
        return given

    def parameters(self, choice: int) -> SamplingParameters:
        """How the ``choice``-th answer is drawn: each has a seed of its own that follows from the one given."""
        given = {
            name: getattr(self, name)
            for name in ("temperature", "top_p", "top_k", "min_p", "repeat_penalty")
            if getattr(self, name) is not None
        }
        seed = None if self.seed is None else (self.seed + choice) % 2**63
        return SamplingParameters(**given, seed=seed)


class ChatRequest(Sampling):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(Sampling):
    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: Annotated[int | None, Field(ge=0)] = 16
    logprobs: Annotated[int | None, Field(ge=0, le=5)] = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
