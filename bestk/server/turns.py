"""What takes turns on the model: searches of one setting in lanes, single searches, whole methods.

A turn is one step, so that no search waits for another to end; only other methods run whole, unless
their client leaves. Knows jobs and how to run them; who goes next is the engine's business.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from bestk.api import best_first_config
from bestk.baselines.base import broken_off_when
from bestk.baselines.methods import check_method, run_method
from bestk.config import SearchConfig
from bestk.core.best_k import Step
from bestk.engine.many import auto_batch_size, stop_rules
from bestk.engine.open_lanes import OpenLanes
from bestk.engine.run import Run
from bestk.errors import ModelError
from bestk.lm.language_model import LanguageModel
from bestk.server.jobs import BEST_K, Job, Order

# Best-k search under the names of the paper: a scoring in place of the settings' own.
_SCORINGS = {"bks_mean": "mean", "bks_last": "last"}


class Turn(abc.ABC):
    """Jobs that run together."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    @abc.abstractmethod
    def fits(self, job: Job) -> bool:
        """Say whether a job can begin now."""

    @abc.abstractmethod
    def step(self) -> None:
        """Do one step of every job; jobs that are over leave `jobs`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop everything and free its memory."""

    @property
    def is_worth_keeping(self) -> bool:
        """Say whether something was made that the next job of this kind would have to make."""
        return False

    def admit(self, job: Job) -> None:
        """Take a job that fits; it begins with the next step."""
        self.jobs.append(job)
        job.begin()

    def drop(self, job: Job) -> None:
        """Stop a job whose client has gone."""
        self.jobs.remove(job)


class LaneTurn(Turn):
    """Searches of one setting that share lanes."""

    def __init__(self, lm: LanguageModel, config: SearchConfig, most: int) -> None:
        super().__init__()
        self.lm, self.config, self.most = lm, config, most
        self.open: OpenLanes | None = None
        self._gone: set[str] = set()
        self._come: dict[str, Any] = {}

    @property
    def is_worth_keeping(self) -> bool:
        lanes = None if self.open is None else self.open.lanes
        return lanes is not None and lanes.graphs is not None

    def fits(self, job: Job) -> bool:
        if self.open is None:
            rules = stop_rules(self.lm, self.config)
            most = min(
                self.most, auto_batch_size(self.lm, self.config, [job.prompt_ids], self.most)
            )
            self.open = OpenLanes(self.lm.backend, self.config, most, rules)
        return self.open.fits(job.prompt_ids, len(self._come) - len(self._gone))

    def admit(self, job: Job) -> None:
        super().admit(job)
        self._come[job.id] = job.prompt_ids

    def drop(self, job: Job) -> None:
        super().drop(job)
        if self._come.pop(job.id, None) is None:
            self._gone.add(job.id)

    def step(self) -> None:
        lanes = self.open
        if lanes is None:  # all for whom this was made have left
            return
        if self._gone or self._come:
            fresh = self._come
            lanes.change(self._gone, fresh)
            self._gone, self._come = set(), {}
            for job in self.jobs:
                if job.id in fresh:
                    job.look(lanes.searches, lanes.rows[job.id])
        if not self.jobs:
            return
        late = [job for job in self.jobs if job.is_late()]
        lanes.searches.time_out(lanes.rows[job.id] for job in late)
        if lanes.searches.is_running():
            lanes.advance(is_watched=any(self._is_watched(job) for job in self.jobs))
        ended = set(lanes.ended())
        for job in list(self.jobs):
            row = lanes.rows[job.id]
            if job.id in ended:
                self._end(job, row)
                self.drop(job)
            else:
                job.look(lanes.searches, row)

    def close(self) -> None:
        if self.open is not None:
            self.open.close()
        self.open = None
        self._gone, self._come = set(), {}

    def _is_watched(self, job: Job) -> bool:
        """Say whether every step counts; the server's own limit of time is not that fine."""
        return job.order.is_followed or job.order.config.timeout is not None

    def _end(self, job: Job, row: int) -> None:
        assert self.open is not None
        searches = self.open.searches
        complaint = searches.complaint({row: 0})
        if complaint is None:
            job.end(searches, row)
        else:
            job.fail(ModelError(complaint))


class RunTurn(Turn):
    """One search with rules or shapers of its own."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self._steps: Iterator[Step] | None = None

    def fits(self, job: Job) -> bool:
        return not self.jobs

    def step(self) -> None:
        if not self.jobs:
            return
        (job,) = self.jobs
        if self._steps is None:
            self._steps = iter(self.run)
        if job.is_late():
            self.run.searches.time_out([0])
        if next(self._steps, None) is None:
            job.end(self.run.searches, 0)
            self.jobs = []
        else:
            job.look(self.run.searches, 0)

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()  # type: ignore[attr-defined]


class MethodTurn(Turn):
    """One run of another method: whole, unless its time is up, its client leaves or all ends."""

    def __init__(self, must_end: Callable[[], bool]) -> None:
        super().__init__()
        self.must_end = must_end

    def fits(self, job: Job) -> bool:
        return not self.jobs

    def step(self) -> None:
        if not self.jobs:
            return
        (job,) = self.jobs
        order = job.order
        timed = dataclasses.replace(order.config, timeout=order.seconds)

        def is_unwanted() -> bool:
            return job.is_cancelled or self.must_end()

        with broken_off_when(is_unwanted):
            result = run_method(order.lm, order.prompt, order.method, timed, seed=order.seed)
        if is_unwanted():
            return  # the engine sees to a job whose client has gone, or that has to be told
        seconds = time.monotonic() - (job.begun or job.submitted)
        job.finish(
            dataclasses.replace(
                result,
                config=dataclasses.replace(result.config, timeout=order.config.timeout),
                cost=dataclasses.replace(result.cost, seconds=seconds),
            )
        )
        self.jobs = []

    def close(self) -> None:
        """Nothing is held between turns."""


def best_k_config(order: Order) -> SearchConfig | None:
    """Return the settings of best-k search where that is the method, None for another one.

    Best-first search is best-k search too, with settings of its own.
    """
    name, config = order.method.lower(), order.config
    if name == BEST_K.lower():
        return config
    if name == "bfs":
        return best_first_config(order.lm, config)
    if name in _SCORINGS:
        return dataclasses.replace(config, scoring=_SCORINGS[name], length_alpha=None)
    check_method(order.method, config)
    return None


def needs_own_run(config: SearchConfig) -> bool:
    """Say whether a search has rules or shapers that cannot be shared with others."""
    return bool(config.constraints) or config.is_shaped
