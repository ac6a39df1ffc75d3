"""``/status``, and the rates in it."""

from __future__ import annotations

import pytest
from serving import get, post

from ramforge_serve.status import LONG_S, Recent, Sample


def test_what_does_not_change(url, service):
    status = get(f"{url}/status").json()
    model = service.model.engine.model
    assert status["model"] == "smollm2"
    assert status["architecture"] == "llama"
    assert status["parameters"] == sum(info.n_values for info in model.gguf.tensors.values())
    assert status["quantization"] == ["q4_1", "q8_0"]
    assert status["context"] == service.context
    assert status["chat"] is True
    weights = sum(weight.nbytes for weight in model.weights.values())
    assert status["weight_bytes"] == status["pinned_bytes"] + status["streamed_bytes"] == weights


def test_memory_is_the_budgets(url, service):
    memory = get(f"{url}/status").json()["memory"]
    assert memory["budget_bytes"] == service.model.engine.budget.limit
    assert sum(memory["by_tag"].values()) == memory["used_bytes"] > 0
    assert memory["resident_bytes"] > 0


def test_drawn_tokens_are_counted(url, service):
    before = service.scheduler.load.drawn
    post(f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5})
    assert service.scheduler.load.drawn == before + 5
    status = get(f"{url}/status").json()
    assert status["requests"]["active"] == 0
    assert status["pass_done"] is None
    assert status["tokens_per_s"] == 0


def sample(at, passes=0, prompt=0, drawn=0, read=0):
    return Sample(at, passes, prompt + drawn, drawn, read)


def test_rates_are_of_the_last_seconds():
    recent = Recent()
    assert recent.rates(sample(0), busy=False)["tokens_per_s"] == 0
    for second in range(1, 30):
        rates = recent.rates(sample(second, second * 10, drawn=second * 10, read=second * 7), busy=True)
        assert rates == {"tokens_per_s": 10, "prompt_tokens_per_s": 0, "read_bytes_per_s": 7}
    assert recent.rates(sample(33, 298, drawn=298, read=203), busy=True)["tokens_per_s"] == pytest.approx(2)


def test_rates_of_slow_passes_look_further_back():
    recent = Recent()
    recent.rates(sample(0), busy=False)
    for second in range(1, 40):
        rates = recent.rates(sample(second, second // 5, drawn=second // 5), busy=True)
    assert rates["tokens_per_s"] == pytest.approx(0.2, rel=0.3)


def test_a_prompt_has_a_rate_of_its_own():
    recent = Recent()
    recent.rates(sample(0), busy=False)
    rates = recent.rates(sample(2, 1, prompt=512), busy=True)
    assert (rates["tokens_per_s"], rates["prompt_tokens_per_s"]) == (0, 256)


def test_rates_without_a_past_are_unknown_and_samples_are_bounded():
    recent = Recent()
    assert recent.rates(sample(0), busy=True)["tokens_per_s"] is None
    for i in range(5_000):
        recent.rates(sample(i / 20), busy=True)
    assert len(recent.samples) <= LONG_S * 4 + 2
