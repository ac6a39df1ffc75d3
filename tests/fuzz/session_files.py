"""Target: files of saved sessions. Two inputs of three get a right digest, so that what is behind it is reached."""

from __future__ import annotations

import atexit
import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from synthetic import Sizes, write_model

import ramforge_core
from fuzz.target import FRACTIONS, NUMBERS, Choices, folder
from ramforge_core.api import LanguageModel
from ramforge_core.conversation import Conversation
from ramforge_core.sessions import MAGIC

SIZES = Sizes(
    layers=1,
    width=256,
    heads=8,
    kv_heads=1,
    feed_forward=256,
    vocab=300,
    context=300,
    quant="q8_0",
    rich="q8_0",
)
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
FIELDS = ("model", "backend", "kv_type", "layers", "tokens", "note", "digest", "other")
VALUES = (
    None,
    True,
    "",
    "x",
    [],
    {},
    [[]],
    [1, 2],
    {"messages": []},
    {"messages": None},
    *NUMBERS,
    *FRACTIONS,
    -1,
)
NOTES = (
    {"system": None, "messages": []},
    {"system": 1, "messages": []},
    {"system": "be", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]},
    {"system": "be", "messages": [{"role": "", "content": "hi"}]},
    {"system": "be", "messages": [{"role": "assistant", "content": "\ud800"}]},
    {"system": "be", "messages": [{"role": "user", "content": 1}, None]},
)


@cache
def model() -> LanguageModel:
    """A model that has a template, open for as long as the process lives."""
    until_exit = ExitStack()
    atexit.register(until_exit.close)
    path = write_model(until_exit.enter_context(folder()) / "tiny.gguf", SIZES, template=TEMPLATE)
    return until_exit.enter_context(ramforge_core.open(path, ctx=300, threads=1, ram="2G"))


@cache
def saved() -> tuple[dict[str, object], bytes]:
    """Header and payload of a sound session."""
    with folder() as place, Conversation(model()) as talk:
        "".join(talk.say("hello", max_tokens=3, temperature=0))
        talk.save(place / "talk")
        raw = (place / "talk").read_bytes()[len(MAGIC) :]
    line, _, payload = raw.partition(b"\n")
    return json.loads(line), payload


def seeds() -> Iterator[bytes]:
    for change in range(8):
        yield bytes([0, change, 1, 2, 3, 0]) + b"hello"
        yield bytes([1, change, 4, 3, 9, change, 2, 0, 0])
    yield b"\3" + MAGIC + b"{}\n"


def check(data: bytes) -> None:
    choices = Choices(data)
    kind = choices.byte() % 4
    with folder() as place:
        file = place / "talk.session"
        file.write_bytes(choices.rest() if kind == 3 else _session(choices, right_digest=kind != 2))
        _use(file)


def _session(choices: Choices, *, right_digest: bool) -> bytes:
    header, payload = dict(saved()[0]), bytearray(saved()[1])
    line = None
    while change := choices.byte() % 8:
        if change == 1:
            header[choices.pick(FIELDS)] = choices.pick(VALUES)
        elif change == 2:
            header.pop(choices.pick(FIELDS), None)
        elif change == 3:
            header["note"] = choices.pick(NOTES)
        elif change == 4:  # the tokens
            at = choices.below(20)
            payload[at : at + 4] = (choices.pick(NUMBERS) % 2**32).to_bytes(4, "little")
        elif change == 5:  # keys and values: numbers that are none
            at = choices.below(len(payload))
            payload[at : at + 64] = bytes([choices.byte()]) * 64
        elif change == 6:
            at = choices.below(len(payload))
            payload[at:] = b"" if choices.byte() % 2 else payload[at:] + choices.take()
        else:
            line = choices.take() * (1 + choices.byte() * choices.byte())
    if right_digest and "digest" in header:
        header["digest"] = hashlib.blake2b(payload).hexdigest()
    return MAGIC + (json.dumps(header).encode() if line is None else line) + b"\n" + payload


def _use(file: Path) -> None:
    before = model().engine.budget.used
    talk = Conversation(model())
    try:
        talk.load(file)
        "".join(talk.say("and?", max_tokens=2, temperature=0))
    finally:
        talk.close()
        if model().engine.budget.used > before:
            raise AssertionError("memory is still charged")
