"""A headless Chromium that looks at the page, and a server that answers as a test tells it to."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import define, field
from fastapi import FastAPI, Request
from serving import running
from starlette.responses import JSONResponse, Response

from ramforge_serve import sse
from ramforge_serve.page import install_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

STATUS = {
    "model": "stub",
    "architecture": "llama",
    "parameters": 7_240_000_000,
    "quantization": ["q4_k", "q6_k"],
    "weight_bytes": 4 << 30,
    "pinned_bytes": 1 << 30,
    "streamed_bytes": 3 << 30,
    "context": 4096,
    "chat": True,
    "memory": {
        "budget_bytes": 2 << 30,
        "used_bytes": 3 << 29,
        "by_tag": {"pinned weights": 1 << 30, "process": 1 << 29},
        "resident_bytes": 1_500 << 20,
    },
    "requests": {"active": 1, "waiting": 0, "parallel": 4},
    "pass_done": 0.25,
    "tokens_per_s": 3.5,
    "prompt_tokens_per_s": 0.0,
    "read_bytes_per_s": float(900 << 20),
}


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, or a skip where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"there is no browser to look with: none of {', '.join(NAMES)} is on PATH")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@define
class Stub:
    """A server of the page whose answers are written by a test. asked : the requests so far."""

    url: str = ""
    asked: list[dict[str, Any]] = field(factory=list)
    left: threading.Event = field(factory=threading.Event)
    """Set once a client went away before its answer was over."""
    refusal: tuple[int, str] | None = None
    """Instead of the next answer: a status and a sentence."""
    _parts: list[bytes | None] = field(factory=list)

    def say(self, text: str) -> None:
        self._parts.append(sse.event({"choices": [{"delta": {"content": text}, "finish_reason": None}]}))

    def send(self, part: bytes) -> None:
        self._parts.append(part)

    def end(self) -> None:
        self.send(sse.event({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
        self.send(sse.event({"choices": [], "usage": {"completion_tokens": 7, "total_tokens": 1234}}))
        self.send(sse.DONE)
        self._parts.append(None)

    def answer(self, text: str) -> None:
        self.say(text)
        self.end()

    def app(self) -> FastAPI:
        app = FastAPI()
        install_page(app)

        @app.get("/status")
        async def status() -> dict[str, Any]:
            return STATUS

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            self.asked.append(await request.json())
            if self.refusal is not None:
                (status, message), self.refusal = self.refusal, None
                return JSONResponse({"error": {"message": message}}, status)
            return sse.stream(self._stream())

        return app

    async def _stream(self) -> AsyncIterator[bytes]:
        over = False
        try:
            while not over:
                await asyncio.sleep(0.01)
                while self._parts:
                    part = self._parts.pop(0)
                    if part is None:
                        over = True
                        break
                    yield part
        finally:
            if not over:
                self.left.set()


@contextmanager
def stub_server() -> Iterator[Stub]:
    stub = Stub()
    with running(stub.app()) as stub.url:
        yield stub
