"""The application: routes, faults and the guard before them."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import FileResponse, JSONResponse
from starlette.staticfiles import StaticFiles

from ramforge_core import __version__
from ramforge_serve import openai_chat
from ramforge_serve.faults import install_handlers
from ramforge_serve.guard import Guard, Rules
from ramforge_serve.service import Service

WEB = Path(__file__).with_name("web")


def create_app(service: Service, rules: Rules) -> FastAPI:
    app = FastAPI(title="RAMforge", version=__version__, docs_url=None, redoc_url=None)
    app.include_router(openai_chat.router(service))

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/v1/models")
    async def models() -> JSONResponse:
        entry = {
            "id": service.name,
            "object": "model",
            "created": int(service.started),
            "owned_by": "ramforge",
        }
        return JSONResponse({"object": "list", "data": [entry]})

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(WEB / "index.html")

    app.mount("/web", StaticFiles(directory=WEB), name="web")
    install_handlers(app)
    app.add_middleware(Guard, rules=rules)
    return app
