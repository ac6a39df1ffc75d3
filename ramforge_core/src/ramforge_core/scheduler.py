"""Several answers at once: each pass over the weights serves every request that is under way.

A streamed pass costs the same for one token and for many, so four readers cost one. Answers are the same as alone:
what a pass computes for one sequence does not depend on the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from ramforge_core.answer import Answer
from ramforge_core.engine import Engine, Part
from ramforge_core.errors import BudgetExceededError, ContextFullError, Interrupted, QueueFullError
from ramforge_core.sampling import Sampler
from ramforge_core.sequence import KeptSequence

_TOKENS_BESIDE = 128
"""Most tokens of a pass that somebody waits for token by token. A streamed pass takes its time anyway."""


class Constraint(Protocol):
    """What bounds the tokens of an answer, a grammar say."""

    def allow(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits float32 (vocab,) with what may not come at -inf; the argument is not changed."""

    def accept(self, token: int) -> None:
        """This token was drawn."""


@frozen
class Prefilled:
    """Of the tokens of the prompt, ``done`` are computed or were kept."""

    done: int
    total: int


@frozen
class Drawn:
    """A token, the text that it completes (maybe none), and logarithms of probabilities if they were asked for.

    logprob : of the token. top : the likeliest (token, logprob), the likeliest first.
    """

    token: int
    text: str
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@frozen
class Ended:
    """The answer is over: see ``request.answer.finish_reason``; or ``error`` says what broke it off."""

    error: Exception | None = None


Event = Prefilled | Drawn | Ended


@define(eq=False)
class Request:
    """One answer to be made.

    answer : with the room that the context leaves for it.
    logprobs : how many likeliest tokens to report with each drawn one; None reports nothing.
    listener : called by the scheduler's thread with each event; must not wait. ``Ended`` comes last, and once.
    reused_tokens, prompt_s, decode_s : of the prompt, what was kept; seconds from admission to the first token, and
        from that to the end.
    """

    prompt_ids: Sequence[int]
    sampler: Sampler
    answer: Answer
    listener: Callable[[Event], None]
    logprobs: int | None = None
    constraint: Constraint | None = None
    reused_tokens: int = field(default=0, init=False)
    prompt_s: float = field(default=0.0, init=False)
    decode_s: float = field(default=0.0, init=False)
    _ids: list[int] = field(init=False, repr=False)
    _cancelled: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._ids = list(self.prompt_ids)


@define(eq=False)
class _Active:
    """A request with a sequence. Its tokens that the sequence does not hold yet wait for a pass."""

    request: Request
    sequence: KeptSequence
    began: float

    @property
    def pending(self) -> list[int]:
        return self.request._ids[len(self.sequence.ids) :]


@frozen
class Load:
    """How busy a scheduler is, and what it has done so far.

    kept : sequences whose requests are over. tokens : of all passes, of prompts too. drawn : of answers.
    """

    active: int
    waiting: int
    kept: int
    passes: int
    tokens: int
    drawn: int


