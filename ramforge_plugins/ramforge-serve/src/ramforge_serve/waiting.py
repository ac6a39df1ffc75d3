"""Waiting for answers that are not streamed, as long as the client waits, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastapi import Request

from ramforge_core.scheduler import Drawn
from ramforge_serve.service import Answers

_LOOK_S = 0.25


class ClientGone(Exception):
    """Nobody is there to be answered."""


async def finish(answers: Answers, request: Request, take: Callable[[int, Drawn], None]) -> None:
    """Hand each drawn token to ``take``, until all answers are over. Raises ClientGone."""
    looked = asyncio.get_running_loop().time()
    while answers.running:
        got = await answers.next(_LOOK_S)
        if got is not None and isinstance(got[1], Drawn):
            take(got[0], got[1])
        now = asyncio.get_running_loop().time()
        if now - looked >= _LOOK_S:
            looked = now
            if await request.is_disconnected():
                raise ClientGone
