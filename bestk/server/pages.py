"""The page and its files, and what a server says of itself: health, metrics.

Only files that lay in the two folders when the server started are served.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import BaseModel

from bestk.server.errors import ApiError, responses
from bestk.server.metrics import CONTENT_TYPE, Metrics
from bestk.server.security import PAGE_POLICY
from bestk.server.service import Service
from bestk.version import __version__

_FOLDERS = ("bestk.server", "bestk.viz")
_KINDS = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webp": "image/webp",
    ".json": "application/json",
}


class Health(BaseModel):
    """How the server is."""

    status: str
    version: str
    models: list[str]
    running: int
    waiting: int


def router(service: Service, metrics: Metrics) -> APIRouter:
    """Make the routes."""
    routes = APIRouter()
    files = _files()

    @routes.get("/", include_in_schema=False)
    async def page() -> Response:
        return _file(files, "index.html")

    @routes.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _file(files, name)

    @routes.get(
        "/health",
        tags=["server"],
        response_model=Health,
        responses=responses(503) | {503: {"model": Health, "description": "It is shutting down."}},
    )
    async def health() -> Response:
        """Tell whether the server takes searches; no token is needed."""
        loop = service.loop
        is_well = loop.is_alive and not loop.is_stopping
        told = Health(
            status="ok" if is_well else "stopping",
            version=__version__,
            models=list(service.models),
            running=loop.num_running,
            waiting=loop.num_waiting,
        )
        return JSONResponse(told.model_dump(), 200 if is_well else 503)

    @routes.get(
        "/metrics",
        tags=["server"],
        response_class=Response,
        responses={
            200: {
                "content": {"text/plain": {"schema": {"type": "string"}}},
                "description": "The numbers.",
            },
            **responses(401),
        },
    )
    async def numbers() -> Response:
        """Give Prometheus its numbers."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return routes


def _files() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for package in reversed(_FOLDERS):  # the page's own files win
        folder = Path(str(resources.files(package).joinpath("static")))
        if folder.is_dir():
            kept = [path for path in folder.iterdir() if path.suffix in _KINDS and path.is_file()]
            found |= {path.name: path for path in kept}
    return found


def _file(files: dict[str, Path], name: str) -> Response:
    path = files.get(name)
    if path is None:
        raise ApiError(404, f"there is no file {name!r}", code="not_found")
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": "no-cache"}
    return FileResponse(path, media_type=_KINDS[path.suffix], headers=headers)
