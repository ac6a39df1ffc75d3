"""What goes wrong while a model is larger than memory: disk errors, changed files, full budgets, Ctrl-C."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from engines import Engines, answer, map_all_weights, settled
from synthetic import SMALL, TINY, write_model

import ramforge_core
from ramforge_core.budget import MemoryBudget
from ramforge_core.errors import (
    BudgetExceededError,
    BudgetTooSmallError,
    GGUFError,
    Interrupted,
    OutOfMemoryError,
)
from ramforge_core.memory import PAGE
from ramforge_core.system import process_memory
from ramforge_core.weights import load_pinned

PROMPT = [1, 300, 77, 5, 260]


@pytest.fixture
def engines(monkeypatch):
    opened = Engines(monkeypatch)
    yield opened
    for engine in opened.opened:
        engine.close()
        assert engine.budget.used == 0


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "m.gguf", evolve(TINY, layers=2))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "small.gguf", SMALL, eos=0)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ----------------------------------------------------------------------------------------------------- while running


def failing(kind: str):
    def fail(_read):
        if kind == "EIO":
            raise GGUFError("m.gguf: cannot read 4096 bytes at byte 0: Input/output error")
        raise GGUFError("m.gguf: ends at byte 4096, but 8192 bytes were expected from byte 0")

    return staticmethod(fail)


@pytest.mark.parametrize("kind", ["EIO", "short"])
def test_an_error_while_running_is_raised_and_the_engine_goes_on(engines, model, kind):
    engine = engines.streaming(model, 0.3)
    expected = answer(engine, PROMPT)
    settled(engine)
    used = engine.budget.used
    engines.source.before_window = failing(kind)
    for _ in range(2):
        with pytest.raises(GGUFError, match=r"m\.gguf"):
            answer(engine, PROMPT)
        assert engine.budget.used == used, "the KV cache was given back"
    engines.source.before_window = None
    ids, logits = answer(engine, PROMPT)
    assert ids == expected[0]
    assert np.array_equal(logits, expected[1])


@pytest.mark.parametrize(("share", "mapped"), [(0.3, False), (20, False), (20, True)])
def test_an_error_while_loading_leaves_nothing_behind(engines, model, monkeypatch, share, mapped):
    if mapped:
        map_all_weights(monkeypatch)
    least = engines.minimum(model)
    files, threads, budgets = open_files(), threading.active_count(), []

    class Budget(MemoryBudget):
        def __init__(self, limit):
            super().__init__(limit)
            budgets.append(self)

    monkeypatch.setattr("engines.MemoryBudget", Budget)
    real, count = os.preadv, iter(range(10**6))

    def eio(*arguments):
        if next(count) >= 3:
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments)

    class Failing(mmap.mmap):
        def madvise(self, advice, *extent):
            if extent and next(count) >= 3:
                raise OSError(errno.EFAULT, "Bad address")
            super().madvise(advice, *extent)

    monkeypatch.setattr(os, "preadv", eio)
    monkeypatch.setattr(mmap, "mmap", Failing)
    with pytest.raises(GGUFError, match="Input/output error"):
        engines(model, least + int(share * 1_000_000))
    assert budgets[0].used == 0
    assert budgets[0].peak > 0
    assert (open_files(), threading.active_count()) == (files, threads)


@pytest.mark.parametrize("share", [0.3, 20])
def test_e17_memory_that_the_system_refuses_is_said_and_leaves_nothing_behind(
    engines, model, monkeypatch, share
):
    least = engines.minimum(model)
    budgets = []

    def refuse(n_bytes):
        budgets.append(engines)
        raise OutOfMemoryError(f"the system refused {n_bytes} bytes of memory")

    monkeypatch.setattr("ramforge_core.weights.allocate", refuse)
    budget = MemoryBudget(least + int(share * 1_000_000))
    monkeypatch.setattr("engines.MemoryBudget", lambda _: budget)
    with pytest.raises(MemoryError, match=r"the system refused [0-9]+ bytes"):
        engines(model, 1)
    assert budgets
    assert budget.used == 0
    assert budget.peak > 0


def test_a_refused_budget_holds_nothing(engines, model, monkeypatch):
    budget = MemoryBudget(1000)
    monkeypatch.setattr("engines.MemoryBudget", lambda _: budget)
    with pytest.raises(BudgetTooSmallError):
        engines(model, 1)
    assert budget.used == budget.peak == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_shrinks_is_an_error_and_no_signal(engines, model, monkeypatch, whole):
    map_all_weights(monkeypatch)
    engine = engines(model) if whole else engines.streaming(model, 0.3)
    answer(engine, PROMPT, 1)
    os.truncate(model, model.stat().st_size // 2)
    with pytest.raises(GGUFError, match=r"m\.gguf: .*changed"):
        answer(engine, PROMPT, 1)


def test_a_file_that_shrinks_in_the_middle_of_a_pass_is_an_error(engines, model):
    engine = engines.streaming(model, 0.3)
    left = iter(range(10**6))

    def shrink(_read):
        if next(left) == len(engine.allotment.residency.reads) // 2:
            os.truncate(model, PAGE)

    engines.source.before_window = staticmethod(shrink)
    with pytest.raises(GGUFError, match=r"m\.gguf: (ends at byte 4096|the file was changed)"):
        answer(engine, PROMPT, 10)


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_is_rewritten_in_place_is_an_error(engines, model, monkeypatch, whole):
    map_all_weights(monkeypatch)
    engine = engines(model) if whole else engines.streaming(model, 0.3)
    answer(engine, PROMPT, 1)
    with model.open("r+b") as out:
        out.seek(-4096, os.SEEK_END)
        out.write(bytes(100))
    with pytest.raises(GGUFError, match=r"m\.gguf: .*changed .*open it again"):
        answer(engine, PROMPT, 1)


@pytest.mark.parametrize("share", [0.3, 20])
@pytest.mark.parametrize("when", ["after its header was read", "while its weights are read"])
def test_a_file_that_is_rewritten_before_it_is_there_is_an_error(engines, model, monkeypatch, share, when):
    least = engines.minimum(model)

    def rewrite(*arguments):
        os.utime(model, ns=(0, 0))
        return arguments

    if when == "after its header was read":
        monkeypatch.setattr("engines.MemoryBudget", lambda ram: MemoryBudget(*rewrite(ram)))
    else:
        monkeypatch.setattr("ramforge_core.engine.load_pinned", lambda *a: load_pinned(*rewrite(*a)))
    with pytest.raises(GGUFError, match=r"m\.gguf: .*changed"):
        engines(model, least + int(share * 1_000_000))


def test_a_file_that_was_copied_may_change(engines, model):
    engine = engines(model)
    ids, logits = answer(engine, PROMPT)
    os.truncate(model, 0)
    got_ids, got = answer(engine, PROMPT)
    assert got_ids == ids
    assert np.array_equal(got, logits)


@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_is_replaced_by_another_keeps_being_read(engines, model, tmp_path, whole):
    engine = engines(model) if whole else engines.streaming(model, 0.3)
    ids, logits = answer(engine, PROMPT)
    write_model(tmp_path / "other.gguf", seed=9).replace(model)
    got_ids, got = answer(engine, PROMPT)
    assert got_ids == ids
    assert np.array_equal(got, logits)
    model.unlink()
    assert answer(engine, PROMPT)[0] == ids


@pytest.mark.parametrize("share", [0.3, 20])
def test_e11_a_kv_cache_that_does_not_fit_is_refused_and_rolled_back(engines, model, share):
    """Two texts in an engine that has room for one at its full length."""
    engine = engines(model, engines.minimum(model, context=600) + int(share * 100_000), context=600)
    chunk = engine.allotment.kv_layout.chunk_bytes
    first, second = engine.cache(), engine.cache()
    engine.run([5], 0, first, [True])
    first.reserve(600)
    room = engine.budget.free // chunk
    if room:
        second.reserve(256 * room)
    used, capacity = engine.budget.used, second.capacity
    with pytest.raises(BudgetExceededError, match=r"kv cache needs .* --ram or a smaller --ctx"):
        engine.run([5], capacity + 300, second, [True])
    assert (engine.budget.used, second.capacity) == (used, capacity)
    engine.run([6], 1, first, [True])
    first.truncate(0)
    second.truncate(0)
    answer(engine, PROMPT)


def test_e10_e11_many_answers_leave_the_budget_and_the_process_as_they_were(engines, model):
    engine = engines.streaming(model, 0.3)
    answer(engine, PROMPT, 2)
    used, rss, files = engine.budget.used, process_memory().rss, open_files()
    for i in range(25):
        answer(engine, [1 + i, *PROMPT, *range(3, 3 + i % 7)], 2)
    assert (engine.budget.used, open_files()) == (used, files)
    assert process_memory().rss - rss < 2 << 20


def test_close_frees_the_memory_that_it_gives_back(engines, small):
    before = process_memory().rss
    engine = engines(small)
    answer(engine, PROMPT, 1)
    assert process_memory().rss - before > 15 << 20
    engine.close()
    assert engine.budget.used == 0
    assert process_memory().rss - before < 8 << 20
    with pytest.raises(Interrupted, match="closed"):
        engine.run([5], 0, engine.cache(), [True])


# ------------------------------------------------------------------------------------------------------------ Ctrl-C


@pytest.mark.parametrize("share", [0.1, 1000])
def test_an_interrupted_answer_leaves_an_open_model_usable(small, monkeypatch, share):
    """Ctrl-C in the prefill and in the decode of the Python API."""
    base = process_memory().rss
    with ramforge_core.open(small, ram=base + (24 << 20) + int(share * (1 << 20)), ctx=300) as m:
        prompt = " ".join(f"w{i}" for i in range(300, 330))
        expected = m.generate(prompt, max_tokens=4, temperature=0).text()
        used = m.engine.budget.used
        run = type(m.engine.program).run
        for at in (0, 1, 5):
            passes = itertools.count()

            def interrupting(*arguments, at=at, passes=passes):
                if next(passes) == at:
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                    time.sleep(0.05)
                return run(*arguments)

            monkeypatch.setattr(type(m.engine.program), "run", interrupting)
            with pytest.raises(KeyboardInterrupt):
                m.generate(prompt, max_tokens=60, temperature=0).text()
            monkeypatch.setattr(type(m.engine.program), "run", run)
            assert m.engine.budget.used == used
            assert m.generate(prompt, max_tokens=4, temperature=0).text() == expected
    assert m.engine.budget.used == 0


def test_close_from_another_thread_ends_an_answer(engines, model):
    engine = engines.streaming(model, 0.3)
    engines.source.before_window = staticmethod(lambda _: time.sleep(0.01))
    threading.Timer(0.3, engine.close).start()
    with pytest.raises(Interrupted):
        answer(engine, PROMPT, 10**6)
    engines.source.before_window = None
    engine.close()


RUN = """
import sys, time
import ramforge_core.datasource as d, ramforge_core.engine as e
phase, model, ram = sys.argv[1:]
def tell(): print("NOW", file=sys.stderr, flush=True)
slow = d.DataSource.read_window
def read_window(self, read, out):
    time.sleep(0.05)
    slow(self, read, out)
