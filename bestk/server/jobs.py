"""A search that a client asked for: the order, and the job that carries it through the engine.

A job is written by the engine's thread and read by the client's; what passes between them is here.
News are made only when the last were taken, so a slow client costs nothing and misses no text.
Knows neither HTTP nor how searches are run.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bestk.config import SearchConfig
from bestk.core.best_k import Searches
from bestk.core.mass import Mass, masses
from bestk.core.record import TreeRecord
from bestk.errors import BestKError
from bestk.lm.language_model import LanguageModel
from bestk.result import Hypothesis, SearchResult, collect, completions

BEST_K = "BKS"


class BusyError(BestKError):
    """The queue is full; `retry_after` says in how many seconds there may be room."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoppingError(BestKError):
    """The server is shutting down."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a client wants searched."""

    lm: LanguageModel
    prompt: Any
    config: SearchConfig
    method: str = BEST_K
    seed: int = 0
    is_followed: bool = False  # whether the client wants to hear of every step
    with_graph: bool = False  # and to see the tree as it grows
    max_seconds: float | None = None  # the server's own limit, beside the config's timeout

    @property
    def seconds(self) -> float | None:
        """How long the search may run."""
        limits = [x for x in (self.config.timeout, self.max_seconds) if x is not None]
        return min(limits, default=None)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a search stands; `texts` are those completed since the client last heard of it."""

    step: int
    expanded: int
    num_texts: int
    mass: Mass
    texts: Sequence[Hypothesis]
    snapshot: SearchResult | None = None  # for the graph, where it is wanted


@dataclass
class _Told:
    """What the client of a job has heard: slots and completions looked at, texts sent."""

    step: int = -1
    slot: int = 0
    total: int = 0
    texts: set[str] = field(default_factory=set)


class Job:
    """One order on its way. `notify` is called, from the engine's thread, when there is news."""

    def __init__(self, order: Order, notify: Callable[[], None] = lambda: None) -> None:
        self.id = uuid.uuid4().hex
        self.order = order
        self.prompt_ids: Any = None  # set by the engine once the order was found good
        self.submitted = time.monotonic()
        self.begun: float | None = None
        self.expanded = 0
        self.result: SearchResult | None = None
        self.error: BaseException | None = None
        self.is_cancelled = False
        self._notify = notify
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._told = _Told()

    @property
    def is_over(self) -> bool:
        """Say whether there is a result or an error."""
        return self.result is not None or self.error is not None

    @property
    def is_accepted(self) -> bool:
        """Say whether the engine has looked at the order and found nothing wrong."""
        return self.prompt_ids is not None

    def accept(self, prompt_ids: Any) -> None:
        """Note that the order is good."""
        self.prompt_ids = prompt_ids
        self._notify()

    def nudge(self) -> None:
        """Let the client look: the queue has moved."""
        self._notify()

    def begin(self) -> None:
        """Note that the search begins; one that must begin again keeps its time."""
        if self.begun is None:
            self.begun = time.monotonic()

    def is_late(self) -> bool:
        """Say whether the time for the search is up."""
        seconds = self.order.seconds
        return (
            seconds is not None
            and self.begun is not None
            and time.monotonic() - self.begun >= seconds
        )

    def look(self, searches: Searches, row: int) -> None:
        """Make news of where the search stands, if the client wants it and has taken the last."""
        step = int(searches.clock[row])
        self.expanded = int(searches.tree.count[row])
        if not self.order.is_followed or self._progress is not None or step <= self._told.step:
            return
        self._told.step = step
        texts = self._fresh(searches, row)
        progress = Progress(
            step=step,
            expanded=self.expanded,
            num_texts=len(self._told.texts),
            mass=masses(searches)[row],
            texts=texts,
            snapshot=self._collect(searches, row) if self.order.with_graph else None,
        )
        with self._lock:  # else a client that takes at this moment could throw it away
            self._progress = progress
        self._notify()

    def end(self, searches: Searches, row: int) -> None:
        """Make the result of a search that is over."""
        self.look(searches, row)
        self.finish(self._collect(searches, row))

    def finish(self, result: SearchResult) -> None:
        """Hand over the result."""
        self.expanded = result.cost.expanded
        self.result = result
        self._notify()

    def fail(self, error: BaseException) -> None:
        """Hand over an error."""
        if not self.is_over:
            self.error = error
            self._notify()

    def take(self) -> Progress | None:
        """Return the news, once; the next ones are made from the next step."""
        with self._lock:
            progress, self._progress = self._progress, None
        return progress

    def _fresh(self, searches: Searches, row: int) -> list[Hypothesis]:
        """Return the texts that were completed since the last look, each once."""
        told, total = self._told, int(searches.num_completions[row])
        if total <= told.total:
            return []
        (record,) = TreeRecord.of(searches.tree, [row])
        bound = float("inf")  # nothing is certain while the search goes on
        found = completions(record, self.order.config, bound, self._decode, since=told.slot)
        told.slot, told.total = self.expanded, total
        fresh = []
        for hypothesis in found:
            if hypothesis.text not in told.texts:
                told.texts.add(hypothesis.text)
                fresh.append(hypothesis)
        return fresh

    def _collect(self, searches: Searches, row: int) -> SearchResult:
        begun = self.submitted if self.begun is None else self.begun
        (result,) = collect(
            searches,
            prompts={row: self.order.prompt},
            decode=self._decode,
            model=self.order.lm.name,
            seconds=time.monotonic() - begun,
            token_texts=self.order.lm.token_texts,
        )
        return result

    def _decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        config = self.order.config
        return self.order.lm.decode(sequences, config.stop, config.min_new_tokens)
