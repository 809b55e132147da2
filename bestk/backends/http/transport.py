"""JSON over HTTP that outlasts trouble: many requests at once, each repeated until it succeeds.

A request that fails for a reason that may pass (no connection, no answer in time, 429, 5xx, an
answer that makes no sense) is sent again, later and later, until `patience` seconds have gone by
without an answer; a server that was never reached at all is given up sooner. Callers see plain
functions; all requests run on one event loop in a thread of its own.
Knows HTTP; knows nothing of what is said over it.
"""

from __future__ import annotations

import asyncio
import email.utils
import functools
import random
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx2

from bestk.errors import ServerError

T = TypeVar("T")

_FIRST_PAUSE = 0.1  # seconds; each pause may be twice as long as the one before
_LONGEST_PAUSE = 5.0
# Client errors that say "not now" rather than "not so": timeout, conflict, too early, too many.
_PASSING = frozenset({408, 409, 425, 429})
_NEVER = frozenset({501, 505})  # server errors that no waiting cures
_FIRST_CONTACT = 10.0  # patience with a server that nobody has seen yet: its address may be wrong
_MALFORMED_TRIES = 4  # a server that answers, but never as it should, is given up sooner


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How to reach a server, and how long to try."""

    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 120.0  # seconds that one request may take
    patience: float = 120.0  # seconds without an answer after which a server is given up
    num_connections: int = 8


class MalformedAnswer(Exception):
    """An answer that is not what was asked for; it may be by accident, so it is asked for again."""


class Refusal(ServerError):
    """A server understood and said no."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        hint = ": pass api_key=, or set BESTK_API_KEY" if status in {401, 403} else ""
        super().__init__(f"{url} answers {status}, {reason}{hint}")
        self.status = status
        self.reason = reason


class Transport:
    """Requests to one server."""

    def __init__(self, url: str, connection: Connection) -> None:
        self.url = url
        self.connection = connection
        self._loop = _Loop()
        self._client = httpx2.AsyncClient(
            base_url=url,
            headers=dict(connection.headers),
            timeout=connection.timeout,
            limits=httpx2.Limits(max_keepalive_connections=connection.num_connections),
            follow_redirects=True,
            # Before every request, one that follows a redirect too.
            event_hooks={"request": [functools.partial(_stay, url)]},
        )
        self._has_answered = False
        # Not the client's own limit: waiting for a turn must not count as waiting for an answer.
        self._turns = asyncio.Semaphore(connection.num_connections)
        # Runs when the transport is collected, or at the end of the program.
        self.close = weakref.finalize(self, self._loop.close, self._client.aclose)

    def get(self, path: str) -> Any:
        """Return what a path holds."""
        return self._loop.run(self._until_answered("GET", path, None, lambda answer: answer))

    def post(self, path: str, body: Any, read: Callable[[Any], T]) -> T:
        """Send one body and return what `read` makes of the answer."""
        return self.post_all(path, [body], [read])[0]

    def post_all(
        self, path: str, bodies: Sequence[Any], reads: Sequence[Callable[[Any], T]]
    ) -> list[T]:
        """Send bodies side by side; `reads` may raise `MalformedAnswer` to have one sent again."""

        async def all_of_them() -> list[T]:
            asked = [
                asyncio.create_task(self._until_answered("POST", path, body, read))
                for body, read in zip(bodies, reads, strict=True)
            ]
            try:
                return list(await asyncio.gather(*asked))
            finally:
                for task in asked:
                    task.cancel()
                await asyncio.gather(*asked, return_exceptions=True)

        return self._loop.run(all_of_them())

    async def _until_answered(
        self, method: str, path: str, body: Any, read: Callable[[Any], T]
    ) -> T:
        trouble = _Trouble(self.url, self.connection)
        while True:
            try:
                async with self._turns:
                    response = await self._client.request(method, path, json=body)
                self._has_answered = True
                return _understood(read, _content(self.url, response))
            except httpx2.TooManyRedirects as error:
                raise ServerError(f"{self.url} redirects in a circle: check the address") from error
            except (httpx2.TransportError, httpx2.DecodingError, _NotNow, MalformedAnswer) as error:
                await asyncio.sleep(trouble.pause(error, self._patience()))

    def _patience(self) -> float:
        patience = self.connection.patience
        return patience if self._has_answered else min(patience, _FIRST_CONTACT)


