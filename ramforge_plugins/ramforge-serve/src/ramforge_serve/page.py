"""The page at ``/`` and its files below ``/web/``. It asks only this server; nothing that it shows can change that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

WEB = Path(__file__).with_name("web")

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Scripts and styles come from files only, and no text becomes markup (trusted types). Files are asked for again after
an update of the server."""


class _Files(StaticFiles):
    def file_response(self, full_path: str | os.PathLike[str], *args: Any, **more: Any) -> Response:
        response = super().file_response(full_path, *args, **more)
        response.headers.update(HEADERS)
        return response


def install_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(WEB / "index.html", headers=HEADERS)

    app.mount("/web", _Files(directory=WEB), name="web")
