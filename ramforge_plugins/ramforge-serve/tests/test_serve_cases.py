"""Field cases of text, templates and sampling once more, as a client meets them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from attrs import evolve
from serving import post
from test_serve_http import CHAT, asking

from ramforge_core.sampling import Sampler


def said(url, body, route=CHAT):
    """The text of an answer and the pieces it came in."""
    whole = post(url + route, body).json()["choices"][0]
    pieces = []
    with httpx.stream("POST", url + route, json={**body, "stream": True}, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line[6:])["choices"][0]
                pieces.append(choice["delta"].get("content") or "" if route == CHAT else choice["text"])
    text = whole["message"]["content"] if route == CHAT else whole["text"]
    assert "".join(pieces) == text
    return text, pieces, whole["finish_reason"]


def continued(url, prompt, **options):
    body = {"prompt": prompt, "max_tokens": 24, "temperature": 0, **options}
    return said(url, body, "/v1/completions")


def test_c01_c02_characters_of_several_tokens_come_whole(url):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": ["\U0001f999\U0001f998\u6f22"]}}}
    text, pieces, _ = said(url, asking(response_format=form, max_tokens=40))
    assert json.loads(text) == "\U0001f999\U0001f998\u6f22"
    assert not any("\ufffd" in piece for piece in pieces)
    cut, _, _ = said(url, asking(response_format=form, max_tokens=3))  # in the middle of a character
    assert cut.rstrip("\ufffd") in text


def test_c04_c06_stops_within_and_over_tokens(url):
    text, _, _ = continued(url, "One, two, three, four,")
    for at in (3, 5, 9):
        stop = text[at : at + 6]
        stopped, _, reason = continued(url, "One, two, three, four,", stop=[stop, "no such text"])
        assert (stopped, reason) == (text[: text.index(stop)], "stop")


def test_c07_c09_c10_the_end_is_not_shown(url):
    text, _, reason = said(url, asking("Say only: yes", max_tokens=400, temperature=0))
    assert reason == "stop"
    assert "<|" not in text
    same, _, _ = said(url, asking("Say only: yes", max_tokens=400, temperature=0, stop=["<|im_end|>"]))
    assert same == text


@pytest.fixture
def template(service, monkeypatch):
    """Puts another template in the place of the model's."""

    def put(source):
        made = source and evolve(service.model.template, sources={"default": source})
        monkeypatch.setattr(service.model, "template", made)

    return put


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception('no systems here') }}",
        "{% for i in range(10 ** 9) %}{% for j in range(10 ** 9) %}x{% endfor %}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ 1 / 0 }}",
        "{{ nothing.of.this }}",
        "{% if %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_d01_d03_d04_a_template_that_fails_fails_its_request_only(url, template, source):
    template(source)
    refused = post(url + CHAT, asking())
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["code"] == "template", refused.text
    assert post(f"{url}/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200


def test_d05_a_system_message_that_the_template_refuses(url, template):
    source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}"
    template(source + "{% endfor %}")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    both = post(url + CHAT, {"messages": messages, "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    alone = post(url + CHAT, {"messages": messages[1:], "max_tokens": 1}).json()["usage"]["prompt_tokens"]
    assert both > alone


def test_d11_no_template(url, template):
    template(None)
    assert "/v1/completions" in post(url + CHAT, asking()).json()["error"]["message"]
    ollama = {"model": "smollm2", "messages": asking()["messages"]}
    assert post(f"{url}/api/chat", ollama).status_code == 400
    generated = post(f"{url}/api/generate", {"model": "smollm2", "prompt": "x", "stream": False})
    assert generated.status_code == 200


def test_g01_temperatures(url):
    greedy = said(url, asking(temperature=0, seed=1))[0]
    assert said(url, asking(temperature=0, seed=2))[0] == greedy
    assert said(url, asking(temperature=1e-9, seed=3))[0] == greedy
    for wrong in ("-1", "NaN", "1e999", "3", '"hot"'):
        content = json.dumps(asking())[:-1] + f', "temperature": {wrong}}}'
        headers = {"Content-Type": "application/json"}
        refused = httpx.post(url + CHAT, content=content, headers=headers, timeout=60)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")


def test_g02_top_k(url):
    greedy = said(url, asking(temperature=0))[0]
    assert said(url, asking(temperature=1.5, top_k=1))[0] == greedy
    off = said(url, asking(temperature=1.5, top_k=0))[0]
    assert off != greedy
    assert off == said(url, asking(temperature=1.5, top_k=-1))[0]
    assert off == said(url, asking(temperature=1.5, top_k=10**9))[0]


def test_g04_g05_the_penalty_makes_repeats_rarer(url):
    def distinct(**options):
        return len(set(continued(url, "la la la la la la la la", **options)[0].split()))

    assert distinct(repeat_penalty=1.5) > distinct()


def test_g06_g07_a_seed_fixes_the_answer_whatever_is_kept(url):
    body = asking("Tell me of the sea.", temperature=1.2, seed=11)
    texts = []
    for i in range(3):
        texts.append(said(url, body)[0])
        post(url + CHAT, asking(f"Something else, number {i}."))
    assert len(set(texts)) == 1
    assert said(url, {**body, "seed": 12})[0] != texts[0]


def test_g09_logits_that_are_no_numbers_fail_their_request_only(url, monkeypatch):
    original = Sampler.__call__

    def draw(self, logits, *more):
        if self.seed == 666:
            logits = np.full_like(logits, np.nan)
        return original(self, logits, *more)

    monkeypatch.setattr(Sampler, "__call__", draw)
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda seed: post(url + CHAT, asking(seed=seed)), [1, 666, 2, 666]))
    assert [a.status_code for a in answers] == [200, 500, 200, 500]
    assert answers[1].json()["error"]["code"] == "non_finite"
    with httpx.stream("POST", url + CHAT, json=asking(seed=666, stream=True), timeout=60) as streamed:
        assert streamed.status_code == 200
        events = [line for line in streamed.iter_lines() if line.startswith("data:")]
    assert json.loads(events[-2][6:])["error"]["code"] == "non_finite"
    assert events[-1] == "data: [DONE]"
