"""Waits for jobs on the side of the web server: results, news, and clients that go away.

The engine's thread only ever sets an event here. A client that disconnects has its job cancelled,
whatever it was waiting for. Knows asyncio and jobs, no routes and no formats.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from bestk.result import SearchResult
from bestk.server.engine import Engine
from bestk.server.errors import CLIENT_CLOSED, ApiError
from bestk.server.jobs import Job, Order, Progress

KEEP_ALIVE = 5.0  # seconds of silence after which a stream says that it is alive


class Following:
    """The jobs of one request."""

    def __init__(self, engine: Engine, orders: Sequence[Order]) -> None:
        self.engine = engine
        self._event = asyncio.Event()
        self._over: set[int] = set()  # jobs of which nothing more is to be told
        loop = asyncio.get_running_loop()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
                loop.call_soon_threadsafe(self._event.set)

        self.jobs = [Job(order, notify) for order in orders]
        try:
            for job in self.jobs:
                engine.submit(job)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Drop what is not over."""
        for job in self.jobs:
            if not job.is_over:
                self.engine.cancel(job)

    async def accepted(self, request: Request) -> None:
        """Wait until the engine has looked at every order; raise if one is bad."""
        await self._until(request, lambda: all(job.is_accepted or job.is_over for job in self.jobs))
        self._raise_errors()

    async def results(self, request: Request) -> list[SearchResult]:
        """Wait for all results; raise if a search failed or the client has gone."""
        await self._until(
            request,
            lambda: all(job.is_over for job in self.jobs) or any(job.error for job in self.jobs),
        )
        self._raise_errors()
        return [job.result for job in self.jobs if job.result is not None]

    async def news(self) -> AsyncIterator[News]:
        """Yield what happens to the jobs until all are over; empty news after some silence."""
        positions: dict[str, int | None] = {}
        try:
            while True:
                for number, job in enumerate(self.jobs):
                    if number not in self._over:
                        for news in self._of(number, job, positions):
                            yield news
                if len(self._over) == len(self.jobs):
                    return
                if not await self._changed(KEEP_ALIVE):
                    yield News(number=0)
        finally:
            self.cancel()

    def drop(self, number: int) -> None:
        """Follow a job no longer: its client has enough."""
        self._over.add(number)
        self.engine.cancel(self.jobs[number])

    def _of(self, number: int, job: Job, positions: dict[str, int | None]) -> list[News]:
        is_over = job.is_over  # before the news are taken: none can follow
        found = []
        place = self.engine.position(job)
        if place is not None and place != positions.get(job.id):
            positions[job.id] = place
            found.append(News(number=number, position=place))
        progress = job.take()
        if progress is not None:
            found.append(News(number=number, progress=progress))
        if is_over:
            self._over.add(number)
            found.append(News(number=number, result=job.result, error=job.error))
        return found

    async def _changed(self, timeout: float | None) -> bool:
        try:
            await asyncio.wait_for(self._event.wait(), timeout)
        except TimeoutError:
            return False
        self._event.clear()
        return True

    async def _until(self, request: Request, is_done: Callable[[], bool]) -> None:
        """Wait for something to be so; raise, the jobs cancelled, if the client goes first."""
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            while not is_done():
                changed = asyncio.ensure_future(self._changed(None))
                await asyncio.wait({gone, changed}, return_when=asyncio.FIRST_COMPLETED)
                await _stopped(changed)
                if gone.done() and not is_done():
                    raise ApiError(CLIENT_CLOSED, "the client has gone", code="client_closed")
        except BaseException:
            self.cancel()
            raise
        finally:
            await _stopped(gone)

    def _raise_errors(self) -> None:
        for job in self.jobs:
            if job.error is not None:
                self.cancel()
                raise job.error


@dataclass(frozen=True, kw_only=True)
class News:
    """One thing that happened to a job of a request, by its number; nothing: time has passed."""

    number: int
    position: int | None = None
    progress: Progress | None = None
    result: SearchResult | None = None
    error: BaseException | None = None


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stopped(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def in_thread(work: Callable[[], Any]) -> Any:
    """Do something slow without holding up the other clients."""
    waiting: Awaitable[Any] = asyncio.to_thread(work)
    return await waiting
