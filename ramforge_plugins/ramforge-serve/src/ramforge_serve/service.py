"""The bridge between an open model, whose scheduler has a thread of its own, and the event loop of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from attrs import define, field

from ramforge_core import __version__
from ramforge_core.answer import Answer
from ramforge_core.api import LanguageModel
from ramforge_core.errors import ContextFullError, ParameterError
from ramforge_core.sampling import Sampler, SamplingParameters
from ramforge_core.scheduler import Constraint, Drawn, Ended, Event, Request, Scheduler
from ramforge_core.sessions import model_digest
from ramforge_serve.constrain import Grammars
from ramforge_serve.faults import Fault

T = TypeVar("T")

_UNREAD = 2000
"""Tokens, likely ones that are reported included, that may wait for a client; one that takes none any more is given up.
"""
_PREPARING = ThreadPoolExecutor(1, "ramforge-prepare")
"""One, so that only one prompt at a time takes the memory that rendering wants."""


@define
class Totals:
    """Counted since the start, over all requests that are over."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0


@define(eq=False, slots=False)
class Service:
    """A model that answers many clients. All methods are for the event loop's thread.

    name : what clients call the model. grammars : None where answers cannot be bound to JSON.
    """

    model: LanguageModel
    scheduler: Scheduler
    name: str
    grammars: Grammars | None
    started: float = field(factory=time.time, init=False)
    totals: Totals = field(factory=Totals, init=False)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when answers to the same request with the same seed may."""
        return f"ramforge-{__version__}-{model_digest(self.model.engine.model.gguf)[:12]}"

    @property
    def context(self) -> int:
        return self.model.engine.context

    def knows(self, name: str | None) -> bool:
        """Whether a client that asks for this model means the one that is served."""
        return name is None or name in (self.name, f"{self.name}:latest", Path(self.name).name)

    def answers(self) -> Answers:
        """An empty set of answers, for one call of a client."""
        return Answers(self)


class Answers:
    """The answers to one call: `add` them, `start` them, take events with `next`, and `close` in any case.

    requests : in the order in which they were added; events carry the place in it.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._running: set[int] = set()
        self._unread = False
        self.requests: list[Request] = []

    def add(
        self,
        prompt_ids: Sequence[int],
        parameters: SamplingParameters,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        """One more. Raises ContextFullError or ParameterError."""
        n, context = len(prompt_ids), self._service.context
        if not n:
            raise ParameterError("the prompt is empty and the vocabulary adds nothing to it")
        if n > context:
            raise ContextFullError(
                f"the prompt has {n} tokens, but the context holds {context}; shorten it, or serve with a larger --ctx"
            )
        answer = Answer(self._service.model.tokenizer, context - n + 1, max_tokens, tuple(stop))
        listener = partial(self._hear, len(self.requests))
        self.requests.append(Request(prompt_ids, Sampler(parameters), answer, listener, logprobs, constraint))

    def start(self) -> None:
        """Queue all of them. Raises QueueFullError or Interrupted, and then none of them runs."""
        try:
            for i, request in enumerate(self.requests):
                self._service.scheduler.submit(request)
                self._running.add(i)
        except BaseException:
            self.close()
            raise
        self._service.totals.requests += len(self.requests)

    def _hear(self, place: int, event: Event) -> None:
        """On the scheduler's thread; a loop that is closed has no clients any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._put, place, event)

    def _put(self, place: int, event: Event) -> None:
        if self._unread:
            return
        weight = 1 + len(event.top) if isinstance(event, Drawn) else 1
        if self._events.qsize() * weight > _UNREAD:
            self._unread = True
            self._events = asyncio.Queue()  # nobody waits at the old one: it is full
            event = Ended(Fault(408, f"the client left {_UNREAD} tokens unread; it was given up", "timeout"))
            for i in self._running:
                self._service.scheduler.cancel(self.requests[i])
        self._events.put_nowait((place, event))

    @property
    def running(self) -> bool:
        return bool(self._running)

    async def next(self, seconds: float) -> tuple[int, Event] | None:
        """The next event and whose it is, or None if none came in time. Raises the error that broke one off."""
        try:
            place, event = await asyncio.wait_for(self._events.get(), seconds)
        except asyncio.TimeoutError:
            return None
        if isinstance(event, Ended):
            self._running.discard(place)
            self._count(self.requests[place], event)
            if event.error is not None:
                raise event.error
        return place, event

    def close(self) -> None:
        """Stop those that are not over."""
        for place in self._running:
            self._service.scheduler.cancel(self.requests[place])
            self._count(self.requests[place], Ended())
        self._running.clear()

    def _count(self, request: Request, end: Ended) -> None:
        totals = self._service.totals
        totals.failed += end.error is not None
        totals.prompt_tokens += len(request.prompt_ids)
        totals.reused_tokens += request.reused_tokens
        totals.generated_tokens += len(request.answer.ids)


async def in_thread(work: Callable[[], T]) -> T:
    """Rendering and tokenizing a long prompt takes long enough to keep other clients waiting."""
    return await asyncio.get_running_loop().run_in_executor(_PREPARING, work)
