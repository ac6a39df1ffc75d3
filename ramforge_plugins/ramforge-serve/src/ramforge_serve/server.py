"""Listening, and ending in good order."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click
import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from ramforge_core.errors import ParameterError
from ramforge_serve.faults import Fault
from ramforge_serve.service import Service

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name))

_DRAIN_S = 30
"""Seconds that running answers have to end once the server is asked to."""
_CONNECTIONS = 256
_HEAD_S = 20.0
"""Seconds that a request's head may take to come; its body has `Rules.body_s`."""
_STALL_S = 60
"""Seconds that a client may take none of what waits for it."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, taken before the model is loaded. Raises ParameterError if there is none to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ParameterError(
            f"there is no address {host!r} to listen on: {error.strerror or error}"
        ) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections have it from the socket that accepts them
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _STALL_S)
        listening.bind(address)
        listening.listen(
            _CONNECTIONS
        )  # now, or a second server could take the port, too, while models are loaded
    except OSError as error:
        listening.close()
        raise ParameterError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; --port takes another one"
        ) from error
    return listening


class Connection(H11Protocol):
    """HTTP that waits for no request for ever, takes a bounded number of connections, and refuses in JSON."""

    _look: asyncio.TimerHandle | None = None
    _seen: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS:
            self._refuse(Fault(503, "too many connections; try again later", "too_many_connections"))
        else:
            self._look = self.loop.call_later(_HEAD_S, self._look_after)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def _look_after(self) -> None:
        """Close the connection if no request has begun since the last look."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._seen:
            self.transport.abort()
            return
        self._seen = self.cycle
        self._look = self.loop.call_later(_HEAD_S, self._look_after)

    def send_400_response(self, msg: str) -> None:
        self._refuse(Fault(400, msg, "invalid_http"))

    def _refuse(self, fault: Fault) -> None:
        if self.conn.our_state is h11.IDLE:
            body = json.dumps(fault.body()).encode()
            head = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            parts: tuple[Any, ...] = (
                h11.Response(status_code=fault.status_code, headers=head),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            for part in parts:
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


def configuration(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_S,
    )


class Server(uvicorn.Server):
    """Asked to end, it takes no more requests and lets the running ones end; asked again, it breaks them off."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._asked) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self._service.scheduler.drain(0)
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            host, port = listening.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            click.echo(f"ramforge: {self._service.name} listens on http://{shown}:{port}", err=True)
