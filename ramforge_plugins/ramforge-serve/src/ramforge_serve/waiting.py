"""Answers on their way to a client: all at once, or piece by piece, for as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

from fastapi import Request

from ramforge_core.errors import Interrupted
from ramforge_core.scheduler import Drawn, Event
from ramforge_serve import sse
from ramforge_serve.faults import Fault, fault_of
from ramforge_serve.service import Answers

_LOOK_S = 0.25


class ClientGone(Fault):
    """Nobody is there to be answered: everyday, so nothing for the log."""

    def __init__(self) -> None:
        super().__init__(499, "the client is gone", "client_gone")


async def finish(answers: Answers, request: Request, take: Callable[[int, Drawn], object]) -> None:
    """Hand each drawn token to ``take``, until all answers are over; they are closed then.

    Raises ClientGone, and Interrupted when the server ends.
    """
    looked = asyncio.get_running_loop().time()
    try:
        while answers.running:
            got = await answers.next(_LOOK_S)
            if got is not None and isinstance(got[1], Drawn):
                take(got[0], got[1])
            now = asyncio.get_running_loop().time()
            if now - looked >= _LOOK_S:
                looked = now
                if await request.is_disconnected():
                    raise ClientGone
    except asyncio.CancelledError:  # the time that the server had to end is over
        raise Interrupted("the server is shutting down") from None
    finally:
        answers.close()


async def pieces(
    answers: Answers,
    told: Callable[[int, Event], Iterable[bytes]],
    idle: Callable[[], bytes],
    failed: Callable[[Fault], bytes],
    last: Callable[[], Iterable[bytes]] = tuple,
    *,
    first: bytes = b"",
    end: bytes = b"",
) -> AsyncIterator[bytes]:
    """The body of a streamed answer; the answers are closed with it.

    told : what an event is to the client. idle : sent when nothing happened for a while. failed : an error, as the
    stream has begun. last : sent if there was none. first, end : sent in any case.
    """
    try:
        if first:
            yield first
        while answers.running:
            got = await answers.next(sse.PING_S)
            for part in (idle(),) if got is None else told(*got):
                yield part
        for part in last():
            yield part
    except Exception as error:
        yield failed(fault_of(error))
    finally:
        answers.close()
    if end:
        yield end