@define(eq=False)
class Scheduler:
    """Runs requests on an engine that nobody else uses meanwhile. Call `close` at the end.

    sequences : how many run at once, and how many that are over are kept for texts that begin alike.
    queue : how many may wait beside them.
    Memory: caches grow inside the engine's budget. Where it has no more, kept sequences go first, then the youngest
    running one starts anew later; it draws the same tokens, so nobody sees it but by the time.
    """

    engine: Engine
    sequences: int = 4
    queue: int = 64
    _active: list[_Active] = field(factory=list, init=False, repr=False)
    _waiting: deque[Request] = field(factory=deque, init=False, repr=False)
    _kept: list[KeptSequence] = field(factory=list, init=False, repr=False)
    """The one used last is the last."""
    _crowded: bool = field(default=False, init=False)
    """Somebody had to give way: nobody is admitted until somebody is done."""
    _passes: int = field(default=0, init=False)
    _tokens: int = field(default=0, init=False)
    _drawn: int = field(default=0, init=False)
    _changed: threading.Condition = field(factory=threading.Condition, init=False, repr=False)
    """Guards the queue and the flags; running and kept sequences belong to the thread."""
    _draining: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _thread: threading.Thread = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._thread = threading.Thread(target=self._work, name="ramforge-scheduler", daemon=True)
        self._thread.start()

    @property
    def load(self) -> Load:
        with self._changed:
            return Load(
                len(self._active),
                len(self._waiting),
                len(self._kept),
                self._passes,
                self._tokens,
                self._drawn,
            )

    def submit(self, request: Request) -> None:
        """Begin a request as soon as there is room for it.

        Raises ContextFullError if its prompt can never fit, QueueFullError if too many wait, Interrupted after `drain`.
        """
        if len(request.prompt_ids) > self.engine.context:
            raise ContextFullError(
                f"the prompt has {len(request.prompt_ids)} tokens, but the context holds {self.engine.context}"
            )
        with self._changed:
            if self._draining or self._closed:
                raise Interrupted("no more requests are taken")
            if len(self._active) + len(self._waiting) >= self.sequences + self.queue:
                raise QueueFullError(
                    f"{len(self._active)} requests run and {len(self._waiting)} wait already; try again later"
                )
            self._waiting.append(request)
            self._changed.notify_all()

    def cancel(self, request: Request) -> None:
        """Nobody wants it any more: no event comes after this but ``Ended``. From any thread."""
        request._cancelled = True
        with self._changed:
            self._changed.notify_all()
        if all(a.request._cancelled for a in list(self._active)):
            self.engine.interrupt()

    def drain(self, timeout_s: float) -> bool:
        """Take no more requests and wait for those that are there. Returns whether all were done in time."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not (self._active or self._waiting), timeout_s)

    def close(self) -> None:
        """Break off what runs, and give the memory of all sequences back. The engine stays open."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while self._thread.is_alive():  # it may be about to begin a pass
            self.engine.interrupt()
            self._thread.join(0.1)

    # -- all from here on runs on the scheduler's own thread ----------------------------------------------------------

    def _work(self) -> None:
        while self._wait():
            self._drop_cancelled()
            try:
                self._admit()
                self._pass()
            except Interrupted:  # nothing of that pass counts: those who still want it run it again
                continue
            except Exception as error:  # of the model or the machine: nobody's answer can go on
                for active in list(self._active):
                    self._end(active, error)
        closed = Interrupted("the model was closed")
        for active in list(self._active):
            self._end(active, closed)
        with self._changed:
            waiting = [*self._waiting]
            self._waiting.clear()
        for request in waiting:
            request.listener(Ended(closed))
        for kept in self._kept:
            kept.close()
        self._kept.clear()

    def _wait(self) -> bool:
        """Wait for work; False when there will be none."""
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._active or self._waiting)
            return not self._closed

    def _drop_cancelled(self) -> None:
        for active in [a for a in self._active if a.request._cancelled]:
            self._end(active, None)
        with self._changed:
            gone = [r for r in self._waiting if r._cancelled]
            for request in gone:
                self._waiting.remove(request)
        for request in gone:
            request.listener(Ended())

    def _admit(self) -> None:
        allotted = self.engine.allotment
        most = min(
            self.sequences, allotted.max_tokens, allotted.max_wanted
        )  # so that each has its token of a pass
        while self._waiting and len(self._active) < most and not self._crowded:
            request = self._waiting[0]
            active = _Active(request, KeptSequence(self.engine.cache()), time.perf_counter())
            with self._changed:
                self._waiting.popleft()
                self._active.append(active)
            active.sequence = self._sequence_for(active)
            if not request.answer.ids:  # and not one that gave way
                request.reused_tokens = len(active.sequence.ids)
            if request.answer.finish_reason is not None:  # no token was asked for
                self._end(active, None)

    def _sequence_for(self, active: _Active) -> KeptSequence:
        """A sequence with the longest start that a kept or running one has in common with the request's tokens.

        It is copied, so that others find it again, unless nothing of a kept one would be lost, or memory is short.
        """
        ids, new = active.request._ids, active.sequence
        others = [a.sequence for a in self._active if a is not active]
        best = max((*self._kept, *others), key=lambda s: s.common(ids), default=new)  # kept ones first
        common = best.common(ids)
        if not common:
            return new
        if best not in self._kept or common < len(best.ids):
            try:
                new.copy_from(best, common)
            except BudgetExceededError:
                if best not in self._kept:
                    return new  # computed again, when there is room
            else:
                return new
        self._kept.remove(best)
        best.cut(common)
        return best

    def _pass(self) -> None:
        """One pass for as many running requests as fit."""
        todo: list[tuple[_Active, list[int], bool]] = []
        tokens = self.engine.allotment.max_tokens
        if self.engine.streamed is None and any(len(active.pending) == 1 for active in self._active):
            tokens = min(tokens, _TOKENS_BESIDE)
        for active in sorted(self._active, key=self._turn):
            run = active.pending[:tokens]
            if not run or active not in self._active or not self._reserve(active, len(run)):
                continue
            todo.append((active, run, len(run) == len(active.pending)))
            tokens -= len(run)
        todo = [(active, run, last) for active, run, last in todo if active in self._active]
        if not todo:
            return
        parts = [
            Part(run, len(active.sequence.ids), active.sequence.cache, [False] * (len(run) - 1) + [last])
            for active, run, last in todo
        ]
        rows = iter(self.engine.run_parts(parts))
        self._passes += 1
        self._tokens += sum(len(run) for _, run, _ in todo)
        for active, run, last in todo:
            active.sequence.ids += run
            if last:
                self._draw(active, next(rows))
            else:
                active.request.listener(Prefilled(len(active.sequence.ids), len(active.request._ids)))

    def _turn(self, active: _Active) -> tuple[bool, float]:
        """Who goes first: those that draw, then prompts; in turns the shortest and the oldest, so that none waits long
        for a longer one, nor for ever for shorter ones."""
        n = len(active.pending)
        return n > 1, active.began if self._passes % 2 else n

    def _reserve(self, active: _Active, tokens: int) -> bool:
        """Make room in its cache; False if it had to give way to others, and waits for its turn again."""
        while active in self._active:
            try:
                active.sequence.cache.reserve(len(active.sequence.ids) + tokens)
            except BudgetExceededError as error:
                if self._kept:
                    self._kept.pop(0).close()
                elif len(self._active) == 1:
                    self._end(active, error)
                else:
                    self._put_back(max(self._active, key=lambda a: a.began))
            else:
                return True
        return False

    def _put_back(self, active: _Active) -> None:
        active.sequence.close()
        self._crowded = True
        with self._changed:
            self._active.remove(active)
            self._waiting.appendleft(active.request)

    def _draw(self, active: _Active, logits: NDArray[np.float32]) -> None:
        request = active.request
        now = time.perf_counter()
        if not request.answer.ids:
            request.prompt_s = now - active.began
        request.decode_s = now - active.began - request.prompt_s
        try:
            bound = request.constraint
            token = request.sampler(logits, request._ids, None if bound is None else bound.allow)
            if bound is not None:
                bound.accept(token)
            logprob, top = _logprobs(logits, token, request.logprobs)
            text = request.answer.accept(token)
        except Exception as error:  # of this request alone
            self._end(active, error)
            return
        request._ids.append(token)
        self._drawn += 1
        request.listener(Drawn(token, text, logprob, top))
        if request.answer.finish_reason is not None:
            self._end(active, None)

    def _end(self, active: _Active, error: Exception | None) -> None:
        self._active.remove(active)
        self._crowded = False
        if error is None and active.sequence.ids:
            self._kept.append(active.sequence)
            if len(self._kept) > self.sequences:
                self._kept.pop(0).close()
        else:
            active.sequence.close()
        active.request.listener(Ended(error))


def _logprobs(
    logits: NDArray[np.float32], token: int, top: int | None
) -> tuple[float | None, tuple[tuple[int, float], ...]]:
    """Natural logarithms of probabilities at temperature 1, before any filter: of the token, and of the likeliest."""
    if top is None:
        return None, ()
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    likeliest = np.argsort(-values, kind="stable")[:top]
    return float(values[token]), tuple((int(i), float(values[i])) for i in likeliest)
