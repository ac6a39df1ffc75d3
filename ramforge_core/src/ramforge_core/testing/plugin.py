"""The pytest plugin: makes failed asserts of the conformance suites show their values. Nothing else."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"ramforge_core.testing.{suite}" for suite in ("architecture", "backend", "quant", "tokenizer"))
)
