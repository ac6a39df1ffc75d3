"""The server as such: who is let in, how faults are told, clients that come together, that go, that wait."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from serving import get, listening, post, service_of, wait_until

from ramforge_core.system import process_memory
from ramforge_serve import sse

CHAT = "/v1/chat/completions"


def asking(text="Name three colours.", **options):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 16, "seed": 1, **options}


# -- who is let in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [None, "http://evil.example"])
@pytest.mark.parametrize("route", ["/", "/health", "/v1/models", CHAT])
def test_h15_a_foreign_name_is_refused(url, route, origin):
    headers = {"Host": "evil.example:80", **({"Origin": origin} if origin else {})}
    answer = get(url + route, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden_host")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST:1234"])
def test_h15_names_of_this_machine_are_welcome(url, name):
    assert get(f"{url}/health", headers={"Host": name}).status_code == 200


def test_h15_a_name_can_be_allowed(service):
    with listening(service, hosts=frozenset({"models.home"})) as address:
        assert get(f"{address}/health", headers={"Host": "models.home:8080"}).status_code == 200
        assert get(f"{address}/health", headers={"Host": "localhost"}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "", "http://[", "http://localhost@evil.example"]
)
@pytest.mark.parametrize("method", ["OPTIONS", "POST"])
def test_h16_pages_of_others_may_not_ask(url, origin, method):
    answer = httpx.request(method, url + CHAT, headers={"Origin": origin}, json=asking())
    assert answer.status_code == 403
    assert not [h for h in answer.headers if h.startswith("access-control")]


def test_h16_an_origin_can_be_allowed_by_name(service):
    with listening(service, origins=frozenset({"https://good.example"})) as address:
        good = {"Origin": "https://good.example"}
        preflight = httpx.options(address + CHAT, headers=good)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "https://good.example"
        assert "access-control-allow-credentials" not in preflight.headers
        assert post(address + CHAT, asking(), headers=good).headers["access-control-allow-origin"]
        assert post(address + CHAT, asking(), headers={"Origin": "https://bad.example"}).status_code == 403


def test_the_own_page_may_ask(url):
    assert post(url + CHAT, asking(), headers={"Origin": url}).status_code == 200


def test_h17_every_route_but_health_wants_the_key(service):
    with listening(service, api_key="secret") as address:
        routes = get(f"{address}/openapi.json", headers={"Authorization": "Bearer secret"}).json()["paths"]
        assert len(routes) > 8
        for route, methods in routes.items():
            for method in methods:
                for key in (None, "Bearer wrong", "Basic secret", "Bearer", "secret"):
                    headers = {"Authorization": key} if key else {}
                    answer = httpx.request(method, address + route, headers=headers, json={})
                    if route == "/health":
                        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
                        continue
                    assert answer.status_code == 401, (route, key)
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert answer.json()["error"]["code"] == "invalid_api_key"
        for key in ("Bearer secret", "bearer secret"):
            assert post(address + CHAT, asking(), headers={"Authorization": key}).status_code == 200


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "route", "body", "status"),
    [
        ("POST", CHAT, b"{not json", 400),
        ("POST", CHAT, b"[]", 400),
        ("POST", CHAT, b"\xff\xfe", 400),
        ("POST", CHAT, b'{"messages": 5}', 400),
        ("POST", CHAT, b'{"messages": []}', 400),
        ("POST", CHAT, b'{"messages": [{"role": "wizard", "content": "x"}]}', 400),
        ("POST", CHAT, b'{"messages": [{"role": "user", "content": "x"}], "model": "gpt-9"}', 404),
        ("POST", CHAT, b"[" * 100_000, 400),
        ("POST", "/v1/completions", b'{"prompt": [99999999]}', 400),
        ("POST", "/v1/completions", b'{"prompt": []}', 400),
        ("POST", "/v1/completions", b'{"prompt": [[]]}', 400),
        ("POST", "/v1/completions", b'{"prompt": ["a", "b", "c"], "n": 8}', 400),
        ("POST", "/detokenize", b'{"tokens": [-1]}', 400),
        ("GET", "/no/such/route", b"", 404),
        ("GET", "/web/no-such-file", b"", 404),
        ("GET", "/web/../app.py", b"", 404),
        ("PUT", CHAT, b"{}", 405),
    ],
)
def test_h18_faults_are_json_of_one_shape(url, method, route, body, status):
    answer = httpx.request(method, url + route, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


def test_h18_a_body_that_is_not_json_is_told_so(url):
    body = b'{"messages": ['
    answer = httpx.post(url + CHAT, content=body, headers={"Content-Type": "application/json"})
    fault = answer.json()["error"]
    assert fault["message"].startswith("the body is not JSON: ")
    assert fault["message"].endswith(f" at character {len(body)}")
    assert fault["param"] is None


def test_h18_a_body_of_another_type_is_told_so(url):
    for kind in ("application/x-www-form-urlencoded", "text/plain"):  # the first is what curl -d says
        answer = httpx.post(url + CHAT, content=json.dumps(asking()), headers={"Content-Type": kind})
        assert answer.status_code == 400
        assert "send it with `Content-Type: application/json`" in answer.json()["error"]["message"]


def refused(url, content):
    """The status of a body that is refused while it is sent; when the connection is reset first, it is sent again."""
    for _ in range(5):
        with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            return httpx.post(url, content=content(), timeout=60).status_code
    return None


def test_h18_a_large_body_is_refused(url):
    large = b'{"messages": [{"role": "user", "content": "' + b"x" * (9 << 20) + b'"}]}'
    assert refused(url + CHAT, lambda: large) == 413

    def parts():
        for at in range(0, len(large), 1 << 16):
            yield large[at : at + (1 << 16)]

    assert refused(url + CHAT, parts) == 413


# -- clients together --------------------------------------------------------------------------------------------------


def streamed_text(url, body):
    text = ""
    with httpx.stream("POST", url + CHAT, json={**body, "stream": True}, timeout=120) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                text += chunk["choices"][0]["delta"].get("content") or ""
    return text


def test_h11_eight_clients_get_their_own_answers(url):
    bodies = [asking(f"Say something about the number {i}.", seed=i, temperature=0.9) for i in range(8)]
    alone = [post(url + CHAT, b).json()["choices"][0]["message"]["content"] for b in bodies]

    def client(i):
        texts = []
        for turn in range(6):
            if (i + turn) % 2:
                texts.append(streamed_text(url, bodies[i]))
            else:
                texts.append(post(url + CHAT, bodies[i]).json()["choices"][0]["message"]["content"])
        return texts

    with ThreadPoolExecutor(8) as clients:
        for i, texts in enumerate(clients.map(client, range(8))):
            assert texts == [alone[i]] * 6


def test_h11_a_full_queue_says_when_to_come_again():
    with service_of(ctx=512, sequences=1, queue=0) as service, listening(service) as address:
        body = asking("Tell me a long story.", max_tokens=400, stream=True)
        with httpx.stream("POST", address + CHAT, json=body, timeout=60) as first:
            lines = first.iter_lines()
            next(lines)
            wait_until(lambda: service.scheduler.load.active)
            refused = post(address + CHAT, asking())
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) > 0
            assert refused.json()["error"]["code"] == "queue_full"


def test_the_budget_holds_for_all_clients_together():
    ram = (process_memory().rss or 0) + (60 << 20)
    with service_of(ctx=512, sequences=4, ram=ram) as service, listening(service) as address:
        budget = service.model.engine.budget
        bodies = [asking(f"{i} " * (20 * i + 5), max_tokens=24) for i in range(8)]
        with ThreadPoolExecutor(8) as clients:
            for answer in clients.map(lambda b: post(address + CHAT, b), bodies * 2):
                assert answer.status_code == 200
        assert budget.peak <= budget.limit


# -- clients that go or wait ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_h09_a_client_that_goes_stops_its_answer(service, url, stream, caplog):
    body = json.dumps(asking("Tell me a very long story.", max_tokens=900, stream=stream)).encode()
    host, port = url.removeprefix("http://").split(":")
    before = service.totals.generated_tokens
    with socket.create_connection((host, int(port))) as client:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_until(lambda: service.scheduler.load.active)
        time.sleep(0.1)
    wait_until(lambda: not service.scheduler.load.active, 3)
    assert service.totals.generated_tokens - before < 400
    time.sleep(0.3)  # the request ends after its answer
    assert not caplog.records


def test_h13_a_long_wait_is_not_silent(monkeypatch):
    monkeypatch.setattr(sse, "PING_S", 0.05)
    with service_of(ctx=512, sequences=1) as service, listening(service) as address:
        waits = threading.Thread(
            target=post, args=(address + CHAT, asking("Tell me a long story.", max_tokens=300))
        )
        waits.start()
        wait_until(lambda: service.scheduler.load.active)
        with httpx.stream("POST", address + CHAT, json=asking(stream=True), timeout=60) as answer:
            lines = [line for line in answer.iter_lines() if line]
        waits.join()
    assert sum(line.startswith(": waiting") for line in lines) >= 2
    assert lines[-1] == "data: [DONE]"
    assert not any(line.startswith(":") for line in lines[-3:])


def test_metrics_are_counted(url, service):
    post(url + CHAT, asking())
    text = get(f"{url}/metrics").text
    values = dict(re.findall(r"^(ramforge_\w+)(?:\{.*\})? ([\d.e+]+)$", text, re.MULTILINE))
    assert float(values["ramforge_requests_total"]) == service.totals.requests
    assert float(values["ramforge_generated_tokens_total"]) > 0
    assert 'ramforge_budget_used_bytes{tag="kv cache"}' in text


def test_half_a_surrogate_pair_is_a_replacement_character(url):
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{url}/tokenize", content=b'{"content": "\\ud800"}', headers=headers, timeout=60)
    assert answer.status_code == 200
    assert answer.json() == post(f"{url}/tokenize", {"content": "\ufffd"}).json()
