"""Engines for the tests of streaming: exact budgets for a process that takes nothing, sources that watch or fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import ramforge_core.engine as engine_module
from ramforge_core.budget import MemoryBudget
from ramforge_core.datasource import DataSource
from ramforge_core.engine import Engine, load_engine
from ramforge_core.errors import BudgetTooSmallError
from ramforge_core.gguf import open_gguf
from ramforge_core.model import Model, read_model
from ramforge_core.plugins import Registry
from ramforge_core.system import ProcessMemory

REGISTRY = Registry.discover()


def map_all_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have weights that fit mapped, however few they are and in whatever pages."""
    monkeypatch.setattr("ramforge_core.weights.MAP_FROM", 0)
    monkeypatch.setattr("ramforge_core.weights.MAP_HUGE_FROM", 0)


class WatchedSource(DataSource):
    """Logs every read, (file, offset, bytes); calls ``before_window`` first, which may wait or fail.

    buffered : no direct reads. last : the source made last. All of these are set on the class.
    """

    log: list[tuple[int, int, int]]
    before_window: Callable[[object], None] | None = None
    buffered = False
    last: WatchedSource | None = None
    _watch = threading.Lock()

    def __attrs_post_init__(self) -> None:
        self.log = []
        type(self).last = self
        self.direct = self.direct and not self.buffered
        super().__attrs_post_init__()

    def read_into(self, file, offset, out):
        with self._watch:
            self.log.append((file, offset, out.size))
        super().read_into(file, offset, out)

    def fetch(self, extent, offset, nbytes):
        with self._watch:
            self.log.append((extent.file, offset, nbytes))
        super().fetch(extent, offset, nbytes)

    def read_window(self, read, out):
        with self._watch:
            self.log.append((read.file, read.offset, read.nbytes))
        if type(self).before_window is not None:
            type(self).before_window(read)
        super().read_window(read, out)


class Engines:
    """Opens engines in a process that seems to take 0 bytes, so that budgets can be as small as the tests' models."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[Engine] = []
        self.source = type("Source", (WatchedSource,), {})  # its settings are this test's
        monkeypatch.setattr(engine_module, "process_memory", lambda: ProcessMemory(rss=0))
        monkeypatch.setattr(engine_module, "DataSource", self.source)

    def __call__(
        self, path: Path, ram: int | None = None, *, backend: str = "cpu", threads: int = 1, **options
    ) -> Engine:
        model = read_model(open_gguf(path), REGISTRY)
        engine = load_engine(model, REGISTRY.backend(backend), MemoryBudget(ram), threads=threads, **options)
        self.opened.append(engine)
        return engine

    def minimum(self, path: Path, *, backend: str = "cpu", **options) -> int:
        with pytest.raises(BudgetTooSmallError) as refused:
            self(path, 1, backend=backend, **options)
        return refused.value.minimum

    def streaming(self, path: Path, share: float = 0.5, **options) -> Engine:
        """With room for about ``share`` of the weights beside what the smallest budget holds."""
        weights = sum(w.nbytes for w in read_model(open_gguf(path), REGISTRY).weights.values())
        engine = self(path, self.minimum(path, **options) + int(share * weights), **options)
        assert engine.allotment.residency.reads
        return engine


def weight_bytes(model: Model) -> int:
    return sum(w.nbytes for w in model.weights.values())


def answer(engine: Engine, prompt: Sequence[int], n: int = 4) -> tuple[list[int], NDArray[np.float32]]:
    """Greedy ids, and the logits that each was drawn from: float32 (n, vocab)."""
    cache, ids, rows = engine.cache(), list(prompt), []
    try:
        rows.append(engine.prefill(ids, cache).copy())
        while len(rows) < n:
            ids.append(int(rows[-1].argmax()))
            rows.append(engine.run([ids[-1]], len(ids) - 1, cache, [True])[0].copy())
    finally:
        cache.truncate(0)
    return [*ids[len(prompt) :], int(rows[-1].argmax())], np.array(rows)


def settled(engine: Engine) -> None:
    """Wait until the stream has read ahead as far as it may."""
    stream = engine.streamed.stream
    deadline = time.monotonic() + 20
    while stream._busy or stream._may_ask():
        assert time.monotonic() < deadline
        time.sleep(0.002)
