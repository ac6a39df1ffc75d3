"""Who may ask: checks that come before any route. Pure ASGI, so that streams pass through untouched."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from attrs import frozen
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramforge_serve.faults import Fault, answer

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@frozen
class Rules:
    """api_key : wanted by every route but /health and the page itself; None for none.

    hosts : names by which clients may call this server; empty for all. origins : web pages of others that may ask.
    body_bytes : the most that a request may bring.
    """

    api_key: str | None = None
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    body_bytes: int = 8 << 20


def allowed_hosts(bound_to: str, named: Iterable[str]) -> frozenset[str]:
    """The host names that are let in: on loopback its names and those named; elsewhere those named, or all."""
    more = frozenset(n.lower() for n in named)
    return more | frozenset(_LOOPBACK) if is_loopback(bound_to) else more


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses what the rules forbid, in the order host, origin, key, size."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules

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
        await self._app(scope, self._limited(receive), self._named(headers, send))

    def _fault(self, scope: Scope, headers: Headers) -> Fault | None:
        rules = self._rules
        if rules.hosts and host_name(headers.get("host", "")) not in rules.hosts:
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
                key.strip().encode(), rules.api_key.encode()
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
        return None

    def _welcome(self, origin: str, headers: Headers) -> bool:
        """Whether a page of this origin may ask: our own page, or one that was named."""
        if origin in self._rules.origins or "*" in self._rules.origins:
            return True
        parts = urlsplit(origin)
        return bool(parts.netloc) and parts.netloc.lower() == headers.get("host", "").lower()

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

    def _limited(self, receive: Receive) -> Receive:
        """Counts what comes, as a body may come without a length."""
        came = 0

        async def receiving() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > self._rules.body_bytes:
                raise too_large(self._rules.body_bytes)
            return message

        return receiving


def too_large(limit: int) -> Fault:
    return Fault(413, f"the body is larger than {limit} bytes, the most that is taken", "body_too_large")


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_open(path: str) -> bool:
    return path in ("/health", "/") or path.startswith("/web/")
