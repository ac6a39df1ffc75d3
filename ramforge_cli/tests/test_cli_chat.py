"""``ramforge chat``: turns, commands, and Ctrl-C on a terminal; with the real model where it is installed."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time

import pytest

OPTIONS = ("--temperature", 0, "-n", 12)


def reused(err: str) -> list[tuple[int, int]]:
    """By /stats: tokens of the prompt that were computed, and kept."""
    return [(int(a), int(b)) for a, b in re.findall(r"prompt: (\d+) tokens .* (\d+) kept", err)]


def test_a_second_turn_computes_only_its_own_tokens(ramforge, smollm2):
    talk = b"Name a colour.\n/stats\nAnd another one, please.\n/stats\n"
    outcome = ramforge("chat", smollm2, *OPTIONS, stdin=talk)
    assert outcome.code == 0
    first, second = reused(outcome.err)
    assert first[1] == 0
    assert second[1] >= first[0] + 8
    assert second[0] < 25
    assert len(outcome.out.splitlines()) >= 2


def test_saved_and_loaded_it_goes_on_the_same(ramforge, smollm2, tmp_path):
    file = tmp_path / "talk"
    whole = ramforge("chat", smollm2, *OPTIONS, stdin=b"Name a colour.\nWhy that one?\n").out
    ramforge("chat", smollm2, *OPTIONS, stdin=f"Name a colour.\n/save {file}\n".encode())
    resumed = ramforge("chat", smollm2, *OPTIONS, stdin=f"/load {file}\nWhy that one?\n/stats\n".encode())
    assert whole.endswith(resumed.out)
    assert resumed.out
    assert reused(resumed.err)[0][1] > 30


def test_the_system_text_can_change(ramforge, smollm2):
    talk = b"Hi\n/system You only speak French.\nHi\n/system\n/forget\nHi\n/stats\n/ram\n"
    outcome = ramforge("chat", smollm2, *OPTIONS, stdin=talk)
    answers = outcome.out.splitlines()
    assert answers[0] == answers[-1]
    assert "kv cache" in outcome.err


def test_unknown_commands_and_files_do_not_end_it(ramforge, smollm2, tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"nothing of ours")
    talk = f"/frobnicate\n/load\n/load {foreign}\n/save {tmp_path}/no/where\n/stats\n/help\n\n//Hi\n/exit\nnever\n"
    outcome = ramforge("chat", smollm2, *OPTIONS, stdin=talk.encode())
    assert outcome.code == 0
    assert "there is no command /frobnicate" in outcome.err
    assert "give the name of a file" in outcome.err
    assert "this is no session" in outcome.err
    assert f"cannot write {tmp_path}/no/where: No such file or directory" in outcome.err
    assert "there is no answer yet" in outcome.err
    assert "/forget" in outcome.err
    assert len(outcome.out.splitlines()) == 1


def test_a_full_context_is_told_and_forget_helps(ramforge, smollm2):
    talk = (
        b"Tell me a long story about the sea.\n"
        + b"And a longer one about the land. " * 20
        + b"\n/forget\nHi\n"
    )
    outcome = ramforge("chat", smollm2, "--ctx", 128, "-n", 40, "--temperature", 0, stdin=talk)
    assert outcome.code == 0
    assert "but the context holds 128" in outcome.err
    assert len(outcome.out.splitlines()) >= 2


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, *arguments: object) -> None:
        import pty

        self.seen = ""
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.environ |= {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
            os.execv(sys.executable, [sys.executable, "-m", "ramforge_cli", *map(str, arguments)])

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Read on until the pattern was seen; returns what was seen since the last one."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{pattern!r} did not come, but {self.seen!r}"
            self.seen += os.read(self.fd, 65536).decode(errors="replace")
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text

    def close(self) -> int:
        with contextlib.suppress(OSError):
            while os.read(self.fd, 65536):
                pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal():
    if not sys.platform.startswith("linux"):
        pytest.skip("needs a pseudo-terminal")
    made = []

    def start(*arguments: object) -> Terminal:
        made.append(Terminal(*arguments))
        return made[-1]

    yield start
    for t in made:
        with contextlib.suppress(OSError):
            os.kill(t.pid, signal.SIGKILL)
            os.waitpid(t.pid, 0)


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal, smollm2):
    t = terminal("chat", smollm2, "--temperature", 0)
    t.wait_for(">")
    t.type("Write a very long story about a ship.\r")
    t.wait_for(r"2004l(\w+\W+){12}")
    t.type("\x03")
    t.wait_for(r"\(stopped\)", 5)
    t.wait_for(">")
    t.type("/stats\r")
    t.wait_for(r"answer: \d+ tokens")
    t.wait_for(">")
    t.type("Half a line\x03")
    t.wait_for("Ctrl-D or /exit leaves")
    t.wait_for(">")
    t.type("\x04")
    assert t.close() == 0
