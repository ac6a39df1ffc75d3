"""Gemma 3 270M Q4_K_M against llama.cpp, against its exact weights, and its tokenizer.

The model may not be passed on, so it is no dependency: these tests run if ``RAMFORGE_TEST_GEMMA3`` is set, which
fetches the file (250 MB, Gemma Terms of Use) unless it is in the cache. As for SmolLM2, the numpy backend is checked
against the exact logits that the golden set holds, and stands for the exact model at all other positions.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from goldens import golden_prompts, judge_top1, kl

import ramforge_core
from ramforge_core.gguf import open_gguf
from ramforge_core.model import read_model
from ramforge_core.plugins import Registry
from ramforge_core.pull import fetch
from ramforge_core.testing.tokenizer import golden_faults, golden_rows

pytestmark = pytest.mark.skipif(
    not os.environ.get("RAMFORGE_TEST_GEMMA3"), reason="RAMFORGE_TEST_GEMMA3 does not ask for this model"
)


@pytest.fixture(scope="module")
def golden(shared):
    return shared / "golden" / "models" / "gemma3-270m-q4_k_m"


@pytest.fixture(scope="module")
def rows(golden):
    return golden_prompts(golden)


@pytest.fixture(scope="module")
def path():
    return fetch("gemma3-270m")


@pytest.fixture(scope="module")
def cpu(path):
    with ramforge_core.open(path, backend="cpu", kv_type="f32") as m:
        yield m


def test_blocks_see_windows_as_the_header_says(path):
    windows = [op.window for op in read_model(open_gguf(path), Registry.discover()).graph.attentions]
    assert windows == ([512] * 5 + [None]) * 3


def test_top1_along_the_greedy_path_of_llama_cpp(cpu, rows):
    assert judge_top1(cpu, rows) > 400


def test_kl_over_all_prompt_positions(path, cpu, rows, golden):
    bar = json.loads((golden / "summary.json").read_text())["bar"]["kl_all_prompt_positions_mean"]
    stored = np.load(golden / "exact_logits.npz")
    ours = []
    with ramforge_core.open(path, backend="numpy", kv_type="f32") as exact:
        for row in rows:
            reference = exact.logits(row["prompt_ids"])
            assert kl(reference[-1:], stored[row["id"]][None]) < 1e-5, row["id"]
            ours.append(kl(cpu.logits(row["prompt_ids"]), reference))
    assert np.concatenate(ours).mean() <= 1.10 * bar


def test_tokenizer_vectors(path, shared):
    tokenizer = ramforge_core.open_tokenizer(path)
    vectors = golden_rows(shared / "golden" / "tokenizer" / "gemma3.jsonl.gz")
    assert len(vectors) > 400
    faults = {(row["id"], row["category"]): f for row in vectors if (f := golden_faults(tokenizer, row))}
    assert not faults


def test_prompts_are_tokenized_like_llama_cpp(cpu, rows):
    for row in rows:
        assert cpu.prompt_ids(row["text"], raw=True) == row["prompt_ids"], row["id"]
