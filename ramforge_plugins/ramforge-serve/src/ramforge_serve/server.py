"""Listening, and ending in good order."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click
import uvicorn

from ramforge_core.errors import ParameterError
from ramforge_serve.service import Service

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name))


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
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise ParameterError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; --port takes another one"
        ) from error
    return listening


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
