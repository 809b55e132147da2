"""`POST /v1/render`: a saved result, or a graph, as one HTML file that opens offline."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Body
from fastapi.responses import HTMLResponse, Response

from bestk.errors import SchemaError
from bestk.result import SearchResult
from bestk.server.errors import responses
from bestk.server.service import Service
from bestk.server.subscription import in_thread
from bestk.viz.files import drawn
from bestk.viz.graph import FORMAT, FORMAT_VERSION, Graph
from bestk.viz.html import render, to_html

_ABOUT = 'A result with its tree, as `/v1/search` gives it with `tree`; or `{"graph": …}`.'


def router(service: Service) -> APIRouter:
    """Make the route."""
    routes = APIRouter(prefix="/v1")

    @routes.post(
        "/render",
        tags=["search"],
        response_class=Response,
        responses={
            200: {
                "description": "The page.",
                "content": {"text/html": {"schema": {"type": "string"}}},
            },
            **responses(400, 401, 413),
        },
    )
    async def draw(body: dict[str, Any] = Body(description=_ABOUT)) -> Response:  # noqa: B008
        """Draw a search as a page of its own, to be saved."""
        page = await in_thread(lambda: _page(service, body))
        headers = {"Content-Disposition": 'attachment; filename="bestk.html"'}
        return HTMLResponse(page, headers=headers)

    return routes


def _page(service: Service, body: dict[str, Any]) -> str:
    if "graph" in body:
        return drawn(lambda: render(_graph(body["graph"])))
    result = SearchResult.from_json(body)
    service.limits.check(result.config)
    return drawn(lambda: to_html(result))


def _graph(graph: Any) -> Graph:
    if not isinstance(graph, dict) or graph.get("format") != FORMAT:
        raise SchemaError(f"a graph must have format {FORMAT!r}")
    if graph.get("version") != FORMAT_VERSION:
        raise SchemaError(f"a graph must have version {FORMAT_VERSION}")
    return graph
