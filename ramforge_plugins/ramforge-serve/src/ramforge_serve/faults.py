"""What goes wrong, as clients of OpenAI's interface expect to be told: always JSON, always of the same shape."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from ramforge_core.errors import (
    BudgetExceededError,
    ContextFullError,
    Interrupted,
    ParameterError,
    QueueFullError,
    RamforgeError,
    TemplateError,
)

_log = logging.getLogger("ramforge.serve")

RETRY_AFTER_S = 5


class ErrorFacts(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """What every refusal and every error brings."""

    error: ErrorFacts


RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The request is refused."},
    "5XX": {"model": ErrorBody, "description": "The server cannot answer, or not now."},
}
"""For the OpenAPI document: errors of every route."""


def streamed(media_type: str) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: an answer that is JSON, or a stream of it."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}, media_type: {}}
    return {200: {"description": "The answer, whole or streamed.", "content": content}}


class Fault(HTTPException):
    """A refusal: HTTP status, one sentence, a stable code, and the parameter at fault if it is one's."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.message = message
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        kind = kinds.get(
            self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def fault_of(error: Exception) -> Fault:
    """How an error of the core is told to a client. What nobody expected goes to the log, not to the client."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, RecursionError):
        return Fault(400, "the request is nested too deeply", "invalid_value")
    if isinstance(error, ContextFullError):
        return Fault(400, str(error), "context_length_exceeded", "messages")
    if isinstance(error, (ParameterError, TemplateError)):
        return Fault(400, str(error), error.reason.replace("-", "_"))
    if isinstance(error, QueueFullError):
        return Fault(429, str(error), "queue_full", headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, Interrupted):
        return Fault(
            503, "the server is shutting down", "shutting_down", headers={"Retry-After": str(RETRY_AFTER_S)}
        )
    if isinstance(error, BudgetExceededError):
        return Fault(503, str(error), "out_of_memory", headers={"Retry-After": str(RETRY_AFTER_S)})
    if isinstance(error, RamforgeError):
        return Fault(500, str(error), error.reason.replace("-", "_"))
    _log.error("a request failed", exc_info=error)
    return Fault(500, "the server met a fault that nobody expected; its log says more", "internal_error")


def answer(fault: Fault) -> JSONResponse:
    return JSONResponse(fault.body(), fault.status_code, fault.headers)


def install_handlers(app: FastAPI) -> None:
    """Let every error of ``app`` end as a `Fault`."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        return answer(fault_of(error))

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        first = error.errors()[0] if isinstance(error, RequestValidationError) else {}
        if first.get("type") == "json_invalid":  # its place is a number of characters, and no parameter
            why = first.get("ctx", {}).get("error", "it cannot be parsed")
            text = f"the body is not JSON: {why} at character {first['loc'][-1]}"
            return answer(Fault(400, text, "invalid_value"))
        if isinstance(first.get("input"), bytes):  # nobody said that it is JSON
            text = "the body is not taken for JSON; send it with `Content-Type: application/json`"
            return answer(Fault(400, text, "invalid_value"))
        place = [str(p) for p in first.get("loc", ()) if p != "body"]
        param = ".".join(place) or None
        what = first.get("msg", "the request is not valid")
        return answer(Fault(400, f"{param}: {what}" if param else what, "invalid_value", param))

    async def http(request: Request, error: Exception) -> JSONResponse:
        status = error.status_code if isinstance(error, HTTPException) else 500
        texts = {404: f"there is no route {request.url.path}", 405: f"{request.method} is not allowed here"}
        codes = {404: "unknown_route", 405: "method_not_allowed"}
        headers = getattr(error, "headers", None)
        detail = texts.get(status, str(getattr(error, "detail", error)))
        return answer(Fault(status, detail, codes.get(status, "http_error"), headers=headers))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Fault, known)
    app.add_exception_handler(RamforgeError, known)
    app.add_exception_handler(Exception, known)
