"""Kernels on AArch64: see ``cross``, which does the same for every format."""

from __future__ import annotations

import pytest
from cross import check, missing

FORMATS = ("q4_k", "q8_0", "iq4_nl", "nvfp4", "f16")  # one for each way to multiply, and tables


def test_kernels_on_aarch64_give_the_same_bits(tmp_path):
    if reason := missing():
        pytest.skip(reason)
    done = check(tmp_path, FORMATS)
    assert all(name in done[-1] for name in FORMATS)
