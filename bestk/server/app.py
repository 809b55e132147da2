"""The web application: routes, guards and the OpenAPI document, put together.

Knows which parts there are; what each does is in its own module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from bestk.constraints.allowed import Allowed
from bestk.constraints.trie import Trie
from bestk.lm.language_model import LanguageModel
from bestk.server import (
    docs_page,
    errors,
    openai_api,
    pages,
    render_api,
    responses_api,
    search_api,
)
from bestk.server.limits import Limits
from bestk.server.loop import SearchLoop
from bestk.server.metrics import Measured, Metrics
from bestk.server.security import Bounded, Guarded, Headed, HostChecked
from bestk.server.service import Service
from bestk.version import __version__

_ABOUT = """A large, ranked, duplicate-free set of good and different texts from a language model,
by best-k search. The OpenAI endpoints work with OpenAI's clients; `/v1/search` tells everything."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may use a server."""

    token: str | None = None
    cors_origins: Sequence[str] = ()
    hosts: tuple[str, ...] = ()  # names that it answers to; any unless given


def create_app(
    models: Mapping[str, LanguageModel],
    limits: Limits | None = None,
    access: Access | None = None,
    rerankers: Mapping[str, Any] | None = None,
    tries: Mapping[str, Trie] | None = None,
) -> FastAPI:
    """Make the application; its loop is `app.state.loop`, which somebody must start."""
    access, metrics = access or Access(), Metrics()
    loop = SearchLoop(limits, on_end=metrics.search_ended)
    metrics.watch(loop)
    allowed = {name: Allowed(trie) for name, trie in (tries or {}).items()}
    service = Service(models=models, loop=loop, rerankers=rerankers or {}, tries=allowed)
    app = FastAPI(
        title="bestk", version=__version__, description=_ABOUT, docs_url=None, redoc_url=None
    )
    app.state.loop = loop
    errors.install(app)
    app.include_router(openai_api.router(service))
    app.include_router(responses_api.router(service))
    app.include_router(search_api.router(service, needs_token=access.token is not None))
    app.include_router(render_api.router(service))
    app.include_router(pages.router(service, metrics))
    docs_page.install(app)
    _document(app, has_token=access.token is not None)
    _guard(app, loop.limits, access, metrics)
    return app


def _guard(app: FastAPI, limits: Limits, access: Access, metrics: Metrics) -> None:
    """Put what every request passes before the routes; the last added comes first."""
    app.add_middleware(Bounded, most=limits.body_bytes, most_commas=limits.body_commas)
    if access.token is not None:
        app.add_middleware(Guarded, token=access.token)
    if access.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(access.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    if access.hosts:
        app.add_middleware(HostChecked, hosts=access.hosts)
    app.add_middleware(Headed)
    app.add_middleware(Measured, metrics=metrics)


def _document(app: FastAPI, *, has_token: bool) -> None:
    """Make the OpenAPI document tell what is so: bad input is a 400, and a token may be needed."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = make()
            for path in document["paths"].values():
                for operation in path.values():
                    operation["responses"].pop("422", None)
            for left_over in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(left_over, None)
            if has_token:
                scheme = {"type": "http", "scheme": "bearer"}
                document["components"]["securitySchemes"] = {"bearer": scheme}
                document["security"] = [{"bearer": []}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
