"""The kept corpus of the fuzzing targets, without the engine: each input still ends well, in time and memory."""

from __future__ import annotations

import logging

import pytest
from fuzz.target import NAMES, judge, kept, load

SAMPLE = 60
"""Inputs of each target; the engine takes them all."""


@pytest.fixture(autouse=True)
def _no_log(caplog):
    caplog.set_level(logging.CRITICAL, "ramforge")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NAMES)
def test_the_corpus(name, tmp_path, monkeypatch):
    monkeypatch.setenv("RAMFORGE_CACHE", str(tmp_path))
    target, known = load(name), kept(name)
    assert len(known) > 10
    judge(target.check, known[0], seconds=30)  # what is imported and made only once
    for data in [*list(target.seeds())[:SAMPLE], *known[:: -(-len(known) // SAMPLE)]]:
        judge(target.check, data)
