"""OpenAI's interface, driven by its official client."""

from __future__ import annotations

import json

import openai
import pytest
from serving import post

ASKED = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client, messages=ASKED, **options):
    return client.chat.completions.create(
        model="smollm2", messages=messages, **{"max_tokens": 24, "seed": 1, **options}
    )


def test_models(client):
    assert [m.id for m in client.models.list()] == ["smollm2"]


def test_an_answer_and_its_usage(client):
    answer = chat(client, temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens <= 24


def test_h01_usage_in_a_stream(client):
    plain = list(chat(client, stream=True))
    assert all(chunk.usage is None for chunk in plain)
    assert all(chunk.choices for chunk in plain)
    *rest, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in rest)


def test_h02_finish_reasons(client, service):
    assert chat(client, max_tokens=5).choices[0].finish_reason == "length"
    assert chat(client, max_completion_tokens=5, max_tokens=9).usage.completion_tokens == 5
    ended = chat(client, [{"role": "user", "content": "Say only: yes"}], max_tokens=400, temperature=0)
    assert ended.choices[0].finish_reason == "stop"
    text = chat(client, temperature=0).choices[0].message.content
    stopped = chat(client, temperature=0, stop=text[5:9])
    assert (stopped.choices[0].finish_reason, stopped.choices[0].message.content) == (
        "stop",
        text.split(text[5:9])[0],
    )
    reasons = [chunk.choices[0].finish_reason for chunk in chat(client, max_tokens=5, stream=True)]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    long = [{"role": "user", "content": "word " * 950}]
    full = chat(client, long, max_tokens=None)
    assert full.choices[0].finish_reason in ("length", "stop")
    if full.choices[0].finish_reason == "length":
        assert full.usage.total_tokens == service.context + 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_seed_gives_the_same_text(client, stream):
    def said(**options):
        got = chat(client, stream=stream, temperature=1.2, **options)
        if not stream:
            return got.choices[0].message.content
        return "".join(chunk.choices[0].delta.content or "" for chunk in got)

    assert said(seed=7) == said(seed=7)
    assert said(seed=7) != said(seed=8)


def test_several_choices(client):
    answer = chat(client, n=3, temperature=1.2, seed=5)
    texts = [c.message.content for c in answer.choices]
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert texts[1] == chat(client, temperature=1.2, seed=6).choices[0].message.content
    indices = {c.index for chunk in chat(client, n=2, stream=True) for c in chunk.choices}
    assert indices == {0, 1}


def test_h04_content_in_parts(client):
    parts = [{"type": "text", "text": "Name three "}, {"type": "text", "text": "colours."}]
    joined = chat(client, [{"role": "user", "content": parts}], temperature=0)
    assert joined.choices[0].message.content == chat(client, temperature=0).choices[0].message.content
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(openai.BadRequestError, match="image_url") as refused:
        chat(client, [{"role": "user", "content": image}])
    assert refused.value.param == "messages.0.content"


def test_h06_logprobs_of_chats(client):
    answer = chat(client, max_tokens=4, logprobs=True, top_logprobs=3, temperature=0)
    content = answer.choices[0].logprobs.content
    assert len(content) == 4
    assert "".join(c.token for c in content) == answer.choices[0].message.content
    assert all(len(c.top_logprobs) == 3 and c.top_logprobs[0].logprob == c.logprob for c in content)
    chunks = chat(client, max_tokens=4, logprobs=True, top_logprobs=3, temperature=0, stream=True)
    streamed = [c for chunk in chunks if chunk.choices[0].logprobs for c in chunk.choices[0].logprobs.content]
    assert [c.logprob for c in streamed] == [c.logprob for c in content]
    assert chat(client, max_tokens=4).choices[0].logprobs is None


def test_h06_logprobs_of_completions(client):
    done = client.completions.create(
        model="smollm2", prompt="The sky is", max_tokens=4, logprobs=2, temperature=0
    )
    logprobs = done.choices[0].logprobs
    assert "".join(logprobs.tokens) == done.choices[0].text
    assert all(len(top) == 2 for top in logprobs.top_logprobs)
    assert logprobs.text_offset[0] == 0


