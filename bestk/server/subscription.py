"""Waits for searches on the side of the web server: results, updates, and clients that go away.

The loop's thread only ever sets an event here. A client that disconnects has its search cancelled,
whatever it was waiting for. Knows asyncio and handles, no routes and no formats.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from bestk.result import SearchResult
from bestk.server.errors import CLIENT_CLOSED, ApiError
from bestk.server.handle import Handle, SearchCall, SearchProgress
from bestk.server.loop import SearchLoop

KEEP_ALIVE = 5.0  # seconds of silence after which a stream says that it is alive


class Subscription:
    """The searches of one HTTP request."""

    def __init__(self, loop: SearchLoop, calls: Sequence[SearchCall]) -> None:
        self.loop = loop
        self._event = asyncio.Event()
        self._over: set[int] = set()  # searches of which nothing more is to be told
        thread = asyncio.get_running_loop()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
                thread.call_soon_threadsafe(self._event.set)

        self.handles = [Handle(call, notify) for call in calls]
        try:
            for handle in self.handles:
                loop.submit(handle)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Drop what is not over."""
        for handle in self.handles:
            if not handle.is_over:
                self.loop.cancel(handle)

    async def accepted(self, request: Request) -> None:
        """Wait until the loop has looked at every search; raise if one is bad."""
        await self._until(
            request,
            lambda: all(handle.request is not None or handle.is_over for handle in self.handles),
        )
        self._raise_errors()

    async def results(self, request: Request) -> list[SearchResult]:
        """Wait for all results; raise if a search failed or the client has gone."""
        await self._until(
            request,
            lambda: (
                all(handle.is_over for handle in self.handles)
                or any(handle.error for handle in self.handles)
            ),
        )
        self._raise_errors()
        return [handle.result for handle in self.handles if handle.result is not None]

    async def updates(self) -> AsyncIterator[StreamUpdate]:
        """Yield what happens to the searches until all are over; empty news after some silence."""
        positions: dict[str, int | None] = {}
        try:
            while True:
                for number, handle in enumerate(self.handles):
                    if number not in self._over:
                        for update in self._of(number, handle, positions):
                            yield update
                if len(self._over) == len(self.handles):
                    return
                if not await self._changed(KEEP_ALIVE):
                    yield StreamUpdate(number=0)
        finally:
            self.cancel()

    def drop(self, number: int) -> None:
        """Follow a handle no longer: its client has enough."""
        self._over.add(number)
        self.loop.cancel(self.handles[number])

    def _of(
        self, number: int, handle: Handle, positions: dict[str, int | None]
    ) -> list[StreamUpdate]:
        is_over = handle.is_over  # before the news are taken: none can follow
        found = []
        place = self.loop.position(handle)
        if place is not None and place != positions.get(handle.id):
            positions[handle.id] = place
            found.append(StreamUpdate(number=number, position=place))
        progress = handle.take()
        if progress is not None:
            found.append(StreamUpdate(number=number, progress=progress))
        if is_over:
            self._over.add(number)
            found.append(StreamUpdate(number=number, result=handle.result, error=handle.error))
        return found

    async def _changed(self, timeout: float | None) -> bool:
        try:
            await asyncio.wait_for(self._event.wait(), timeout)
        except TimeoutError:
            return False
        self._event.clear()
        return True

    async def _until(self, request: Request, is_done: Callable[[], bool]) -> None:
        """Wait for something to be so; raise, the searches cancelled, if the client goes first."""
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
        for handle in self.handles:
            if handle.error is not None:
                self.cancel()
                raise handle.error


@dataclass(frozen=True, kw_only=True)
class StreamUpdate:
    """One thing that happened to a handle of a request, by its number; nothing: time has passed."""

    number: int
    position: int | None = None
    progress: SearchProgress | None = None
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
