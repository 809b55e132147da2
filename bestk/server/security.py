"""What stands before the routes: the token, the size of bodies, headers that browsers obey.

Plain ASGI, so that streams pass through untouched. Knows no search.
"""

from __future__ import annotations

import hmac
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bestk.server.errors import ApiError

# These tell the models' names at most; the page asks for the token itself.
_OPEN = ("/", "/health", "/openapi.json", "/docs")
_OPEN_FOLDER = "/static/"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

# Scripts and styles come from this server alone, and nothing else is loaded.
PAGE_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Headed:
    """Gives every answer the headers that keep browsers from guessing."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self.app(scope, receive, headed if scope["type"] == "http" else send)


class Guarded:
    """Asks for the token, where the server has one."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and not self._may_pass(scope):
            error = ApiError(
                401,
                "the bearer token is missing or wrong: send Authorization: Bearer TOKEN",
                kind="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        path = scope["path"]
        if path in _OPEN or path.startswith(_OPEN_FOLDER):
            return True
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        # Compared in constant time: how long it takes says nothing of the token.
        return kind.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode("latin-1"), self.token
        )


class Bounded:
    """Refuses bodies that are too large, announced or not, or of too many values to look at."""

    def __init__(self, app: ASGIApp, most: int, most_commas: int) -> None:
        self.app, self.most, self.most_commas = app, most, most_commas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self.most:
            error = ApiError(413, self._message(), code="body_too_large")
            await error.response()(scope, receive, send)
            return
        read = commas = 0
        is_read_fast = scope["path"] == "/v1/render"  # on a thread, and linear in bytes

        async def counted() -> Message:
            nonlocal read, commas
            message = await receive()
            body = message.get("body", b"")
            read, commas = read + len(body), commas + body.count(b",")
            if read > self.most:
                raise HTTPException(413, self._message())
            if commas > self.most_commas and not is_read_fast:
                raise HTTPException(
                    413, f"a body has at most {self.most_commas} commas on this server: send less"
                )
            return message

        await self.app(scope, counted, send)

    def _message(self) -> str:
        return f"a body has at most {self.most} bytes on this server: send less"


class HostChecked:
    """Answers only to the server's own names: a page elsewhere cannot point its name here."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and self._host(scope) not in self.hosts:
            message = f"this server answers to {', '.join(self.hosts)}: use one of these names"
            await ApiError(400, message, code="wrong_host").response()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _host(self, scope: Scope) -> str:
        """Return the name in the header; nothing where it is not a name, and a port or none."""
        given = Headers(scope=scope).getlist("host")
        found = (
            re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::\d{1,5})?", given[0].lower(), re.A)
            if len(given) == 1
            else None
        )
        return (found[1] or found[2]) if found else ""
