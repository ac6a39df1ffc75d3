"""Larger than memory, end to end: the same bits at every budget, and every byte read as often as it must be."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from attrs import evolve
from engines import REGISTRY, Engines, answer, map_all_weights, settled, weight_bytes
from synthetic import SMALL, TINY, write_model

from ramforge_core.allotment import allot
from ramforge_core.datasource import DataSource
from ramforge_core.engine import trial_workspace
from ramforge_core.errors import BudgetTooSmallError
from ramforge_core.gguf import open_gguf
from ramforge_core.model import read_model

PROMPT = [1, 300, 77, 5, 260, 9, 411, 300, 12, 500, 3]


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
        "llama": write_model(folder / "llama.gguf"),
        "qwen2": write_model(
            folder / "qwen2.gguf", evolve(TINY, tied=True, quant="q8_0", rich="q8_0"), "qwen2"
        ),
        "f16": write_model(folder / "f16.gguf", evolve(TINY, layers=2, quant="f16", rich="f16")),
        "split": write_model(folder / "split.gguf", evolve(TINY, layers=3), shards=3, seed=2),
        "one layer": write_model(folder / "one.gguf", evolve(TINY, layers=1, vocab=515)),
        "small": write_model(folder / "small.gguf", SMALL),
    }


@pytest.mark.parametrize("name", ["llama", "qwen2", "f16", "split"])
def test_logits_and_tokens_are_the_same_bits_at_every_budget(engines, models, name):
    """From the smallest possible budget to unlimited, with 1 and 2 threads, direct and buffered reads (J09: split)."""
    path = models[name]
    ids, logits = answer(engines(path), PROMPT)
    least, whole = engines.minimum(path, threads=2), weight_bytes(engines.opened[0].model)
    kinds = set()
    for i, share in enumerate((0, 0.05, 0.3, 0.6, 0.9, 1.0, 1.2, 6)):
        engine = engines(path, least + int(share * whole), threads=1 + i % 2)
        kinds.add(len(engine.allotment.residency.reads) > 0)
        got_ids, got = answer(engine, PROMPT)
        assert got_ids == ids
        assert np.array_equal(got, logits), f"{share} of the weights"
        engine.close()
    assert kinds == {True, False}


@pytest.mark.parametrize("mapped", [True, False])
def test_a_model_that_fits_has_the_same_bits_mapped_and_copied(engines, tmp_path, monkeypatch, mapped):
    """Copied where a system maps no files, and where kernels could not read tensors where they lie."""
    sizes = evolve(
        TINY, layers=1, vocab=515
    )  # rows of the head, 515 of them, end between two multiples of 32
    expected = answer(engines(write_model(tmp_path / "aligned.gguf", sizes)), PROMPT)
    map_all_weights(monkeypatch)
    if not mapped:
        monkeypatch.setattr(DataSource, "map", lambda *_: None)
    for alignment in (1, 8, 64, 4096):
        engine = engines(write_model(tmp_path / f"{alignment}.gguf", sizes, alignment=alignment))
        offsets = [piece.offset for piece in engine.allotment.residency.pinned]
        assert all(offset % 32 == 0 for offset in offsets) == (alignment >= 32)
        assert all(weight.ctypes.data % 32 == 0 for weight in engine.pinned.values())
        ids, logits = answer(engine, PROMPT)
        assert ids == expected[0]
        assert np.array_equal(logits, expected[1])
        engine.close()


@pytest.mark.parametrize("huge", [0.0, 0.5, 1.0])
def test_a_small_model_is_mapped_where_the_page_cache_has_huge_pages(engines, models, monkeypatch, huge):
    path, source = models["llama"], {}
    expected = answer(engines(path), PROMPT)
    fetch = DataSource.fetch

    def fetching(self, extent, offset, nbytes):
        source["bytes"] = source.get("bytes", 0) + nbytes
        fetch(self, extent, offset, nbytes)

    monkeypatch.setattr("ramforge_core.weights.MAP_HUGE_FROM", 0)
    monkeypatch.setattr(DataSource, "fetch", fetching)
    monkeypatch.setattr("ramforge_core.weights.huge_file_bytes", lambda: huge * source.get("bytes", 0))
    engine = engines(path)
    assert engine.source.mapped == (huge == 1)
    assert np.array_equal(answer(engine, PROMPT)[1], expected[1])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("direct", [True, False])
def test_all_logits_are_the_same_bits_direct_and_buffered(engines, models, direct, threads):
    path = models["llama"]
    expected = engines(path).all_logits(PROMPT)
    engines.source.buffered = not direct
    engine = engines.streaming(path, 0.3, threads=threads)
    assert np.array_equal(engine.all_logits(PROMPT), expected)
    assert engine.streamed.source.is_direct <= direct


@pytest.mark.parametrize("kv_type", ["f32", "q8_0"])
def test_kv_types_stream_alike(engines, models, kv_type):
    ids, logits = answer(engines(models["llama"], kv_type=kv_type), PROMPT)
    got_ids, got = answer(engines.streaming(models["llama"], kv_type=kv_type), PROMPT)
    assert got_ids == ids
    assert np.array_equal(got, logits)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_the_numpy_backend_streams_alike(engines, models, name):
    path = models[name]
    ids, logits = answer(engines(path, backend="numpy"), PROMPT[:4], 2)
    least = engines.minimum(path, backend="numpy")
    for more in (0, weight_bytes(engines.opened[0].model) // 2):
        engine = engines(path, least + more, backend="numpy")
        assert engine.allotment.residency.reads
        got_ids, got = answer(engine, PROMPT[:4], 2)
        assert got_ids == ids
        assert np.array_equal(got, logits)


def test_j10_f11_buffered_where_direct_reads_are_refused(engines, models, shm):
    """In memory-backed file systems, which refuse or only pretend direct reads."""
    path = write_model(shm / "llama.gguf")
    ids, logits = answer(engines(models["llama"]), PROMPT)
    got_ids, got = answer(engines.streaming(path), PROMPT)
    assert got_ids == ids
    assert np.array_equal(got, logits)


@pytest.fixture
def shm():
    import shutil
    import tempfile
    from pathlib import Path

    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="ramforge-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "granite", "olmo2", "phi3", "qwen3", "smollm3"])
def test_every_family_streams_alike(engines, shared, name):
    path = shared / "fixtures" / name / "model.gguf"
    ids, logits = answer(engines(path), PROMPT)
    got_ids, got = answer(engines.streaming(path, 0.3), PROMPT)
    assert got_ids == ids
    np.testing.assert_array_equal(got, logits)


def test_j09_all_shards_are_streamed_without_merging(engines, models):
    engine = engines.streaming(models["split"], 0)
    assert {r.file for r in engine.allotment.residency.reads} == {0, 1, 2}
    answer(engine, PROMPT, 1)
    assert {file for file, _, _ in engines.source.last.log} == {0, 1, 2}


# ---------------------------------------------------------------------------------------------------------- budgets


def test_e02_the_named_minimum_works_and_one_byte_less_does_not(engines, models):
    for name in ("llama", "qwen2", "f16", "small"):
        for context in (None, 300, 2000):
            least = engines.minimum(models[name], context=context)
            with pytest.raises(BudgetTooSmallError) as refused:
                engines(models[name], least - 1, context=context)
            assert refused.value.minimum == least
            engine = engines(models[name], least, context=context)
            assert engine.context == (context or 256)
            engine.close()


def test_every_budget_from_the_minimum_on_works(engines, models):
    """No gap above the minimum, and all that is allotted fits."""
    model = read_model(open_gguf(models["llama"]), REGISTRY)
    for backend in ("cpu", "numpy"):
        workspace = trial_workspace(model, REGISTRY.backend(backend), context=None, kv_type="f16", threads=2)
        least = engines.minimum(models["llama"], backend=backend, threads=2)
        for ram in range(least, least + 12_000_000, 61_111):
            found = allot(model, ram, workspace)
            assert found is not None, ram - least
            assert found.total_bytes <= ram


def test_all_but_the_embedding_fits(engines, tmp_path):
    """Nothing is scanned then, and rows are still read one by one."""
    path = write_model(tmp_path / "m.gguf", evolve(TINY, vocab=30011))
    ids, logits = answer(engines(path), PROMPT)
    least, model = engines.minimum(path), engines.opened[0].model
    workspace = trial_workspace(model, REGISTRY.backend("cpu"), context=None, kv_type="f16", threads=1)
    budgets = range(least, least + 3 * weight_bytes(model), 50_000)
    plans = ((ram, allot(model, ram, workspace).residency) for ram in budgets)
    engine = engines(path, next(ram for ram, plan in plans if plan.embedding and not plan.reads))
    got_ids, got = answer(engine, PROMPT)
    assert got_ids == ids
    assert np.array_equal(got, logits)
    assert engine.reads.reads == 0
    assert engine.reads.row_reads == len(set(PROMPT)) + 3


MINIMUM = """
import sys
import ramforge_core
from ramforge_core.errors import BudgetTooSmallError
from ramforge_core.system import process_memory
try:
    with ramforge_core.open(sys.argv[1], ram=sys.argv[2]) as m:
        ids = m.tokenize("w300 w301 hello", add_special=True)
        g = m.generate("w300 w301 hello", max_tokens=3, temperature=0)
        g.text()
        print("peak", process_memory().peak_rss, m.engine.budget.limit, len(m.engine.allotment.residency.reads), *g.ids)
