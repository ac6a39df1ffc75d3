"""Sessions on disk: going on gives the same answer as never having stopped; what does not fit is refused."""

from __future__ import annotations

import json

import pytest
from synthetic import TINY, write_model

import ramforge_core
from ramforge_core.errors import ContextFullError, SessionError
from ramforge_core.sessions import MAGIC, load_session, save_session, session_bytes

PROMPT, MORE = "An old man in the sea. " * 20, "And then?"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("sessions") / "tiny.gguf", TINY)


@pytest.fixture(scope="module")
def model(path):
    with ramforge_core.open(path, ctx=1024) as m:
        yield m


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """A file, its tokens, and the greedy answer to one more turn that a sequence without a break gives."""
    file = tmp_path_factory.mktemp("saved") / "talk.session"
    kept = model.sequence()
    model.generate(PROMPT, raw=True, temperature=0, max_tokens=5, kept=kept).text()
    ids = list(kept.ids)
    written = save_session(file, model, kept, {"messages": ["hi", "Grüße"]})
    assert written == file.stat().st_size
    assert 0 <= written - session_bytes(kept) < 2000
    further = model.generate(PROMPT + MORE, raw=True, temperature=0, max_tokens=8, kept=kept)
    text = further.text()
    kept.close()
    return file, ids, text


def test_j07_a_session_goes_on_where_it_was(path, saved):
    file, ids, text = saved
    with ramforge_core.open(path, ctx=1024) as again:
        kept, note = load_session(file, again)
        assert (kept.ids, note) == (ids, {"messages": ["hi", "Grüße"]})
        answer = again.generate(PROMPT + MORE, raw=True, temperature=0, max_tokens=8, kept=kept)
        assert answer.text() == text
        assert answer.stats.reused_tokens > 0
        assert answer.stats.prompt_tokens < len(MORE) + 5
        kept.close()


def test_an_empty_session(model, tmp_path):
    kept = model.sequence()
    save_session(tmp_path / "empty", model, kept)
    loaded, note = load_session(tmp_path / "empty", model)
    assert (loaded.ids, note) == ([], {})


def refused(file, model, match, error=SessionError):
    before = model.engine.budget.used
    with pytest.raises(error, match=match):
        load_session(file, model)
    assert model.engine.budget.used == before


@pytest.mark.parametrize("cut", [0, 5, len(MAGIC), len(MAGIC) + 40, -1, -5000])
def test_j07_a_file_cut_short(model, saved, tmp_path, cut):
    data = saved[0].read_bytes()
    (tmp_path / "cut").write_bytes(data[:cut])
    refused(tmp_path / "cut", model, "no session|header is damaged|cut short")


@pytest.mark.parametrize("at", [-1, -4000, "first"])
def test_a_changed_byte(model, saved, tmp_path, at):
    data = bytearray(saved[0].read_bytes())
    data[data.index(b"\n", len(MAGIC)) + 1 if at == "first" else at] ^= 1
    (tmp_path / "changed").write_bytes(data)
    refused(tmp_path / "changed", model, "damaged: its bytes")


def test_bytes_behind_the_end(model, saved, tmp_path):
    (tmp_path / "long").write_bytes(saved[0].read_bytes() + b"x")
    refused(tmp_path / "long", model, "damaged")


@pytest.mark.parametrize(
    "header", [b"[]", b"{}", b"nonsense", b'{"tokens": 3}', b"\xff\xfe", b"[" * 100000, b"1"]
)
def test_a_hostile_header(model, tmp_path, header):
    (tmp_path / "hostile").write_bytes(MAGIC + header + b"\n")
    refused(tmp_path / "hostile", model, "header is damaged")


@pytest.mark.parametrize(
    ("key", "value", "match", "error"),
    [
        ("model", "0" * 64, "another model", SessionError),
        ("backend", "numpy", "another backend", SessionError),
        ("kv_type", "q8_0", "another type of KV cache", SessionError),
        ("layers", [[1, 2, 3]], "another shape", SessionError),
        ("tokens", 10**12, "1000000000000 tokens, but the context holds 1024", ContextFullError),
        ("tokens", -1, "header is damaged", SessionError),
        ("tokens", "7", "header is damaged", SessionError),
        ("tokens", True, "header is damaged", SessionError),
        ("tokens", 1, "damaged", SessionError),
        ("note", 5, "header is damaged", SessionError),
    ],
)
def test_j07_a_foreign_session(model, saved, tmp_path, key, value, match, error):
    magic, header, payload = saved[0].read_bytes().split(b"\n", 2)
    changed = {**json.loads(header), key: value}
    (tmp_path / "foreign").write_bytes(b"\n".join([magic, json.dumps(changed).encode(), payload]))
    refused(tmp_path / "foreign", model, match, error)


def test_another_model_of_the_same_shape(saved, tmp_path):
    other = write_model(tmp_path / "other.gguf", TINY, seed=2)
    with ramforge_core.open(other, ctx=1024) as m:
        refused(saved[0], m, "another model")


def test_no_such_file(model, tmp_path):
    refused(tmp_path / "none", model, "cannot read the session: No such file")


def test_saving_is_all_or_nothing(model, saved, tmp_path, monkeypatch):
    file = tmp_path / "talk"
    file.write_bytes(b"before")
    kept, _ = load_session(saved[0], model)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_session(file, model, kept)
    kept.close()
    assert [p.name for p in tmp_path.iterdir()] == ["talk"]
    assert file.read_bytes() == b"before"