def test_completions(client):
    texts = [
        c.choices[0].text
        for c in client.completions.create(
            model="smollm2", prompt="Once upon", max_tokens=8, temperature=0, stream=True
        )
    ]
    whole = client.completions.create(
        model="smollm2", prompt=["Once upon", "One and"], max_tokens=8, temperature=0
    )
    assert [c.index for c in whole.choices] == [0, 1]
    assert "".join(texts) == whole.choices[0].text


def test_tokens_as_prompt(client, url):
    ids = post(f"{url}/tokenize", {"content": "Once upon"}).json()["tokens"]
    by_ids = client.completions.create(model="smollm2", prompt=ids, max_tokens=8, temperature=0)
    by_text = client.completions.create(model="smollm2", prompt="Once upon", max_tokens=8, temperature=0)
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert post(f"{url}/detokenize", {"tokens": ids}).json() == {"content": "Once upon"}


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_json_of_a_schema(client):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    answer = chat(
        client, [{"role": "user", "content": "Invent a person."}], max_tokens=200, response_format=form
    )
    person = json.loads(answer.choices[0].message.content)
    assert person.keys() == {"name", "age"}
    assert isinstance(person["age"], int)


def test_any_json_object(client):
    pytest.importorskip("llguidance")
    asked = [{"role": "user", "content": "Describe a person as JSON."}]
    answer = chat(
        client, asked, max_tokens=600, temperature=0.7, seed=3, response_format={"type": "json_object"}
    )
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_a_schema_that_cannot_be_bound_to(client):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no such type"}}}
    with pytest.raises(openai.BadRequestError, match="schema"):
        chat(client, response_format=form)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called(client, choice, stream):
    pytest.importorskip("llguidance")
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    got = chat(client, asked, tools=TOOLS, tool_choice=choice, max_tokens=120, stream=stream)
    if stream:
        chunks = list(got)
        calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()]
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert not any(chunk.choices[0].delta.content for chunk in chunks)
    else:
        calls = got.choices[0].message.tool_calls
        assert got.choices[0].finish_reason == "tool_calls"
        assert got.choices[0].message.content is None
    assert calls[0].function.name == "get_weather"
    assert json.loads(calls[0].function.arguments).keys() == {"city"}


def test_results_of_tools_are_read(client):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    talk = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny, 21 degrees"},
    ]
    told = chat(client, talk, tools=TOOLS, temperature=0, max_tokens=40)
    without = chat(client, talk[:1], tools=TOOLS, temperature=0, max_tokens=40)
    assert told.usage.prompt_tokens > without.usage.prompt_tokens + 10


def test_a_second_turn_computes_only_the_new_tokens(client, service):
    first = chat(client, temperature=0)
    before = service.scheduler.load.tokens
    said = {"role": "assistant", "content": first.choices[0].message.content}
    second = chat(client, [*ASKED, said, {"role": "user", "content": "And another?"}], temperature=0)
    kept = second.usage.prompt_tokens_details.cached_tokens
    assert kept >= first.usage.prompt_tokens
    computed = service.scheduler.load.tokens - before
    assert computed <= second.usage.prompt_tokens - kept + second.usage.completion_tokens


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client, options, param):
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, **options)
    assert refused.value.param == param


def test_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-9", messages=ASKED)
    assert refused.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", [1023, 1100, 20000])
def test_h08_a_prompt_beyond_the_context(client, words, stream):
    with pytest.raises(openai.BadRequestError, match=r"\d+ tokens, but the context holds 1024") as refused:
        chat(client, [{"role": "user", "content": "word " * words}], stream=stream)
    assert refused.value.code == "context_length_exceeded"


def test_control_text_of_users_stays_text(client):
    """G: a user's <|im_end|> must not end the user's turn."""
    plain = chat(client, [{"role": "user", "content": "a b"}], max_tokens=1).usage.prompt_tokens
    marked = chat(client, [{"role": "user", "content": "a <|im_end|> b"}], max_tokens=1).usage.prompt_tokens
    assert marked > plain + 3
