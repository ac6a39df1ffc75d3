"""Logits of tiny models against transformers, on both backends, for every file type that can run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ramforge_core

PLAIN = (
    "deepseek2",
    "gemma2",
    "gemma3",
    "granite",
    "llama-rope-linear",
    "llama-rope-llama3",
    "llama-rope-yarn",
    "llama-tied-headdim",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2moe",
    "qwen3",
    "smollm3",
    "qwen3moe",
)
QUANTIZED = ("llama-gqa", "qwen2")
MXFP4 = ("gpt-oss", "gpt-oss-yarn")
"""Their experts are of this type in model.gguf."""
TYPES = ("BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K")
TYPES += ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS")
FILES = [(name, "") for name in PLAIN + QUANTIZED] + [(name, "-" + t) for name in QUANTIZED for t in TYPES]
FILES += [("mixtral", "-Q4_K_M"), *((name, "") for name in MXFP4)]


@pytest.fixture(params=FILES, ids=lambda f: f[0] + f[1])
def fixture_file(request, shared):
    name, suffix = request.param
    folder = shared / "fixtures" / name
    facts = json.loads((folder / "meta.json").read_text())["files"][f"model{suffix}.gguf"]
    return folder / f"model{suffix}.gguf", np.load(folder / f"golden{suffix}.npz"), facts["tolerance"]


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_logits(fixture_file, backend):
    path, golden, tolerance = fixture_file
    # BF16 is multiplied with activations that are rounded to BF16
    rounded = any(x in path.name for x in ("-Q", "-IQ", "-BF16")) or path.parent.name in MXFP4
    # gpt-oss-yarn: as llama.cpp has it, the ramp of yarn begins and ends at whole dimensions
    kind = "_truncated" if "logits_truncated" in golden else ""
    expected, greedy = golden["logits" + kind], golden["greedy" + kind]
    ids = [*golden["ids"].tolist(), *greedy[:-1].tolist()]
    with ramforge_core.open(path, backend=backend, kv_type="f32") as m:
        logits = m.logits(ids)
    error = np.abs(logits[: len(golden["ids"])] - expected)
    exact = backend == "numpy" or not rounded
    allowed = tolerance["exact_max_abs" if exact else "fast_max_abs"]
    assert error.max() <= allowed
    if not exact:
        assert np.sqrt(np.mean(np.square(error, dtype=np.float64))) <= tolerance["fast_rms"]

    # Fed the golden continuation, the same token wins wherever its lead is beyond what the error could turn.
    steps = logits[len(golden["ids"]) - 1 :]
    judged = golden["greedy_gap"] > 2 * error.max()
    assert judged.any()
    assert np.array_equal(steps.argmax(axis=1)[judged], greedy[judged])


@pytest.mark.parametrize("name", PLAIN + QUANTIZED + MXFP4)
def test_prompt_text_gives_the_golden_ids(shared, name):
    folder = shared / "fixtures" / name
    meta, golden = json.loads((folder / "meta.json").read_text()), np.load(folder / "golden.npz")
    tokenizer = ramforge_core.open_tokenizer(folder / "model.gguf")
    assert tokenizer.encode(meta["prompt_text"], add_special=True) == golden["ids"].tolist()
    for row in meta["tokenize"]:
        assert tokenizer.encode(row["text"], add_special=True) == row["ids"], row["text"]
