"""`ramforge serve` as a process: how it begins, what it says, how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from serving import default_model, get, post
from test_serve_http import CHAT, asking

SERVE = [sys.executable, "-m", "ramforge_cli", "serve"]


def run(*options):
    return subprocess.run([*SERVE, *options], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def started(tmp_path):
    """`ramforge serve` as a process: itself, its address."""
    made = []

    def start(*options):
        command = [*SERVE, default_model(), "--port", "0", "--ctx", "512"]
        process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
        made.append(process)
        said = ""
        while not (found := re.search(r"http://\S+", said)):
            line = process.stderr.readline()
            said += line
            assert line, said
        return process, found[0]

    yield start
    for process in made:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_asked_to_end_it_lets_answers_end(started):
    process, address = started()
    with httpx.stream(
        "POST", address + CHAT, json=asking("Tell a story.", max_tokens=60, stream=True), timeout=60
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line.startswith("data:")]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] in ("length", "stop")
    assert process.wait(20) == 0


def test_a_port_that_is_taken_is_told(started):
    _, address = started()
    port = address.rpartition(":")[2]
    second = run(default_model(), "--port", port)
    assert second.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in second.stderr


def test_a_key_from_the_environment(started, monkeypatch):
    monkeypatch.setenv("RAMFORGE_API_KEY", "from-outside")
    _, address = started()
    assert get(f"{address}/v1/models").status_code == 401
    assert get(f"{address}/v1/models", headers={"Authorization": "Bearer from-outside"}).status_code == 200


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_asked_to_end_while_prompts_are_read(started):
    """The answer is made all the same; a second signal breaks it off."""
    # Long enough to be under way when the signals come, short enough for the time that an ending server grants.
    words = 300 if os.environ.get("RAMFORGE_ISA") == "portable" else 1500
    for signals in (1, 2):
        process, address = started("--ctx", "4096")
        got = []

        def ask(address=address, got=got):
            with contextlib.suppress(httpx.HTTPError):
                got.append(post(address + CHAT, asking("word " * words, max_tokens=2)).status_code)

        asks = threading.Thread(target=ask)
        asks.start()
        while not get(f"{address}/status").json()["requests"]["active"]:
            time.sleep(0.02)
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        assert process.wait(40) == 0
        asks.join()
        assert got.count(200) == 2 - signals


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_killed_it_leaves_nothing_in_the_way(started):
    process, address = started()
    process.kill()
    process.wait()
    port = address.rpartition(":")[2]
    _, again = started("--port", port)
    assert again == address
    assert get(f"{again}/health").status_code == 200


def test_a_port_is_taken_before_the_model_is_loaded(tmp_path):
    """Of two that begin together, the second does not load a model first."""
    from ramforge_core.errors import ParameterError
    from ramforge_serve.server import listen

    with listen("127.0.0.1", 0) as first, pytest.raises(ParameterError, match="Address already in use"):
        listen("127.0.0.1", first.getsockname()[1])


def test_memory_for_requests_is_reserved(started):
    _, address = started("--ram", "300M")
    memory = get(f"{address}/status").json()["memory"]
    assert memory["by_tag"]["reserved"] == 16 << 20
    assert sum(memory["by_tag"].values()) == memory["used_bytes"] <= 300 << 20


@pytest.mark.parametrize("ram", ["8M", "80M"])
def test_a_budget_that_is_too_small_is_refused_with_one_that_is_not(started, ram):
    refused = run(default_model(), "--port", "0", "--ctx", "512", "--ram", ram)
    assert refused.returncode == 6
    (enough,) = re.findall(r"give --ram (\d+M) or more", refused.stderr)
    started("--ram", enough)


def test_ipv6(started):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    _, address = started("--host", "::1")
    assert address.startswith("http://[::1]:")
    assert get(f"{address}/health").status_code == 200


def test_h17_who_listens_for_others_without_a_key_is_warned():
    assert "can use this server; --api-key" in run("no-such-model", "--host", "0.0.0.0", "--port", "0").stderr
    keyed = run("no-such-model", "--host", "0.0.0.0", "--port", "0", "--api-key", "secret")
    assert "--api-key" not in keyed.stderr
    assert "secret" not in keyed.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--api-key", ""), "--api-key"),
        (("--api-key", " x"), "--api-key"),
        (("--api-key", "a\nb"), "--api-key"),
        (("--host", "no.such.host.invalid"), "no address 'no.such.host.invalid'"),
        (("--port", "70000"), "--port"),
        (("--parallel", "0"), "--parallel"),
    ],
)
def test_what_cannot_be_used_is_told(options, told):
    refused = run("smollm2", *options)
    assert refused.returncode == 2
    assert told in refused.stderr
