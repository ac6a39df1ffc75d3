"""``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from ramforge_serve.faults import Fault
from ramforge_serve.service import Service, in_thread


class TokenizeRequest(BaseModel):
    content: str
    add_special: bool = False
    parse_special: bool = False


class DetokenizeRequest(BaseModel):
    tokens: list[int]


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    tokenizer = service.model.tokenizer

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        return {
            "tokens": await in_thread(
                lambda: tokenizer.tokenize(body.content, body.add_special, body.parse_special)
            )
        }

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        bad = next((t for t in body.tokens if not 0 <= t < tokenizer.n_vocab), None)
        if bad is not None:
            raise Fault(
                400,
                f"token {bad} is outside the vocabulary of {tokenizer.n_vocab}",
                "invalid_value",
                "tokens",
            )
        return {"content": tokenizer.detokenize(body.tokens).decode("utf-8", "replace")}

    return routes
