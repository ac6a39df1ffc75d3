"""Ollama's interface, driven by its official client."""

from __future__ import annotations

import json

import ollama
import pytest

ASKED = [{"role": "user", "content": "Name three colours."}]
OPTIONS = {"temperature": 0, "num_predict": 16}


@pytest.fixture(scope="module")
def client(url):
    with ollama.Client(url, timeout=60) as client:
        yield client


def test_the_list_of_models(client):
    (model,) = client.list().models
    assert model.model == "smollm2"
    assert model.size > 50 << 20
    assert client.show("smollm2").modelinfo["general.architecture"] == "llama"
    assert len(client.ps().models) == 1


def test_chat_streamed_or_not(client):
    whole = client.chat("smollm2", ASKED, options=OPTIONS)
    assert whole.done
    assert whole.done_reason in ("stop", "length")
    assert whole.eval_count <= 16
    assert whole.prompt_eval_count > 10
    parts = list(client.chat("smollm2", ASKED, options=OPTIONS, stream=True))
    assert "".join(p.message.content for p in parts) == whole.message.content
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]


def test_generate_streamed_or_not(client):
    whole = client.generate("smollm2:latest", "Name three colours.", options=OPTIONS)
    parts = list(client.generate("smollm2", "Name three colours.", options=OPTIONS, stream=True))
    assert "".join(p.response for p in parts) == whole.response
    assert whole.response == client.chat("smollm2", ASKED, options=OPTIONS).message.content
    raw = client.generate("smollm2", "Once upon a", raw=True, options=OPTIONS)
    assert raw.response != whole.response
    french = client.generate("smollm2", "Hi", system="You speak French only.", options=OPTIONS)
    assert french.prompt_eval_count > 10


def test_json(client):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    answer = client.chat("smollm2", ASKED, format=schema, options={"temperature": 0, "num_predict": 60})
    assert json.loads(answer.message.content).keys() == {"n"}


def test_an_empty_chat_means_loading(client):
    assert client.generate("smollm2", "").done_reason == "load"


def test_faults(client):
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("no-such-model", ASKED)
    assert refused.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("smollm2", [{"role": "user", "content": "x", "images": [b"abc"]}])
    assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat("smollm2", [{"role": "user", "content": "word " * 2000}])
    assert refused.value.status_code == 400
