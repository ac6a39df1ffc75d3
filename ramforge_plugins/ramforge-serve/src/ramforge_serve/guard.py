"""Who may ask: checks that come before any route. Pure ASGI, so that streams pass through untouched."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from attrs import frozen
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramforge_serve.faults import RETRY_AFTER_S, Fault, answer

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@frozen
class Rules:
    """api_key : wanted by every route but /health and the page itself; None for none.

    hosts : names by which clients may call this server, "*" for all; addresses are none, and always let in.
    origins : web pages of others that may ask, "*" for all.
    body_bytes : the most that a request may bring; all that are under way may bring twice as much.
    body_s : seconds that a body may take to come. requests : the most that may be under way.
    """

    api_key: str | None = None
    hosts: frozenset[str] = frozenset(_LOOPBACK)
    origins: frozenset[str] = frozenset()
    body_bytes: int = 1 << 20
    body_s: float = 60
    requests: int = 256


def allowed_hosts(bound_to: str, named: Iterable[str]) -> frozenset[str]:
    """The host names that are let in: those of loopback, those named and, if others can reach it, this machine's.

    A page whose name somebody points at this server is so kept from asking it.
    """
    own = () if is_loopback(bound_to) else (socket.gethostname(), socket.getfqdn())
    return frozenset(n.lower() for n in (*_LOOPBACK, *named, *own))


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class Guard:
    """Refuses what the rules forbid, in the order host, origin, key, size."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._requests = 0
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        fault = self._fault(scope, headers)
        if fault is None and scope["method"] == "OPTIONS" and headers.get("origin"):
            await self._preflight(scope, receive, send, headers)
            return
        if fault is not None:
            await answer(fault)(scope, receive, send)
            return
        body = _Body(receive, self)
        self._requests += 1
        try:
            await self._app(scope, body.receive, self._named(headers, send))
        finally:
            self._requests -= 1
            self._bytes -= body.came

    def _fault(self, scope: Scope, headers: Headers) -> Fault | None:
        rules = self._rules
        host = host_name(headers.get("host", ""))
        if not (host in rules.hosts or "*" in rules.hosts or _is_address(host)):
            return Fault(
                403, "this server is not called by that name; allow it with --allow-host", "forbidden_host"
            )
        origin = headers.get("origin")
        if origin is not None and not self._welcome(origin, headers):
            return Fault(
                403, "web pages of that origin may not ask; allow it with --cors-origin", "forbidden_origin"
            )
        preflight = scope["method"] == "OPTIONS" and origin is not None
        if rules.api_key is not None and not preflight and not _is_open(scope["path"]):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            known = scheme.lower() == "bearer" and hmac.compare_digest(
                key.strip().encode("latin-1"), rules.api_key.encode()
            )
            if not known:
                return Fault(
                    401,
                    "an API key is needed, as `Authorization: Bearer KEY`, and this is not it",
                    "invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        length = headers.get("content-length")
        if length is not None and length.isdecimal() and int(length) > rules.body_bytes:
            return too_large(rules.body_bytes)
        if self._requests >= rules.requests and scope["path"] != "/health":
            return busy(f"{self._requests} requests are under way already")
        return None

    def _welcome(self, origin: str, headers: Headers) -> bool:
        """Whether a page of this origin may ask: our own page, or one that was named."""
        if origin in self._rules.origins or "*" in self._rules.origins:
            return True
        own = origin.lower().partition("://")[2]
        return bool(own) and own == headers.get("host", "").lower()

    async def _preflight(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        named = {
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Max-Age": "600",
        }
        await Response(status_code=204, headers=named)(scope, receive, self._named(headers, send))

    def _named(self, headers: Headers, send: Send) -> Send:
        """Answers to a named origin say that it may read them."""
        origin = headers.get("origin")
        if origin is None or not (origin in self._rules.origins or "*" in self._rules.origins):
            return send

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                out["Access-Control-Allow-Origin"] = origin
                out.add_vary_header("Origin")
            await send(message)

        return sending

    def take(self, n: int) -> None:
        """Count bytes of a body. Raises Fault if all bodies together are too many."""
        self._bytes += n
        if self._bytes > 2 * self._rules.body_bytes:
            raise busy(f"{self._bytes} bytes of requests are under way already")

    @property
    def rules(self) -> Rules:
        return self._rules


class _Body:
    """The body of a request, counted and timed as it comes: it may come without a length, or never."""

    def __init__(self, receive: Receive, guard: Guard) -> None:
        self._receive = receive
        self._guard = guard
        self._until = asyncio.get_running_loop().time() + guard.rules.body_s
        self._whole = False
        self.came = 0

    async def receive(self) -> Message:
        if self._whole:  # what comes now is that the client goes
            return await self._receive()
        try:
            left = self._until - asyncio.get_running_loop().time()
            message = await asyncio.wait_for(self._receive(), max(left, 0))
        except asyncio.TimeoutError:
            raise Fault(408, "the body did not come in time", "timeout", headers=_CLOSE) from None
        n = len(message.get("body", b""))
        self.came += n
        self._guard.take(n)
        if self.came > self._guard.rules.body_bytes:
            raise too_large(self._guard.rules.body_bytes)
        self._whole = not message.get("more_body", False)
        return message


_CLOSE = {"Connection": "close"}
"""Goes with refusals of a body that has not come whole."""


def busy(message: str) -> Fault:
    return Fault(
        429, f"{message}; try again later", "queue_full", headers={"Retry-After": str(RETRY_AFTER_S)}
    )


def too_large(limit: int) -> Fault:
    return Fault(
        413,
        f"the body is larger than {limit} bytes, the most that is taken",
        "body_too_large",
        headers=_CLOSE,
    )


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_open(path: str) -> bool:
    return path in ("/health", "/") or path.startswith("/web/")
