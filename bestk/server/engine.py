"""The engine: one thread that owns the models and runs all searches together.

Jobs wait in one bounded queue, first come first served. Those that run take turns step by step;
those of equal settings share lanes, which new ones join and finished ones leave at any step. Every
call here but the thread's own is safe from any thread. Knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from bestk.engine.many import check_prompts, is_out_of_memory, out_of_memory
from bestk.engine.run import Run
from bestk.errors import BestKError, OutOfMemoryError
from bestk.server.jobs import BusyError, Job, StoppingError
from bestk.server.limits import Limits
from bestk.server.turns import (
    LaneTurn,
    MethodTurn,
    RunTurn,
    Turn,
    best_k_config,
    needs_own_run,
)

logger = logging.getLogger("bestk.server")

# How much the last search's time weighs in the mean that Retry-After is made of.
_NEWEST = 0.1
# Captured lanes kept while nobody uses them: each holds the memory of a whole batch.
_KEPT = 2


class Engine:
    """Runs jobs on one thread; `submit` gives it one, `Job` tells how it goes."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        on_end: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self.limits = limits or Limits()
        self.on_end = on_end
        self._wake = threading.Condition()
        self._arrived: deque[Job] = deque()  # not looked at yet
        self._waiting: deque[Job] = deque()
        self._turns: dict[Hashable, Turn] = {}
        self._idle: dict[Hashable, Turn] = {}  # captured lanes that nobody uses
        self._mean_seconds = 1.0
        self._stop_at: float | None = None  # what runs then is broken off
        self._is_stuck: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="bestk-engine", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Put a job into the queue, or raise at once if that is full or the engine is stopping."""
        with self._wake:
            if self._is_stuck is not None:
                raise StoppingError("the server has failed, its log says why: it must be restarted")
            if self._stop_at is not None:
                raise StoppingError("the server is shutting down: try another, or later")
            self._check_room()
            self._arrived.append(job)
            self._wake.notify_all()

    def cancel(self, job: Job) -> None:
        """Drop a job whose client has gone; what it held is free after the step under way."""
        with self._wake:
            job.is_cancelled = True
            self._wake.notify_all()

    def position(self, job: Job) -> int | None:
        """Say how many jobs will begin before this one, None if it has begun or is over."""
        with self._wake:
            queue = [*self._waiting, *self._arrived]
        return queue.index(job) if job in queue else None

    def drain(self, grace: float) -> None:
        """Take no more jobs, let those that are there end within `grace` seconds, then stop."""
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
        """Wait for the thread to end after `drain`; say whether it did."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def num_waiting(self) -> int:
        """Count the jobs that have not begun."""
        return len(self._arrived) + len(self._waiting)

    @property
    def num_running(self) -> int:
        """Count the jobs that have begun and are not over."""
        return sum(len(turn.jobs) for turn in list(self._turns.values()))

    @property
    def is_alive(self) -> bool:
        """Say whether the thread works."""
        return self._thread.is_alive() and self._is_stuck is None

    @property
    def is_stopping(self) -> bool:
        """Say whether jobs are refused because the engine is to stop."""
        return self._stop_at is not None

    def _check_room(self) -> None:
        """Refuse a job that could neither begin nor wait."""
        limits, running, waiting = self.limits, self.num_running, self.num_waiting
        if running + waiting >= limits.searches + limits.queue:
            retry_after = self._retry_after()
            raise BusyError(
                f"{running} searches run and {waiting} wait, of {limits.searches} that may run "
                f"and {limits.queue} that may wait: try again in {retry_after} s",
                retry_after,
            )

    def _work(self) -> None:
        try:
            while self._wait():
                self._welcome()
                self._drop_cancelled()
                self._admit()
                for key, turn in list(self._turns.items()):
                    self._take_turn(key, turn)
        except BaseException as error:  # the last resort: nobody may wait for ever
            logger.exception("the engine has stopped")
            self._is_stuck = error
            self._break_off(error)

    def _wait(self) -> bool:
        """Wait for something to do; say whether to go on."""
        with self._wake:
            while not (self._arrived or self._waiting or self._turns):
                if self._stop_at is not None:
                    return False
                self._wake.wait()
        if self._must_end():
            self._break_off(None)
            return False
        return True

    def _must_end(self) -> bool:
        """Say whether what still runs must be broken off."""
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    def _welcome(self) -> None:
        """Look at the jobs that arrived: refuse what is wrong with them before they wait."""
        while self._arrived:
            job = self._arrived[0]
            try:
                job.accept(self._checked(job))
            except BestKError as error:
                self._over(job, error)
            except Exception as error:
                logger.exception("a search could not be prepared")
                self._over(job, error)
            with self._wake:
                self._arrived.popleft()
                if not job.is_over:
                    self._waiting.append(job)

    def _checked(self, job: Job) -> Any:
        """Return the prompt's ids, after all that can be checked without the model.

        A run is made to see that it can be, and let go: it has the memory of a whole search, which
        jobs that wait must not hold.
        """
        order = job.order
        config = best_k_config(order)
        ids = order.lm.encode(order.prompt)
        self.limits.check_prompt(len(ids))
        check_prompts(order.lm, [ids], order.config)
        if config is not None and needs_own_run(config):
            Run(order.lm, [order.prompt], config)
        return ids

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._waiting if job.is_cancelled]:
            with self._wake:
                self._waiting.remove(job)
            self._over(job, None)
        for turn in self._turns.values():
            for job in [job for job in turn.jobs if job.is_cancelled]:
                turn.drop(job)
                self._over(job, None)

    def _admit(self) -> None:
        """Let jobs begin in their order, and tell the others that the queue has moved."""
        before = len(self._waiting)
        self._admit_all()
        if len(self._waiting) < before:
            for job in self._waiting:
                job.nudge()

    def _admit_all(self) -> None:
        """Admit what fits; a job that must wait lets only those of other settings pass."""
        blocked: set[Hashable] = set()
        for job in list(self._waiting):
            if self.num_running >= self.limits.searches:
                return
            key = self._key(job)
            try:
                turn = None if key in blocked else self._turn_with_room(key, job)
            except Exception as error:  # no memory for it, or of a model asked what room it has
                if not isinstance(error, BestKError):
                    logger.exception("a search could not begin")
                with self._wake:
                    self._waiting.remove(job)
                self._over(job, error)
                continue
            if turn is None:
                blocked.add(key)
                continue
            with self._wake:
                self._waiting.remove(job)
                self._turns[key] = turn
                turn.admit(job)

    def _turn_with_room(self, key: Hashable, job: Job) -> Turn | None:
        """Find or make the turn that a job can begin in now; None: it has to wait."""
        turn = self._turns.get(key)
        if turn is None:
            turn = self._idle.pop(key, None)
            if turn is not None and not turn.fits(job):  # its lanes are for shorter prompts
                self._close(turn)
                turn = None
        turn = turn or self._new_turn(job)
        return turn if turn.fits(job) else None

    def _key(self, job: Job) -> Hashable:
        """Name the turn that a job belongs to: shared by equal settings, else its own."""
        config = best_k_config(job.order)
        if config is None or needs_own_run(config):
            return job.id
        return id(job.order.lm), config

    def _new_turn(self, job: Job) -> Turn:
        config = best_k_config(job.order)
        if config is None:
            return MethodTurn(self._must_end)
        if needs_own_run(config):
            return RunTurn(Run(job.order.lm, [job.order.prompt], config))
        return LaneTurn(job.order.lm, config, self.limits.searches)

    def _take_turn(self, key: Hashable, turn: Turn) -> None:
        jobs = list(turn.jobs)
        try:
            turn.step()
        except Exception as error:
            self._close(turn)
            del self._turns[key]
            self._recover(turn, error)
        else:
            if not turn.jobs:
                self._retire(key, turn)
        for job in jobs:
            if job.is_over:
                self._over(job, job.error)

    def _retire(self, key: Hashable, turn: Turn) -> None:
        """Close a turn that nobody uses, or keep it for the next job of its kind."""
        del self._turns[key]
        if not turn.is_worth_keeping:
            self._close(turn)
            return
        self._idle[key] = turn
        while len(self._idle) > _KEPT:
            self._close(self._idle.pop(next(iter(self._idle))))

    def _recover(self, turn: Turn, error: Exception) -> None:
        """Search again with fewer side by side where memory ran out; else tell the clients."""
        jobs, turn.jobs = turn.jobs, []
        can_shrink = len(jobs) > 1 or bool(self._idle)
        if is_out_of_memory(error) and can_shrink and isinstance(turn, LaneTurn):
            for idle in self._idle.values():
                self._close(idle)
            self._idle.clear()
            logger.warning("out of memory with %d searches side by side: freeing some", len(jobs))
            smaller = LaneTurn(turn.lm, turn.config, max(1, len(jobs) // 2))
            self._turns[id(turn.lm), turn.config] = smaller
            with self._wake:
                self._waiting.extendleft(reversed(jobs))
            return
        if not isinstance(error, BestKError):
            logger.error("a search failed", exc_info=error)
        for job in jobs:
            told: BaseException = error
            if is_out_of_memory(error) and not isinstance(error, BestKError):
                order = job.order
                told = OutOfMemoryError(out_of_memory(order.lm, order.config, 1, job.expanded))
            job.fail(told)

    def _over(self, job: Job, error: BaseException | None) -> None:
        """Let go of a job: it has a result, an error, or nobody who waits for it."""
        if error is not None:
            job.fail(error)
        if job.begun is not None:
            seconds = time.monotonic() - job.begun
            self._mean_seconds += _NEWEST * (seconds - self._mean_seconds)
        self.on_end(job)

    def _break_off(self, error: BaseException | None) -> None:
        """Tell every client that is still waiting that there will be no result."""
        jobs = [job for turn in self._turns.values() for job in turn.jobs]
        with self._wake:
            jobs += [*self._waiting, *self._arrived]
            self._waiting.clear()
            self._arrived.clear()
        for turn in (*self._turns.values(), *self._idle.values()):
            self._close(turn)
        self._turns.clear()
        self._idle.clear()
        for job in jobs:
            spent = f"{job.expanded} of {job.order.config.total_budget} expansions were done"
            stopping = StoppingError(f"the server is shutting down: {spent}; try again later")
            self._over(job, error or stopping)

    def _close(self, turn: Turn) -> None:
        """Free what a turn holds; a session that fails at its end must not end the engine."""
        try:
            turn.close()
        except Exception:
            logger.exception("a turn could not be closed")

    def _retry_after(self) -> int:
        """Guess when there will be room, from how long searches took of late."""
        rounds = math.ceil(self.num_waiting / self.limits.searches)
        return max(1, min(60, round(rounds * self._mean_seconds)))
