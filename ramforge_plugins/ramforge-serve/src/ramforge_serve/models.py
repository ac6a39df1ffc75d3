"""``/v1/models``, and what the served model cannot do."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ramforge_serve.faults import Fault
from ramforge_serve.openai_chat import known_model
from ramforge_serve.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter()
    entry = {
        "id": service.name,
        "object": "model",
        "created": int(service.started),
        "owned_by": "ramforge",
    }

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        known_model(service, name)
        return entry

    @routes.post("/v1/embeddings")
    @routes.post("/api/embed")
    @routes.post("/api/embeddings")
    async def embeddings() -> Response:
        raise Fault(400, f"{service.name} makes texts; it gives no embeddings", "unsupported", "model")

    return routes