async def _stay(url: str, request: httpx2.Request) -> None:
    """Refuse to take a prompt and headers to a server that nobody named."""
    here, there = _origin(httpx2.URL(url)), _origin(request.url)
    if there != here:
        raise ServerError(
            f"{here} redirects to {there}, another server: give that address if it is right"
        )


def _origin(url: httpx2.URL) -> str:
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    return f"{url.scheme}://{url.host}:{port}"


class _NotNow(Exception):
    """The server asks to come back later, perhaps saying when."""

    def __init__(self, status: int, reason: str, after: float | None) -> None:
        super().__init__(f"{status}, {reason}")
        self.after = after


class _Trouble:
    """What has gone wrong with one request so far, and how long to wait before the next try."""

    def __init__(self, url: str, connection: Connection) -> None:
        self.url = url
        self.connection = connection
        self.since: float | None = None
        self.times = 0
        self.malformed = 0

    def pause(self, error: Exception, patience: float) -> float:
        """Return the seconds to wait, or give up."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        self.times += 1
        self.malformed += isinstance(error, MalformedAnswer)
        if self.malformed >= _MALFORMED_TRIES:
            raise ServerError(f"{self.url} {error}") from error
        left = patience - (now - self.since)
        asked = error.after if isinstance(error, _NotNow) else None
        if left <= 0 or (asked is not None and asked > left):
            raise ServerError(self._story(error, patience)) from error
        # Half of the pause is left to chance, so that requests that failed together spread out.
        longest = min(_FIRST_PAUSE * 2.0 ** (self.times - 1), _LONGEST_PAUSE)
        pause = longest * random.uniform(0.5, 1.0)
        return min(max(pause, asked or 0.0), max(left, 0.01))

    def _story(self, error: Exception, patience: float) -> str:
        tries = f"{self.times} time{'s' if self.times > 1 else ''}"
        if isinstance(error, httpx2.TimeoutException) and not isinstance(
            error, httpx2.ConnectTimeout
        ):
            return (
                f"{self.url} was asked {tries} and did not answer within "
                f"timeout={self.connection.timeout:g} seconds: raise it, or ask for less at once "
                "(prefixes_per_request)"
            )
        what = str(error).strip() or type(error).__name__
        return (
            f"{self.url} was asked {tries} and gave no answer for "
            f"{patience:g} seconds ({what}): see whether the server runs, or wait "
            "longer with patience="
        )


def _content(url: str, response: httpx2.Response) -> Any:
    status = response.status_code
    if status in _PASSING or (status >= 500 and status not in _NEVER):
        raise _NotNow(status, _reason(response), _retry_after(response))
    if status >= 400:
        raise Refusal(url, status, _reason(response))
    try:
        return response.json()
    except (ValueError, RecursionError):
        start = response.text[:60].replace("\n", " ")
        raise MalformedAnswer(f"answers with no JSON: {start!r}") from None


def _understood(read: Callable[[Any], T], content: Any) -> T:
    """Read an answer; what is not where it should be makes it malformed."""
    try:
        return read(content)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        shown = repr(content)[:120]
        raise MalformedAnswer(
            f"answers in a form that is not known ({type(error).__name__}: {error}): {shown}"
        ) from error


def _reason(response: httpx2.Response) -> str:
    """Find the server's own words; each server puts them somewhere else."""
    try:
        content = response.json()
    except (ValueError, RecursionError):
        content = None
    found: Any = content
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    text = found if isinstance(found, str) else response.text
    return " ".join(text.split())[:300] or response.reason_phrase


def _retry_after(response: httpx2.Response) -> float | None:
    """Read how long to wait: a number of seconds, or a date."""
    given = response.headers.get("retry-after")
    if given is None:
        return None
    try:
        return max(float(given), 0.0)
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(given).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


class _Loop:
    """An event loop in a thread of its own, started when it is first needed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; Ctrl-C in the caller cancels it."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="bestk-http", daemon=True
                )
                self._thread.start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, farewell: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one last coroutine and end the thread."""
        if self._thread is None:
            self._loop.close()
        elif self._thread is threading.current_thread():
            self._loop.stop()  # collected by the loop itself, which cannot wait for itself
        else:
            self.run(farewell())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
