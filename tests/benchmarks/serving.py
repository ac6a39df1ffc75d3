"""A server larger than its memory: clients together against clients alone. Prints one JSON line.

    uv run python tests/benchmarks/serving.py MODEL.gguf --ram 350M

First one client, then four at once: tokens per second of all. Then ``--clients`` clients ask ``--rounds`` times each,
completions and Ollama's, streamed or not; some go away early. Every text is compared with the one that
the same request got when it was alone. Memory is the kernel's high-water mark of the server's process; where control
groups can be made, it runs in one of the budget and 16 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

sys.path.append(str(Path(__file__).resolve().parent.parent))
from test_memory_cgroup import Cgroup

from ramforge_core.sizes import parse_size

BODIES = 16


class Server:
    """``ramforge serve`` in a process of its own, in a control group if there may be one."""

    def __init__(self, model: str, ram: str, *options: str) -> None:
        self.group: Cgroup | None = None
        with contextlib.suppress(OSError):
            self.group = Cgroup(parse_size(ram, None) + (16 << 20))
        enter = f"echo $$ > {self.group.folder}/cgroup.procs; " if self.group else ""
        serve = [sys.executable, "-m", "ramforge_cli", "serve", model, "--ram", ram, "--port", "0", *options]
        self.process = subprocess.Popen(
            ["sh", "-c", f'{enter}exec "$@"', "sh", *serve], stderr=subprocess.PIPE, text=True
        )
        line = self.process.stderr.readline()
        found = re.search(r"http://\S+", line)
        if not found:
            raise SystemExit(line + self.process.stderr.read())
        self.url = found[0]

    def memory(self, name: str = "VmHWM") -> int:
        """Bytes of the process, by the kernel's count."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) * 1024

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(60)
        self.process.stderr.close()
        if self.group:
            self.group.remove()
        return code


def bodies(n: int) -> list[tuple[str, dict]]:
    """Route and request number ``n``: prompts of different lengths, draws with seeds."""
    text = f"Say something about the number {n}. " + "It is a large number. " * n
    common = {"temperature": 0.9, "seed": n}
    length = 4 + n % 7
    return [
        ("/v1/completions", {"prompt": text, "max_tokens": length, **common}),
        ("/v1/completions", {"prompt": text, "max_tokens": length, "stream": True, **common}),
        (
            "/api/generate",
            {
                "model": "",
                "prompt": text,
                "raw": True,
                "stream": False,
                "options": {"num_predict": length, **common},
            },
        ),
        (
            "/api/generate",
            {"model": "", "prompt": text, "raw": True, "options": {"num_predict": length, **common}},
        ),
    ]


def said(client: httpx.Client, route: str, body: dict) -> str:
    """The text of an answer, whatever its shape."""
    text = ""
    with client.stream("POST", route, json=body) as answer:
        for line in answer.iter_lines():
            if not (line := line.removeprefix("data: ")).startswith("{"):
                continue
            got = json.loads(line)
            if "error" in got:
                raise SystemExit(f"{answer.status_code}: {got['error']}")
            text += got["response"] if "response" in got else "".join(c["text"] for c in got["choices"])
    return text


def tokens_per_second(url: str, clients: int, tokens: int) -> float:
    def one(i: int) -> int:
        body = {"prompt": f"{i} and", "max_tokens": tokens, "temperature": 0.8, "seed": i}
        answer = httpx.post(url + "/v1/completions", json=body, timeout=600).json()
        return answer["usage"]["completion_tokens"]

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        made = sum(pool.map(one, range(clients)))
    return made / (time.perf_counter() - began)


def mixed(server: Server, clients: int, rounds: int) -> dict:
    """Rounds of requests, texts compared; resident bytes after each tenth of the rounds."""
    with httpx.Client(base_url=server.url, timeout=600) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        asked = [bodies(n) for n in range(BODIES)]
        for kinds in asked:
            for _, body in kinds:
                body.setdefault("model", model)
                body["model"] = model
        alone = [said(client, *kinds[0]) for kinds in asked]
    wrong, resident = [], []

    def rounds_of(i: int) -> None:
        with httpx.Client(base_url=server.url, timeout=600) as client:
            for turn in range(rounds):
                n = (5 * i + 3 * turn) % BODIES
                route, body = asked[n][(i + turn) % 4]
                if turn % 10 == 9:  # somebody who does not wait for the end
                    with client.stream(
                        "POST", "/v1/completions", json={**asked[n][1][1], "max_tokens": 500}
                    ) as gone:
                        next(gone.iter_lines())
                if said(client, route, body) != alone[n]:
                    wrong.append((route, n))
                if i == 0 and (turn + 1) % max(1, rounds // 10) == 0:
                    resident.append(server.memory("VmRSS"))

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(rounds_of, range(clients)))
    return {
        "requests": clients * rounds,
        "seconds": time.perf_counter() - began,
        "different_texts": len(wrong),
        "resident_bytes": resident,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--ram", required=True)
    parser.add_argument("--ctx", default="1024")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100, help="of each client; 0 measures the speed only")
    parser.add_argument(
        "--tokens", type=int, default=24, help="of an answer whose speed is measured; 0 for none"
    )
    parser.add_argument("--speeds", type=int, default=3, help="how often the speed is measured, in turns")
    a = parser.parse_args()
    server = Server(a.model, a.ram, "--ctx", a.ctx)
    facts: dict = {"ram": parse_size(a.ram, None), "started_bytes": server.memory("VmRSS")}
    try:
        if a.tokens:
            tokens_per_second(server.url, 1, 4)
            pairs = [[tokens_per_second(server.url, n, a.tokens) for n in (1, 4)] for _ in range(a.speeds)]
            facts["tokens_per_s_1_and_4"] = pairs
            facts["ratios"] = [four / one for one, four in pairs]
        if a.rounds:
            facts |= mixed(server, a.clients, a.rounds)
        status = httpx.get(server.url + "/status", timeout=60).json()
        facts |= {name: status[name] for name in ("pinned_bytes", "streamed_bytes", "memory")}
        facts["peak_bytes"] = server.memory()
        facts["oom_kills"] = server.group.oom_kills if server.group else None
    finally:
        facts["exit"] = server.stop()
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
