"""Is a file sound, and is streaming it the same as having it in memory? What ``ramforge verify`` asks.

The header has been checked when a file is open. Here every tensor byte is read once, past the page cache and through
a small ring, and the model is run at several budgets, which must not change one bit of its logits.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import asdict, define, field, frozen
from numpy.typing import NDArray

from ramforge_core.allotment import smallest_free_bytes
from ramforge_core.api import budget_of
from ramforge_core.budget import MemoryBudget
from ramforge_core.datasource import DataSource
from ramforge_core.engine import Engine, load_engine, trial_workspace
from ramforge_core.errors import (
    BackendError,
    BudgetTooSmallError,
    NonFiniteError,
    PluginError,
    RamforgeError,
    TensorError,
    UnsupportedError,
    VerificationError,
)
from ramforge_core.gguf import open_gguf
from ramforge_core.memory import PAGE, allocate
from ramforge_core.model import read_model
from ramforge_core.plugins import Registry
from ramforge_core.pull import resolve
from ramforge_core.reports.layout import pairs, table
from ramforge_core.residency import Read
from ramforge_core.sizes import format_size
from ramforge_core.stream import Stream
from ramforge_core.system import process_memory

if TYPE_CHECKING:
    from ramforge_core.backend import Backend
    from ramforge_core.gguf import GGUF, TensorInfo
    from ramforge_core.model import Model
    from ramforge_core.quant import QuantFormat

Progress = Callable[[float, float], None]

_WINDOW_BYTES = 1 << 20
_SLOTS = 6
_SAMPLE_BYTES = 16 << 10
"""Of each window, what is decoded to see whether it holds numbers; small tensors are decoded whole."""

SHARES = (0.0, 0.25, 0.5, 1.0)
"""Budgets that are compared, by the share of the weights that they can pin beside what a pass needs."""
PROMPT_TOKENS = 4
NEW_TOKENS = 8
FEW_TOKENS = 2
"""New tokens at the smallest budget, which takes prompts token by token and reads in the smallest portions."""
_NOISE_BYTES = 1 << 20
"""What the process may grow by between two looks at it."""
_ROOM_BYTES = 64 << 20
"""What a pass over the prompt takes more than the smallest one, so that all weights fit beside it."""


@frozen
class TensorCheck:
    """One tensor. sha256 : of its bytes as stored.

    checked, non_finite : values that were decoded (0 if no plugin decodes the type), and how many are no numbers.
    """

    name: str
    type: str
    nbytes: int
    sha256: str
    checked: int
    non_finite: int


@frozen
class BudgetCheck:
    """The model at one budget: None in all sizes if the budget is more than is allowed here.

    share : of the weights that were to be pinned. ids : greedy tokens. digests : SHA-256 of the logits of each.
    """

    share: float
    budget_bytes: int
    pinned_bytes: int | None = None
    streamed_bytes: int | None = None
    ids: tuple[int, ...] = ()
    digests: tuple[str, ...] = ()

    @property
    def skipped(self) -> bool:
        return not self.digests


@define
class Verification:
    """What was found. tensors : in file order. budgets : the smallest first; empty if the model cannot run here.

    cannot_run : why it cannot.
    """

    files: tuple[str, ...]
    tensors: list[TensorCheck] = field(factory=list)
    budgets: list[BudgetCheck] = field(factory=list)
    cannot_run: RamforgeError | None = None

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)

    @property
    def digest(self) -> str:
        """SHA-256 over name and digest of each tensor, in order of names: the same however the file is split."""
        lines = sorted(f"{t.name}\0{t.type}\0{t.sha256}\n" for t in self.tensors)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def same_everywhere(self) -> bool:
        """Whether all budgets that were tried gave the very same logits and tokens, as far as each of them went."""
        return all(map(self._is_same, self.budgets))

    def _is_same(self, b: BudgetCheck) -> bool:
        longest = max(self.budgets, key=lambda other: len(other.digests))
        n = len(b.digests)
        return (b.digests, b.ids) == (longest.digests[:n], longest.ids[:n])

    def problem(self) -> RamforgeError | None:
        """The error that the findings amount to, None if all is well."""
        if bad := [t for t in self.tensors if t.non_finite]:
            t = bad[0]
            more = f", and so do {len(bad) - 1} more tensors" if len(bad) > 1 else ""
            return TensorError(
                f"tensor {t.name!r} holds values that are no numbers: {t.non_finite} of {t.checked} that were "
                f"looked at{more}; get the file again"
            )
        if not self.same_everywhere:
            return VerificationError(
                "the model gives other logits when it is streamed than in memory, which must not be: please report "
                "it, with what ramforge verify --json says"
            )
        return self.cannot_run

    def to_dict(self) -> dict[str, Any]:
        problem = self.problem()
        return {
            "files": list(self.files),
            "tensor_bytes": self.nbytes,
            "sha256": self.digest,
            "tensors": [asdict(t) for t in self.tensors],
            "budgets": [{**asdict(b), "skipped": b.skipped} for b in self.budgets],
            "same_everywhere": self.same_everywhere,
            "problem": None if problem is None else str(problem),
        }

    def render(self) -> str:
        checked, bad = (sum(getattr(t, name) for t in self.tensors) for name in ("checked", "non_finite"))
        rows = [
            ("header", f"sound; {len(self.files)} file{'s' if len(self.files) > 1 else ''}"),
            ("tensors", f"{len(self.tensors)} with {format_size(self.nbytes)}, all read"),
            ("sha256", self.digest),
            ("values", f"{checked} decoded, {bad or 'none'} of them not finite"),
        ]
        text = pairs(rows)
        if not self.budgets:
            return text
        return f"{text}\n{table(('budget', 'pinned', 'streamed', 'logits'), [self._row(b) for b in self.budgets])}"

    def _row(self, b: BudgetCheck) -> tuple[str, str, str, str]:
        if b.pinned_bytes is None or b.streamed_bytes is None:
            return format_size(b.budget_bytes), "", "", "skipped: more than --ram"
        tokens = f"{len(b.ids)} tokens, {'the same' if self._is_same(b) else 'OTHERS'}"
        return format_size(b.budget_bytes), format_size(b.pinned_bytes), format_size(b.streamed_bytes), tokens


# ---------------------------------------------------------------------------------------------------- tensors


def check_tensors(gguf: GGUF, registry: Registry, progress: Progress | None = None) -> list[TensorCheck]:
    """Read every tensor once, in file order. Raises GGUFError if the file cannot be read or changes meanwhile.

    progress : called with bytes done and in all. Memory: a few MiB.
    """
    infos = sorted(gguf.tensors.values(), key=lambda info: (info.file, info.offset))
    known = [(info, info.nbytes) for info in infos if info.nbytes]
    reads = [read for info, nbytes in known for read in _windows(info, nbytes)]
    total, done = sum(nbytes for _, nbytes in known), 0
    out = []
    with DataSource(gguf.files) as source:
        stream = Stream(source, reads, allocate(_SLOTS * (_WINDOW_BYTES + PAGE)), _SLOTS, repeat=False)
        try:
            if reads:
                stream.begin()
            for info, nbytes in known:
                tensor = _Tensor(info, nbytes, _format(registry, info.ggml_type))
                while tensor.at < nbytes:
                    read, window = stream.take()
                    _, start, n = read.pieces[0]
                    tensor.add(window[start : start + n])
                    stream.give_back()
                    done += n
                    if progress is not None:
                        progress(done, total)
                out.append(tensor.result())
        finally:
            stream.close()
        source.check_unchanged()
    return out


def _windows(info: TensorInfo, nbytes: int) -> Iterator[Read]:
    """Page-aligned reads that hold a tensor one after the other."""
    end = info.offset + nbytes
    for offset in range(info.offset // PAGE * PAGE, end, _WINDOW_BYTES):
        first, last = max(offset, info.offset), min(offset + _WINDOW_BYTES, end)
        length = -(-(last - offset) // PAGE) * PAGE
        yield Read(
            info.file, offset, length, ((info.name, first - offset, last - first),), length - (last - first)
        )


def _format(registry: Registry, ggml_type: int) -> QuantFormat | None:
    try:
        return registry.quant_format(ggml_type)
    except PluginError:  # that no plugin decodes it is said where the model is to run
        return None


@define
class _Tensor:
    """A tensor on its way past: its digest, and samples of its values."""

    info: TensorInfo
    nbytes: int
    format: QuantFormat | None
    at: int = 0
    checked: int = 0
    non_finite: int = 0
    _sha256: Any = field(factory=hashlib.sha256)

    def add(self, data: NDArray[np.uint8]) -> None:
        self._sha256.update(data)
        if self.format is not None:
            size = self.format.block_bytes
            start = -self.at % size
            blocks = min((len(data) - start) // size, max(1, _SAMPLE_BYTES // size))
            if blocks > 0:
                with np.errstate(all="ignore"):
                    values = self.format.decode(data[start : start + blocks * size].reshape(blocks, size))
                self.checked += values.size
                self.non_finite += int(values.size - np.isfinite(values).sum())
        self.at += len(data)

    def result(self) -> TensorCheck:
        digest = self._sha256.hexdigest()
        return TensorCheck(
            self.info.name, self.info.type_name, self.nbytes, digest, self.checked, self.non_finite
        )


# ---------------------------------------------------------------------------------------------------- budgets


def check_budgets(
    model: Model, backend: Backend, allowed_bytes: int, progress: Progress | None = None
) -> list[BudgetCheck]:
    """Let the model answer the same ids at several budgets, from the smallest possible one up to all in memory.

    allowed_bytes : larger budgets are skipped. progress : called with tokens done and in all.
    Raises BudgetTooSmallError if not even the smallest is allowed, NonFiniteError if logits are no numbers.
    """
    context = min(PROMPT_TOKENS + NEW_TOKENS, int(model.config.context_length))
    workspace = trial_workspace(model, backend, context=context, kv_type="f16", threads=0)
    smallest = smallest_free_bytes(model, workspace, context=context)
    weights = sum(spec.nbytes for spec in model.weights.values())
    total = FEW_TOKENS + (len(SHARES) - 1) * NEW_TOKENS + len(SHARES) * PROMPT_TOKENS
    out: list[BudgetCheck] = []
    done = 0

    def tick(tokens: float) -> None:
        if progress is not None:
            progress(done + tokens, total)

    for share in SHARES:
        own = process_memory().rss or 0
        budget = own + smallest + int(share * weights) + (_ROOM_BYTES if share == 1 else _NOISE_BYTES)
        if budget <= allowed_bytes:
            most = NEW_TOKENS if share else FEW_TOKENS
            out.append(_check_budget(model, backend, MemoryBudget(budget), context, share, most, tick))
            done += PROMPT_TOKENS + most
        elif share:
            out.append(BudgetCheck(share, budget))
        else:
            raise BudgetTooSmallError(smallest + _NOISE_BYTES, own, allowed_bytes, context)
    return out


def _check_budget(
    model: Model,
    backend: Backend,
    budget: MemoryBudget,
    context: int,
    share: float,
    most: int,
    tick: Callable[[float], None],
) -> BudgetCheck:
    """Run the model in one budget and give everything back."""
    with closing(load_engine(model, backend, budget, context=context)) as engine:
        ids, digests = _answer(engine, most, tick)
        parts = engine.allotment.residency
        return BudgetCheck(
            share, budget.limit or 0, parts.pinned_bytes, parts.streamed_bytes, tuple(ids), tuple(digests)
        )


def _answer(engine: Engine, most: int, tick: Callable[[float], None]) -> tuple[list[int], list[str]]:
    """Greedy tokens after fixed ids, and the digests of the logits that they were taken from."""
    vocab = engine.model.graph.logits.width
    n_prompt = min(PROMPT_TOKENS, engine.context)
    prompt = [(i + 1) * 7919 % vocab for i in range(n_prompt)]
    cache, ids, digests = engine.cache(), list[int](), list[str]()
    try:
        logits = engine.prefill(prompt, cache, progress=lambda done, _: tick(done))
        while True:
            if not np.isfinite(logits).all():
                raise NonFiniteError(
                    "the model gives logits that are no numbers; its weights are damaged or overflow"
                )
            digests.append(hashlib.sha256(logits.tobytes()).hexdigest())
            ids.append(int(np.argmax(logits)))
            tick(n_prompt + len(ids))
            if len(ids) == most or n_prompt + len(ids) > engine.context:
                return ids, digests
            logits = engine.run([ids[-1]], n_prompt + len(ids) - 1, cache, [True])[0]
    finally:
        cache.truncate(0)


def verify(
    model: str | os.PathLike[str],
    *,
    ram: str | int | None = None,
    registry: Registry | None = None,
    reading: Progress | None = None,
    running: Progress | None = None,
) -> Verification:
    """Check a model's file, and that it computes the same in every budget up to ``ram`` (as in `ramforge_core.open`).

    reading : called with tensor bytes done and in all. running : with tokens done and in all.
    What is found is in the answer, see `Verification.problem`. Raises GGUFError if the file is damaged, cut short or
    cannot be read, BudgetTooSmallError and NonFiniteError as `check_budgets`.
    """
    allowed = budget_of(ram).limit or 0
    registry = registry or Registry.discover()
    gguf = open_gguf(resolve(model, registry))
    found = Verification(tuple(map(os.fspath, gguf.files)), check_tensors(gguf, registry, reading))
    if found.problem() is None:
        try:
            ready, backend = read_model(gguf, registry), registry.backend()
        except (UnsupportedError, PluginError, BackendError) as error:
            found.cannot_run = error
        else:
            found.budgets = check_budgets(ready, backend, allowed, running)
    return found
