"""Numbers in the metadata that would make work on a model endless are refused at once."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from synthetic import TINY, write_model

import ramforge_core
from ramforge_core.errors import MetadataError, ParameterError
from ramforge_core.gguf import open_gguf
from ramforge_core.planning import plan_model
from ramforge_core.plugins import Registry
from ramforge_core.support import model_support
from ramforge_core.testing.gguf_writer import write_gguf


@pytest.fixture
def path(tmp_path):
    keys = {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 2**31 - 1,
        "feed_forward_length": 32,
        "attention.head_count": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": 4,
    }
    metadata = {"general.architecture": "llama", **{f"llama.{k}": v for k, v in keys.items()}}
    write_gguf(
        tmp_path / "m.gguf",
        metadata,
        {"token_embd.weight": (0, (4, 32), np.zeros(128, np.float32).tobytes())},
    )
    return tmp_path / "m.gguf"


def test_a06_more_blocks_than_tensors(path):
    with pytest.raises(
        MetadataError, match=r"llama\.block_count' is 2147483647, but the file holds only 1 tensors"
    ):
        ramforge_core.open(path)
    assert any(
        "block_count" in reason for reason in model_support(open_gguf(path), Registry.discover()).reasons
    )


@pytest.mark.parametrize("context", [2**31, 2**62])
def test_a_context_that_no_counter_holds(tmp_path, context):
    """Found by fuzzing: the plan asked the backend what such a context takes, and its int32 could not hold it."""
    path = write_model(tmp_path / "m.gguf", evolve(TINY, layers=1, context=context))
    for use in (ramforge_core.open, plan_model):
        with pytest.raises(MetadataError, match=rf"context_length' is {context}, expected 1 to 2147483647"):
            use(path)


@pytest.mark.parametrize("context", [0, -4])
def test_senseless_contexts(shared, context):
    with pytest.raises(ParameterError, match=f"the context is {context} tokens"):
        ramforge_core.open(shared / "fixtures" / "mistral" / "model.gguf", ctx=context)