except BudgetTooSmallError as error:
    print("minimum", error.minimum, str(error).replace("\\n", " "))
"""


def in_process(*arguments: str) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", MINIMUM, *arguments], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


@pytest.fixture(scope="module")
def plenty(models):
    """The ids that the small model gives in a process with plenty of memory."""
    return in_process(str(models["small"]), "1G")[4:]


@pytest.mark.parametrize("ram", ["1M", "42M"])
def test_e02_e17_the_refusal_names_a_minimum_that_works_in_a_new_process(models, plenty, ram):
    """Below what Python itself takes, and below what the model needs beside it."""
    word, minimum, *sentence = in_process(str(models["small"]), ram)
    assert word == "minimum"
    named = sentence[sentence.index("--ram") + 1]
    assert int(named.removesuffix("M")) << 20 >= int(minimum)
    word, peak, limit, reads, *ids = in_process(str(models["small"]), named)
    assert word == "peak"
    assert int(peak) <= int(limit)
    assert int(reads) > 0
    assert ids == plenty


# ------------------------------------------------------------------------------------------------------------ bytes


def test_f07_f08_a_long_prompt_reads_each_streamed_weight_once_per_chunk(engines, models):
    engine = engines.streaming(models["small"], 0.3, context=600)
    plan, chunk = engine.allotment.residency, engine.allotment.max_tokens
    prompt = [1 + i * 37 % 4000 for i in range(512)]
    assert 16 <= chunk < 512, "several chunks, and no small ones"
    engines.source.last.log.clear()
    answer(engine, prompt, 1)
    settled(engine)
    windows = {(r.file, r.offset, r.nbytes) for r in plan.reads}
    counts = Counter(entry for entry in engines.source.last.log if entry in windows)
    passes = -(-len(prompt) // chunk)
    ahead = {(r.file, r.offset, r.nbytes) for r in plan.reads[: engine.allotment.slots]}
    for window in windows:
        assert counts[window] == passes + (window in ahead)


@pytest.mark.parametrize("length", [280])
def test_f08_a_long_prompt_at_the_smallest_budget_ends_the_same(engines, models, length):
    prompt, path = [3 + i * 31 % 500 for i in range(length)], models["one layer"]
    ids, logits = answer(engines(path, context=600), prompt, 2)
    got_ids, got = answer(engines(path, engines.minimum(path, context=600), context=600), prompt, 2)
    assert got_ids == ids
    assert np.array_equal(got, logits)


def test_f09_nothing_is_read_after_the_load_when_all_fits(engines, models):
    engine = engines(models["llama"])
    assert engine.streamed is None
    assert sum(n for _, _, n in engines.source.last.log) == weight_bytes(engine.model)
    engines.source.last.log.clear()
    answer(engine, PROMPT, 5)
    assert engines.source.last.log == []
    assert engine.reads.reads == engine.reads.row_reads == 0


@pytest.mark.parametrize(("name", "share"), [("llama", 0), ("qwen2", 0.4), ("small", 0.5), ("split", 0.2)])
def test_e01_bytes_read_per_token_are_those_of_the_residency(engines, models, name, share):
    engine = engines.streaming(models[name], share)
    plan, n = engine.allotment.residency, 6
    answer(engine, PROMPT[:3], 1)
    settled(engine)
    before = engine.reads
    cache = engine.cache()
    for i in range(n):
        engine.run([5 + i], i, cache, [True])
    settled(engine)
    took = engine.reads.since(before)
    assert took.reads == n * len(plan.reads)
    assert took.read_bytes == n * plan.read_bytes
    assert took.row_reads == n
    assert plan.streamed_bytes <= plan.read_bytes
    whole = weight_bytes(engine.model)
    assert plan.read_bytes + plan.pinned_bytes < 1.1 * whole + 4096 * 2 * len(plan.reads)


def test_e01_f05_with_room_reads_are_long(engines, models):
    """At the sizes that matter: 256 KiB and more, little read for nothing."""
    model = read_model(open_gguf(models["small"]), REGISTRY)
    workspace = trial_workspace(model, REGISTRY.backend("cpu"), context=256, kv_type="f16", threads=1)
    plan = allot(model, 24 << 20, workspace, context=256).residency
    longest = max(r.nbytes for r in plan.reads)
    assert longest >= 256 << 10
    assert plan.read_bytes / len(plan.reads) >= longest / 2
    assert plan.read_bytes <= 1.05 * plan.streamed_bytes


# ---------------------------------------------------------------------------------------------------------- overlap


class SlowProgram:
    """A program whose every run of steps that has a streamed weight takes ``pause`` seconds longer."""

    def __init__(self, program, pause):
        self.program, self.pause, self.spent = program, pause, 0.0
        self.steps = program.steps

    def bind(self, weights):
        self.program.bind(weights)

    def run(self, *arguments):
        began = time.perf_counter()
        time.sleep(self.pause)
        self.program.run(*arguments)
        self.spent += time.perf_counter() - began


def test_j02_j03_a_pass_overlaps_reading_and_computing(engines, models):
    """A disk that takes as long as the computing: one after the other would be twice as long."""
    import threading

    engine = engines.streaming(models["small"], 0.3)
    streamed, disk, spent = engine.streamed, threading.Lock(), [0.0]
    n = len(streamed.residency.reads)
    assert n >= 15

    def slow(read):
        with disk:
            began = time.perf_counter()
            time.sleep(0.006)
            spent[0] += time.perf_counter() - began

    program = streamed.program = SlowProgram(streamed.program, 0.006)
    engines.source.before_window = staticmethod(slow)
    cache = engine.cache()
    engine.run([5], 0, cache, [True])
    ratios = []
    while len(ratios) < 4 and min(ratios, default=9) > 1.2:
        program.spent = spent[0] = 0.0
        began = time.perf_counter()
        for i in range(3):
            engine.run([6], 1 + i, cache, [True])
        ratios.append((time.perf_counter() - began) / max(program.spent, spent[0]))
    engines.source.before_window = None
    assert min(ratios) <= 1.2, ratios


def test_j04_the_pinned_part_is_fixed_and_never_read_again(engines, models):
    engine = engines.streaming(models["small"], 0.5)
    pinned = [(p.file, p.offset, p.offset + p.nbytes) for p in engine.allotment.residency.pinned]
    streamed = sum(p.nbytes for p in engine.allotment.residency.streamed)
    assert sum(end - start for _, start, end in pinned) > 0.3 * streamed
    engines.source.last.log.clear()
    answer(engine, PROMPT[:2], 2)
    settled(engine)
    read = sum(
        max(0, min(offset + n, end) - max(offset, start))
        for file, offset, n in engines.source.last.log
        for f, start, end in pinned
        if f == file
    )
    assert read <= 0.05 * streamed, "no more than what rounding to pages brings along"


def test_e08_the_default_context_is_modest(engines, tmp_path):
    path = write_model(tmp_path / "long.gguf", evolve(TINY, layers=1, context=1 << 20))
    engine = engines(path)
    assert engine.context == 4096
    assert engine.allotment.kv_bytes == 4096 * engine.allotment.kv_layout.bytes_per_token


def test_e12_weights_stay_quantized(engines, models):
    engine = engines(models["small"])
    whole = weight_bytes(engine.model)
    assert engine.allotment.pinned_bytes <= whole + 64 * len(engine.model.weights)
    assert sum(w.nbytes for w in engine.program._bound.values()) <= 1.01 * whole
