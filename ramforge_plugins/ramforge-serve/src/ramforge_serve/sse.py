"""Server-sent events: data lines, and comments that keep a connection alive through a long prefill."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

from ramforge_core.scheduler import Prefilled
from ramforge_serve.faults import Fault

PING_S = 5.0
"""Seconds of silence after which a comment is sent; clients and proxies give up after 30 or more."""

DONE = b"data: [DONE]\n\n"


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


def progress(event: Prefilled) -> bytes:
    return comment(f"prompt {event.done} of {event.total} tokens")


def waiting() -> bytes:
    return comment("waiting")


def failed(fault: Fault) -> bytes:
    return event(fault.body())


def stream(parts: AsyncIterator[bytes], media_type: str = "text/event-stream") -> StreamingResponse:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(parts, media_type=media_type, headers=headers)