d.DataSource.read_window = read_window
if phase == "load":
    load = e.load_pinned
    def load_pinned(*a, **k):
        tell()
        return load(*a, **k)
    e.load_pinned = load_pinned
passes = iter(range(10**6))
run = e.Engine.run
def told(self, *a, **k):
    if next(passes) == {"prefill": 0, "decode": 2}.get(phase):
        tell()
    return run(self, *a, **k)
e.Engine.run = told
from ramforge_cli.main import main
prompt = "hello" if phase == "decode" else "hello " * 100
sys.exit(main(["run", model, "--ram", ram, "-p", prompt, "-n", "100", "--ctx", "1024"]))
"""


@pytest.mark.parametrize("phase", ["load", "prefill", "decode"])
def test_ctrl_c_ends_the_command_within_a_second(small, tmp_path, phase):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    env = {**os.environ, "TMPDIR": str(scratch), "HOME": str(scratch)}
    # Some of the 19 MB of weights are streamed at this budget.
    child = subprocess.Popen(
        [sys.executable, "-c", RUN, phase, str(small), "70M"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        cwd=scratch,
    )
    try:
        said = []
        for line in child.stderr:
            said.append(line)
            if "NOW" in line:
                break
        else:
            pytest.fail("".join(said))
        time.sleep(0.3)
        assert child.poll() is None, "it is busy"
        began = time.perf_counter()
        child.send_signal(signal.SIGINT)
        child.wait(30)
        took = time.perf_counter() - began
        rest = child.stderr.read()
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 130, rest
    assert took < 1
    assert "interrupted" in rest
    assert "Traceback" not in rest
    assert [str(p) for p in Path(scratch).rglob("*") if p.is_file() and "calibration" not in p.name] == []
