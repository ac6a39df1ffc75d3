"""The application: routes, faults and the guard before them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import JSONResponse

from ramforge_core import __version__
from ramforge_serve import metrics, models, ollama, openai_chat, openai_completions, status, tokens
from ramforge_serve.faults import RESPONSES, install_handlers
from ramforge_serve.guard import Guard, Rules
from ramforge_serve.page import install_page
from ramforge_serve.service import Service


def create_app(service: Service, rules: Rules) -> FastAPI:
    app = FastAPI(title="RAMforge", version=__version__, docs_url=None, redoc_url=None, responses=RESPONSES)
    for routes in (models, openai_chat, openai_completions, ollama, tokens, metrics, status):
        app.include_router(routes.router(service))

    @app.get("/health")
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    install_page(app)
    install_handlers(app)
    app.add_middleware(Guard, rules=rules)
    return app
