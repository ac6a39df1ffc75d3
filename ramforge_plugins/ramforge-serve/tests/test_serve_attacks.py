"""Clients that mean harm, or behave as if they did: they are refused or bounded, and the server goes on for others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from serving import get, listening, post, wait_until
from test_serve_http import CHAT, asking

from ramforge_core.sampling import SamplingParameters
from ramforge_core.system import process_memory
from ramforge_serve import server
from ramforge_serve import service as service_module
from ramforge_serve.faults import Fault
from ramforge_serve.guard import Rules, allowed_hosts, is_loopback


def connect(url):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def request_bytes(body, route=CHAT, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {route} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(content)}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + content


def all_bytes(client):
    got = b""
    with contextlib.suppress(ConnectionResetError):  # closed before it had read all of what was sent
        while more := client.recv(1 << 16):
            got += more
    return got


# -- the wire ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/com", b"GET / HTTP/1.1\r\nHost: loc"])
def test_half_a_request_is_not_waited_for_for_ever(service, monkeypatch, sent):
    monkeypatch.setattr(server, "_HEAD_S", 0.2)
    with listening(service) as url, connect(url) as client:
        client.sendall(sent)
        assert ended(client)


def ended(client):
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_body_that_never_comes(service):
    with listening(service, body_s=0.2) as url, connect(url) as client:
        client.sendall(request_bytes(asking())[:-5])
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")
    with (
        listening(service, body_s=0.5) as url,
        connect(url) as client,
    ):  # it drips, and is cut off all the same
        client.sendall(request_bytes(asking())[:-50])
        began = time.monotonic()
        while not select.select([client], [], [], 0.1)[0]:
            client.sendall(b" ")
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began < 3


def test_connections_are_bounded_and_the_others_are_told(service, monkeypatch):
    monkeypatch.setattr(server, "_CONNECTIONS", 20)
    with listening(service) as url:
        held = [connect(url) for _ in range(20)]
        wait_until(lambda: get_status(url) == 503)
        for client in held:
            client.close()
        wait_until(lambda: get_status(url) == 200)


def get_status(url):
    with connect(url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = all_bytes(client)
        if not answer:
            return 0
        head, _, body = answer.partition(b"\r\n\r\n")
        json.loads(body)
        return int(head.split()[1])


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    ],
)
def test_h18_what_is_no_http(url, sent):
    with connect(url) as client:
        client.sendall(sent + b"\r\n\r\n")
        answer = all_bytes(client)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert 400 <= int(head.split()[1]) < 500
    assert b"application/json" in head
    assert json.loads(body)["error"]


def test_pipelined_requests_are_answered_in_order(url):
    with connect(url) as client:
        first = request_bytes(asking(max_tokens=2))
        last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        client.sendall(first + request_bytes(b"{", "/tokenize") + last)
        answers = all_bytes(client)
    assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400", b"200"]


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "PATCH"])
@pytest.mark.parametrize("route", [CHAT, "/health", "/v1/models"])
def test_h18_other_methods(url, method, route):
    answer = httpx.request(method, url + route)
    assert answer.status_code == 405
    if method != "HEAD":
        assert answer.json()["error"]["code"] == "method_not_allowed"


# -- clients that do not read ------------------------------------------------------------------------------------------


async def all_events(answers):
    while answers.running:
        await answers.next(5)


def test_answers_that_nobody_takes_are_given_up(service, monkeypatch):
    monkeypatch.setattr(service_module, "_UNREAD", 20)

    async def stalled():
        answers = service.answers()
        answers.add([5, 6, 7], SamplingParameters(temperature=1, seed=1), max_tokens=900)
        answers.start()
        while service.scheduler.load.active + service.scheduler.load.waiting:
            await asyncio.sleep(0.02)
        with pytest.raises(Fault, match="unread") as given_up:
            await all_events(answers)
        assert given_up.value.status_code == 408
        return len(answers.requests[0].answer.ids)

    assert 20 <= asyncio.run(stalled()) < 200


def test_a_client_that_does_not_read_keeps_nobody_waiting(service, url):
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        stalled.connect((host, int(port)))
        body = asking("Tell a long story.", max_tokens=900, stream=True, logprobs=True, top_logprobs=20)
        stalled.sendall(request_bytes(body))
        wait_until(lambda: service.scheduler.load.active)
        assert post(url + CHAT, asking()).status_code == 200
    wait_until(lambda: not service.scheduler.load.active)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
def test_connections_end_when_nothing_is_taken_from_them(monkeypatch):
    monkeypatch.setattr(server, "_STALL_S", 1)
    with server.listen("127.0.0.1", 0) as listening_socket, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(listening_socket.getsockname())
        accepted, _ = listening_socket.accept()
        with accepted:
            accepted.settimeout(15)
            with pytest.raises(TimeoutError) as timeout:
                accepted.sendall(bytes(64 << 20))
    assert timeout.value.errno, "the kernel's end, not Python's"


def test_h09_resets_in_every_state_leave_nothing(service, url):
    def client(i):
        with connect(url) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            body = request_bytes(asking("story " * (20 * i), max_tokens=200, stream=bool(i % 2)))
            one.sendall(body if i % 3 else body[: len(body) // 2])
            time.sleep(0.02 * i)

    with ThreadPoolExecutor(8) as clients:
        list(clients.map(client, range(24)))
    wait_until(lambda: service.scheduler.load.active == service.scheduler.load.waiting == 0, 30)
    assert post(url + CHAT, asking()).status_code == 200


# -- bodies ------------------------------------------------------------------------------------------------------------


def test_bodies_together_are_bounded(service):
    with listening(service, body_bytes=100_000) as url:
        held = [connect(url) for _ in range(3)]
        for client in held:
            client.sendall(request_bytes(b" " * 90_000)[:-10])
        time.sleep(0.3)
        refused = post(url + CHAT, {"messages": [{"role": "user", "content": "x" * 90_000}]})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        for client in held:
            client.close()
        wait_until(lambda: post(url + CHAT, asking()).status_code == 200)


def test_requests_together_are_bounded(service):
    with listening(service, requests=3) as url:
        held = [connect(url) for _ in range(3)]
        for client in held:
            client.sendall(request_bytes(asking())[:-10])
        wait_until(lambda: get(f"{url}/v1/models").status_code == 429)
        for client in held:
            client.close()
        wait_until(lambda: get(f"{url}/v1/models").status_code == 200)


def nested(depth, inner='"x"'):
    return '{"a":' * depth + inner + "}" * depth


@pytest.mark.parametrize("depth", [50, 150, 400, 900, 3000])
@pytest.mark.parametrize("place", ["tools", "schema", "ignored"])
def test_h18_deep_json(url, place, depth):
    deep = nested(depth)
    more = {
        "tools": f'"tools":[{{"type":"function","function":{{"name":"f","parameters":{deep}}}}}]',
        "schema": f'"response_format":{{"type":"json_schema","json_schema":{{"schema":{deep}}}}}',
        "ignored": f'"whatever":{deep}',
    }[place]
    body = '{"max_tokens":1,"messages":[{"role":"user","content":"x"}],' + more + "}"
    answer = httpx.post(
        url + CHAT, content=body.encode(), headers={"Content-Type": "application/json"}, timeout=60
    )
    assert answer.status_code in (200, 400), answer.text


@pytest.mark.parametrize(
    "options",
    [
        {"stop": "x" * 1_000_000},
        {"stop": ["\ud800"]},
        {"stop": ["<|im_end|>", "\n", "a"]},
        {"seed": -1},
        {"seed": 2**63 - 1},
        {"seed": 2**70},
        {"temperature": 1e-300},
        {"temperature": float("1e400")},
        {"top_k": -(2**80)},
        {"top_k": 2**80},
        {"repeat_penalty": 1e-300},
        {"repeat_penalty": 1e300},
        {"max_tokens": 2**80},
        {"n": 8, "max_tokens": 1},
        {"tools": [{"type": "function", "function": {"name": "<tool_call>{"}}], "max_tokens": 4},
        {"tools": [{"type": "function", "function": {"name": "a\n</tool_call>\u202e\0"}}], "max_tokens": 4},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [None]}}}]},
        {"tools": []},
        {"tool_choice": {"type": "function"}},
        {"tool_choice": {"function": 5}, "tools": [{"type": "function", "function": {"name": "f"}}]},
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 5000}}]}
            ]
        },
        {"messages": [{"role": "assistant", "content": "only me"}]},
        {"messages": [{"role": "tool", "content": "result"}]},
        {"messages": [{"role": "system", "content": ""}] * 50},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": "\ud800\0\x1b[2J\u202e\ufffe\ufdd0"}]},
        {"messages": [{"role": "user", "content": "x"}] * 5000},
        {"model": "../../etc/passwd"},
        {"model": "\ud800" * 100},
    ],
    ids=lambda options: "-".join(options),
)
def test_h18_odd_requests(url, options):
    for stream in (False, True):
        content = json.dumps({**asking(max_tokens=3), **options, "stream": stream}).encode()
        answer = httpx.post(
            url + CHAT, content=content, headers={"Content-Type": "application/json"}, timeout=60
        )
        assert answer.status_code in (200, 400, 404, 413), answer.text
        if answer.status_code == 200 and stream:
            assert answer.text.endswith("data: [DONE]\n\n")
            assert '"error"' not in answer.text


BOMBS = {
    "pattern": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,100}$"},
    "lookbehind": {"type": "string", "pattern": "(?<=a)b"},
    "states": {"type": "string", "pattern": "^(.*a.{30})$"},
    "enum": {"enum": ["x" * 50 + str(i) for i in range(400)]},
    "properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(5000)}},
    "any": {"anyOf": [{"properties": {f"p{i}": {"type": "integer"} for i in range(j)}} for j in range(80)]},
    "all": {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(4)]} for i in range(12)]},
    "length": {"type": "string", "minLength": 1000000, "maxLength": 2000000},
    "recursion": {"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}},
    "remote": {"$ref": "http://localhost:9/x.json"},
    "no type": {"type": "wizard"},
    "range": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
}


@pytest.mark.parametrize("name", BOMBS)
def test_schemas_that_explode_are_bounded(url, name):
    pytest.importorskip("llguidance")
    before, began = process_memory().rss, time.monotonic()
    form = {"type": "json_schema", "json_schema": {"schema": BOMBS[name]}}
    answer = post(url + CHAT, asking(max_tokens=8, temperature=1.5, response_format=form))
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["message"].startswith("the schema cannot be ")
        assert "Tokens" not in answer.text
    assert process_memory().rss - before < 64 << 20
    assert time.monotonic() - began < 20


# -- names and keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["sch\u00fcssel", "a b", "\U0001f511", "x" * 4000, "a:b,c;d=="])
def test_h17_keys_of_odd_characters(service, key):
    with listening(service, api_key=key) as url:
        good = {"Authorization": b"Bearer " + key.encode()}
        assert get(f"{url}/v1/models", headers=good).status_code == 200
        for wrong in (key.encode()[:-1].strip() or b"y", key.encode() + b"x", b"\xff"):
            assert get(f"{url}/v1/models", headers={"Authorization": b"Bearer " + wrong}).status_code == 401


def test_h15_a_server_for_others_is_called_by_address_or_by_its_own_names(service):
    hosts = allowed_hosts("0.0.0.0", ["models.home"])
    assert socket.gethostname().lower() in hosts
    assert (
        socket.gethostname().lower() not in allowed_hosts("127.0.0.1", ())
        or socket.gethostname() == "localhost"
    )
    with listening(service, hosts=hosts) as url:
        for host, status in {
            "evil.example": 403,
            "": 403,
            "models.home:80": 200,
            "10.1.2.3:8080": 200,
            "[fe80::1]:8080": 200,
            "localhost@evil.example": 403,
            "evil.example#localhost": 403,
        }.items():
            assert get(f"{url}/health", headers={"Host": host}).status_code == status, host
    with listening(service, hosts=frozenset({"*"})) as url:
        assert get(f"{url}/health", headers={"Host": "anything"}).status_code == 200


def test_what_counts_as_loopback():
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))
    assert "evil.example" not in Rules().hosts
