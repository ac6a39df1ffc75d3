"""Mixtures of experts larger than memory: the same bits, the dense part read once, experts when they are chosen."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from attrs import evolve
from engines import REGISTRY, Engines, answer, weight_bytes
from synthetic import TINY, write_model

from ramforge_core.allotment import allot
from ramforge_core.calibration import Calibration, ComputeRate, DiskRate
from ramforge_core.engine import trial_workspace
from ramforge_core.errors import BudgetTooSmallError, GGUFError, Interrupted
from ramforge_core.gguf import open_gguf
from ramforge_core.model import read_model
from ramforge_core.planning import plan_of

PROMPT = [1, 300, 77, 5, 260, 9, 411, 300, 12, 500, 3]
FEW = evolve(TINY, experts=8, feed_forward=512)
MANY = evolve(TINY, layers=3, experts=64, chosen=8, feed_forward=256)


@pytest.fixture
def engines(monkeypatch):
    opened = Engines(monkeypatch)
    yield opened
    for engine in opened.opened:
        engine.close()
        assert engine.budget.used == 0


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "few": write_model(folder / "few.gguf", FEW),
        "many": write_model(folder / "many.gguf", MANY),
        "split": write_model(folder / "split.gguf", evolve(FEW, layers=2), shards=3),
    }


def with_experts(engines, path, share, **options):
    """An engine that has its dense part in memory, and slots for about ``share`` of the experts."""
    model = read_model(open_gguf(path), REGISTRY)
    workspace = trial_workspace(model, REGISTRY.backend("cpu"), context=None, kv_type="f16", threads=1)
    for ram in range(engines.minimum(path), 4 * weight_bytes(model), 100_000):
        found = allot(model, ram, workspace)
        shares = found.residency.experts
        if shares is None or (not found.residency.reads and shares.nbytes >= share * shares.expert_bytes):
            engine = engines(path, ram, **options)
            assert engine.allotment.residency.experts
            return engine
    raise AssertionError


def many_passes(engine):
    """So that some expert is missing."""
    cache = engine.cache()
    try:
        for first in range(5, 40):
            engine.run([first], 0, cache, [True])
    finally:
        cache.truncate(0)


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
@pytest.mark.parametrize("name", ["few", "many", "split"])
def test_logits_and_tokens_are_the_same_bits_at_every_budget(engines, models, name, backend):
    path = models[name]
    ids, logits = answer(engines(path, backend=backend), PROMPT)
    least, whole = engines.minimum(path, backend=backend, threads=2), weight_bytes(engines.opened[0].model)
    kinds = set()
    for i, share in enumerate((0, 0.1, 0.3, 0.5, 0.8, 6)):
        engine = engines(path, least + int(share * whole), backend=backend, threads=1 + i % 2)
        parts = engine.allotment.residency
        kinds.add((len(parts.reads) > 0, parts.experts is not None))
        got_ids, got = answer(engine, PROMPT)
        assert got_ids == ids
        assert np.array_equal(got, logits), f"{share} of the weights"
        engine.close()
    assert kinds == {(True, True), (False, True), (False, False)}


def test_e02_the_named_minimum_works_and_one_byte_less_does_not(engines, models):
    least = engines.minimum(models["many"])
    with pytest.raises(BudgetTooSmallError):
        engines(models["many"], least - 1)
    engine = engines(models["many"], least)
    assert engine.allotment.total_bytes <= least
    assert answer(engine, PROMPT)[0] == answer(engines(models["many"]), PROMPT)[0]


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_j01_a_token_reads_the_experts_that_are_missing_and_nothing_else(engines, models, share):
    engine = with_experts(engines, models["many"], share)
    shares, source = engine.allotment.residency.experts, engines.source.last
    assert max(a.kept for a in shares.layers) - min(a.kept for a in shares.layers) <= 1
    assert engine.allotment.expert_bytes == shares.nbytes <= 1.3 * share * shares.expert_bytes
    dense = sum(p.nbytes for p in engine.allotment.residency.pinned)
    assert sum(n for _, _, n in source.log) <= 1.1 * dense, "the load reads the dense part once"
    answer(engine, PROMPT, 1)
    source.log.clear()
    before, cache, n = engine.reads, engine.cache(), 12
    for i in range(n):
        engine.run([5 + i], i, cache, [True])
    took = engine.reads.since(before)
    layers = len(shares.layers)
    assert took.expert_hits + took.expert_misses == n * layers * MANY.chosen
    assert took.reads == 3 * took.expert_misses
    payload = took.expert_misses * shares.layers[0].expert_bytes
    assert took.read_bytes - took.gap_bytes == payload
    assert sum(nbytes for _, _, nbytes in source.log) == took.read_bytes + took.row_bytes
    windows = Counter(source.log)
    assert len(windows) > layers
    extents = [x for a in shares.layers for x in a.extents]
    rows = engine.model.gguf.tensors["token_embd.weight"]
    for _, offset, nbytes in windows:
        inside = any(x.offset - 4096 < offset < x.offset + MANY.experts * x.nbytes for x in extents)
        assert inside or rows.offset - 4096 < offset + nbytes <= rows.end + 8192


def test_f07_a_chunk_of_a_prompt_reads_each_expert_at_most_once(engines, models):
    engine = with_experts(engines, models["many"], 0.2, context=600)
    chunk = engine.allotment.max_tokens
    assert chunk >= 64, "so that every expert is chosen by some token"
    prompt = [1 + i * 37 % 500 for i in range(2 * chunk)]
    engines.source.last.log.clear()
    got = engine.prefill(prompt, engine.cache()).copy()
    experts = [entry for entry in engines.source.last.log if entry[2] > 8192]  # the others are rows
    assert max(Counter(experts).values()) <= 2
    assert engine.reads.expert_misses > MANY.experts
    assert np.array_equal(
        got, engines(models["many"], context=600).prefill(prompt, engines.opened[-1].cache())
    )


def test_f01_a_read_that_fails_ends_the_pass_and_the_next_one_is_right(engines, models):
    engine = with_experts(engines, models["few"], 0.2)
    ids, logits = answer(engine, PROMPT)

    def fail(read):
        if read.nbytes > 40_000:
            raise GGUFError("the disk is gone")

    engines.source.before_window = staticmethod(fail)
    with pytest.raises(GGUFError, match="the disk is gone"):
        many_passes(engine)
    engines.source.before_window = None
    got_ids, got = answer(engine, PROMPT)
    assert got_ids == ids
    assert np.array_equal(got, logits)


def test_a_pass_that_waits_for_experts_can_be_stopped(engines, models):
    import threading

    engine = with_experts(engines, models["few"], 0.2)
    ids, _ = answer(engine, PROMPT)
    asked, go_on = threading.Event(), threading.Event()

    def hang(read):
        asked.set()
        go_on.wait(20)

    engines.source.before_window = staticmethod(hang)
    stopper = threading.Thread(target=lambda: (asked.wait(20), engine.interrupt()))
    stopper.start()
    try:
        with pytest.raises(Interrupted):
            many_passes(engine)
    finally:
        go_on.set()
        stopper.join()
    engines.source.before_window = None
    assert answer(engine, PROMPT)[0] == ids


DATE = "2026-01-01T00:00:00+00:00"
RATES = Calibration(
    DiskRate(100e6, 1e-4, "direct", 64 << 20, DATE), ComputeRate(0.01, 127, 1e-6, 0.1, 64, 1e-4, DATE)
)


def plan_for(engine, path, ram):
    workspace = trial_workspace(engine.model, REGISTRY.backend("cpu"), context=None, kv_type="f16", threads=1)
    return plan_of(
        engine.model,
        engine.allotment,
        lambda context: workspace,
        RATES,
        ram_bytes=ram,
        process_bytes=0,
        context=None,
        kv_type="f16",
        facts={},
    )


def test_the_plan_says_what_a_token_reads_if_the_router_has_no_favourites(engines, models):
    engine = with_experts(engines, models["many"], 0.4)
    plan = plan_for(engine, models["many"], engine.budget.limit)
    shares = engine.allotment.residency.experts
    missing = sum(8 * (1 - layer.kept / 64) for layer in shares.layers)
    assert plan.to_dict()["experts"]["missing_per_token"] == pytest.approx(missing)
    assert plan.read_bytes_per_token == pytest.approx(missing * shares.layers[0].expert_bytes, rel=0.2)
    reading = missing * shares.layers[0].expert_bytes / 100e6
    assert plan.decode.pass_s == pytest.approx(reading + 0.01, rel=0.1), "nothing is computed beside it"
    assert plan.prefill.pass_s < plan.prefill.disk_s + plan.prefill.compute_s
    assert "if the router has no favourites" in plan.render()
    assert "fewer than a token uses" not in plan.render()


def test_the_plan_warns_where_a_layer_keeps_less_than_a_token_uses(engines, models):
    engine = with_experts(engines, models["many"], 0.08)
    plan = plan_for(engine, models["many"], engine.budget.limit)
    kept = plan.to_dict()["experts"]["kept_by_layer"]
    assert min(kept) < 8
    text = plan.render()
    assert "fewer than a token uses" in text
    assert plan.sweep()[-1].read_bytes_per_token == 0
