"""The thread that owns the models: an inbox, and the scheduler's steps.

Prompts are encoded and grammars compiled on threads of their own, so none of it holds up a step.
Every call here but the threads' own is safe from any thread. Knows nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bestk.constraints import compile_apart
from bestk.engine.request import Request, Update
from bestk.engine.scheduler import Scheduler
from bestk.errors import BestKError
from bestk.server.handle import BusyError, Handle, StoppingError
from bestk.server.limits import Limits

logger = logging.getLogger("bestk.server")

# How much the last search's time weighs in the mean that Retry-After is made of.
_NEWEST = 0.1


class SearchLoop:
    """Runs searches on one thread; `submit` gives it one, its handle tells how it goes."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        on_end: Callable[[Handle], None] = lambda handle: None,
    ) -> None:
        self.limits = limits or Limits()
        self.on_end = on_end
        self.scheduler = Scheduler(self.limits.searches, serves=True)
        self._wake = threading.Condition()  # its lock may be taken again by who holds it
        self._arrived: deque[Handle] = deque()  # not ready yet, or not yet with the scheduler
        # Grammars have a thread to themselves: who brings none does not wait for them.
        self._preparing = {
            has_grammar: ThreadPoolExecutor(1, f"bestk-prepare-{int(has_grammar)}")
            for has_grammar in (False, True)
        }
        self._encoding = threading.Lock()  # tokenizers and evaluations serve one at a time
        self._waiting: deque[Handle] = deque()  # in the order that they begin
        self._handles: dict[Request, Handle] = {}  # of all that are not over
        self._mean_seconds = 1.0
        self._stop_at: float | None = None  # what runs then is broken off
        self._is_stuck: BaseException | None = None
        self._thread = threading.Thread(target=self.run, name="bestk-loop", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, handle: Handle) -> None:
        """Put a search into the queue, or raise at once if that is full or the loop is stopping."""
        with self._wake:
            if self._is_stuck is not None:
                raise StoppingError("the server has failed, its log says why: it must be restarted")
            if self._stop_at is not None:
                raise StoppingError("the server is shutting down: try another, or later")
            self._check_room()
            self._arrived.append(handle)
            self._preparing[handle.call.config.has_grammar].submit(self._prepare, handle)

    def cancel(self, handle: Handle) -> None:
        """Drop a search whose client has gone; what it held is free after the step under way."""
        with self._wake:
            handle.is_cancelled = True
            self._wake.notify_all()

    def position(self, handle: Handle) -> int | None:
        """Count the searches that will begin before this one, None if it has begun or is over."""
        with self._wake:
            queue = [*self._waiting, *self._arrived]
        return queue.index(handle) if handle in queue else None

    def drain(self, grace: float) -> None:
        """Take no more searches, let those that are there end within `grace` seconds, then stop."""
        with self._wake:
            self._stop_at = min(self._stop_at or math.inf, time.monotonic() + grace)
            running, waiting = self.num_running, self.num_waiting
            self._wake.notify_all()
        if running or waiting:
            logger.warning(
                "shutting down: %d searches run and %d wait; they have %g s",
                running,
                waiting,
                grace,
            )

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread to end after `drain`; return whether it did."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def num_waiting(self) -> int:
        """Count the searches that have not begun."""
        return len(self._arrived) + len(self._waiting)

    @property
    def num_running(self) -> int:
        """Count the searches that have begun and are not over."""
        return len(self._handles) - len(self._waiting)

    @property
    def is_alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive() and self._is_stuck is None

    @property
    def is_stopping(self) -> bool:
        """Whether searches are refused because the loop is to stop."""
        return self._stop_at is not None

    def run(self) -> None:
        """Work until told to stop: what the thread does."""
        try:
            while self._wait():
                self._admit()
                self._drop_cancelled()
                updates = self.scheduler.step()
                self._note_begun()
                for update in updates:
                    self._tell(update)
        except BaseException as error:  # the last resort: nobody may wait for ever
            logger.exception("the loop has stopped")
            self._is_stuck = error
            self._break_off(error)
        finally:
            for threads in self._preparing.values():
                threads.shutdown(wait=False, cancel_futures=True)

    def _check_room(self) -> None:
        """Refuse a search that could neither begin nor wait."""
        limits, running, waiting = self.limits, self.num_running, self.num_waiting
        if running + waiting >= limits.searches + limits.queue:
            rounds = math.ceil(waiting / limits.searches)
            retry_after = max(1, min(60, round(rounds * self._mean_seconds)))
            raise BusyError(
                f"{running} searches run and {waiting} wait, of {limits.searches} that may run "
                f"and {limits.queue} that may wait: try again in {retry_after} s",
                retry_after,
            )

    def _wait(self) -> bool:
        """Wait for something to do; return whether to go on."""
        with self._wake:
            while not (self._handles or any(one.request for one in self._arrived)):
                if self._stop_at is not None and not self._arrived:
                    self.scheduler.close()
                    return False
                left = math.inf if self._stop_at is None else self._stop_at - time.monotonic()
                if left <= 0:
                    break
                self._wake.wait(None if left == math.inf else left)
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            self._break_off(None)
            return False
        return True

    def _prepare(self, handle: Handle) -> None:
        """Make a search ready, or refuse what is wrong with it."""
        request, failure = None, None
        try:
            call = handle.call
            if handle.is_cancelled:
                raise StoppingError("the client has gone")  # to nobody
            self.limits.check_text(call.prompt, call.tools)
            for texts in (call.begin, list(call.config.stop), list(call.config.must_include)):
                self.limits.check_text(texts)
            compile_apart(call.config, call.lm, self.limits.grammar)
            with self._encoding:
                request = call.request()
            self.limits.check_prompt(request.length)
        except Exception as error:
            if not isinstance(error, BestKError):
                logger.exception("a search could not be prepared")
            failure = error
        with self._wake:
            if handle not in self._arrived:
                return  # the loop has been broken off
            if failure is None and request is not None:
                handle.accept(request)
            else:
                self._arrived.remove(handle)
            self._wake.notify_all()
        if failure is not None:
            self._over(handle, failure)

    def _admit(self) -> None:
        """Give the scheduler the searches that are ready."""
        refused: list[tuple[Handle, Exception]] = []
        with self._wake:
            for handle in [one for one in self._arrived if one.request is not None]:
                assert handle.request is not None
                self._arrived.remove(handle)
                self._waiting.append(handle)
                self._handles[handle.request] = handle
                try:
                    self.scheduler.add(handle.request)
                except Exception as error:  # a model is tried out with the first images
                    refused.append((handle, error))
        for handle, failure in refused:
            self._over(handle, failure)

    def _drop_cancelled(self) -> None:
        for request, handle in list(self._handles.items()):
            if handle.is_cancelled:
                self.scheduler.cancel(request)
                self._over(handle, None)

    def _note_begun(self) -> None:
        """Note which searches have begun, and tell the others that they moved up."""
        begun = [h for h in self._waiting if h.request and not self.scheduler.is_waiting(h.request)]
        with self._wake:
            for handle in begun:
                self._waiting.remove(handle)
        for handle in begun:
            handle.begun = handle.begun or time.monotonic()
        for handle in self._waiting if begun else ():
            handle.notify()

    def _tell(self, update: Update) -> None:
        """Pass on what happened to a search."""
        handle = self._handles.get(update.request)
        if handle is None:
            return
        if update.row is not None:
            handle.look(update.row)
            return
        if update.error is not None:
            if not isinstance(update.error, BestKError):
                logger.error("a search failed", exc_info=update.error)
        elif update.result is not None:
            handle.finish(update.result)
        self._over(handle, update.error)

    def _over(self, handle: Handle, error: BaseException | None) -> None:
        """Let go of a search: it has a result, an error, or nobody who waits for it."""
        if error is not None:
            handle.fail(error)
        if handle.request is not None:
            self._handles.pop(handle.request, None)
            with self._wake:
                if handle in self._waiting:
                    self._waiting.remove(handle)
        if handle.begun is not None:
            seconds = time.monotonic() - handle.begun
            self._mean_seconds += _NEWEST * (seconds - self._mean_seconds)
        self.on_end(handle)

    def _break_off(self, error: BaseException | None) -> None:
        """Tell every client that is still waiting that there will be no result."""
        with self._wake:
            handles = [*self._handles.values(), *self._arrived]
            self._arrived.clear()
        for request, handle in self._handles.items():
            with contextlib.suppress(Exception):  # whatever has failed may fail again
                partial = self.scheduler.partial(request)
                handle.expanded = handle.expanded if partial is None else partial.cost.expanded
        self.scheduler.close()
        for handle in handles:
            spent = f"{handle.expanded} of {handle.call.config.total_budget} expansions were done"
            stopping = StoppingError(f"the server is shutting down: {spent}; try again later")
            self._over(handle, error or stopping)
