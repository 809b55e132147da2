"""Errors as clients see them: a status, and a body in the shape of OpenAI's.

Every answer that is not the one asked for has this body, whoever raised it. Knows no routes.
"""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from bestk.errors import (
    BestKError,
    MissingExtraError,
    OptionError,
    OutOfMemoryError,
    PromptError,
    SchemaError,
)
from bestk.server.handle import BusyError, StoppingError

logger = logging.getLogger("bestk.server")

_LONGEST = 1000  # characters of a message: it may repeat what the client sent
CLIENT_CLOSED = 499  # nobody reads it; it tells the logs and the metrics what happened


class ErrorDetail(BaseModel):
    """What went wrong, in OpenAI's terms."""

    message: str = Field(description="The value, the rule and the way out, in one line.")
    type: str = Field(description="The kind of error, such as invalid_request_error.")
    param: str | None = Field(default=None, description="The field that is to blame.")
    code: str | None = Field(default=None, description="A name for programs to look at.")


class ErrorBody(BaseModel):
    """Every error has this body."""

    error: ErrorDetail


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        message = message if len(message) <= _LONGEST else message[: _LONGEST - 1] + "…"
        self.status, self.headers = status, headers
        self.detail = ErrorDetail(message=message, type=kind, param=param, code=code)

    def body(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {"error": self.detail.model_dump()}

    def response(self) -> JSONResponse:
        """Return the answer."""
        return JSONResponse(self.body(), self.status, self.headers)


# What the OpenAPI document says of the answers that are errors.
DESCRIPTIONS = {
    400: "The request breaks a rule, which the message names.",
    401: "The bearer token is missing or wrong.",
    404: "There is no such model, file or page.",
    405: "The path does not take this method.",
    413: "The body is too large.",
    429: "Too many searches wait; Retry-After says when to come back.",
    500: "The model failed.",
    503: "The server is shutting down, or out of memory.",
}


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe errors for the OpenAPI document."""
    described: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        described[status] = {"model": ErrorBody, "description": DESCRIPTIONS[status]}
        if status in (429, 503):
            described[status]["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
            }
    return described


def api_error(error: BaseException) -> ApiError:
    """Turn any error into an answer."""
    message = " ".join(str(error).split())
    if isinstance(error, ApiError):
        return error
    if isinstance(error, BusyError):
        wait = {"Retry-After": str(error.retry_after)}
        return ApiError(429, message, kind="rate_limit_error", code="queue_full", headers=wait)
    if isinstance(error, StoppingError):
        wait = {"Retry-After": "5"}
        return ApiError(503, message, kind="server_error", code="shutting_down", headers=wait)
    if isinstance(error, OutOfMemoryError):
        wait = {"Retry-After": "5"}
        return ApiError(503, message, kind="server_error", code="out_of_memory", headers=wait)
    if isinstance(error, MissingExtraError):
        return ApiError(400, f"not available on this server: {message}", code="not_available")
    if isinstance(error, OptionError | PromptError | SchemaError):
        return ApiError(400, message)
    if isinstance(error, BestKError):
        return ApiError(500, message, kind="server_error", code="model_error")
    return ApiError(500, "the server failed: see its log", kind="server_error", code="internal")


def install(app: FastAPI) -> None:
    """Give every error of an app the one shape."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        return api_error(error).response()

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        logger.error("a request failed", exc_info=error)
        return api_error(error).response()

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return _invalid(error).response()

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        codes = {404: "not_found", 405: "method_not_allowed"}
        message = f"{request.method} {request.url.path}: {error.detail}"
        headers = dict(error.headers) if error.headers else None
        status = error.status_code
        return ApiError(status, message, code=codes.get(status), headers=headers).response()

    app.add_exception_handler(ApiError, known)
    app.add_exception_handler(BestKError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)


def _invalid(error: RequestValidationError) -> ApiError:
    """Word the first thing that is wrong with a body."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        why = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is not JSON: {why}", code="invalid_json")
    where = ".".join(str(part) for part in first["loc"] if part != "body" and part != "function")
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Exception):  # a message of ours
        return ApiError(400, str(cause), param=where or None)
    what = f"{where}: " if where else ""
    return ApiError(400, f"{what}{first['msg']}", param=where or None)
