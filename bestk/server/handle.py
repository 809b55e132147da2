"""A search that a client asked for, on its way through the loop.

A handle is written by the loop's thread and read by the client's; what passes between them is here.
Progress is told only when the last was taken, so a slow client costs nothing and misses no text.
Knows neither HTTP nor how searches are run.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bestk.baselines.methods import Preset, method_of, requests_for
from bestk.config import SearchConfig
from bestk.constraints.allowed import Allowed
from bestk.core.mass import Mass
from bestk.engine.batch import Row
from bestk.engine.request import Request
from bestk.errors import BestKError
from bestk.lm.language_model import LanguageModel
from bestk.processors.pipeline import Hooks
from bestk.result import Hypothesis, SearchResult

BEST_K = "BKS"


class BusyError(BestKError):
    """The queue is full; `retry_after` says in how many seconds there may be room."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoppingError(BestKError):
    """The server is shutting down."""


@dataclass(frozen=True, kw_only=True)
class SearchCall:
    """What a client wants searched."""

    lm: LanguageModel
    prompt: Any
    config: SearchConfig
    begin: str = ""  # how every text begins; the search goes on from there
    method: str = BEST_K
    allowed: Allowed | None = None
    exclude: Sequence[Any] = ()
    processors: Sequence[Any] = ()
    tools: Sequence[Any] = ()  # that the chat template tells the model of
    fills_context: bool = False  # texts may be as long as the model has room for, at most
    is_followed: bool = False  # whether the client wants to hear of a search's every step
    with_graph: bool = False  # and to see the tree as it grows
    max_seconds: float | None = None  # the server's own limit, beside the config's timeout

    def request(self) -> Request:
        """Encode the prompt, and refuse what cannot be searched."""
        prompt, config = self.prompt, self.config
        if self.begin:
            prompt = self.lm.encode_begun(prompt, self.begin)
        if self.tools:
            prompt = self.lm.encode_chat(prompt, self.tools)
        if self.fills_context:
            config = self._fitted(self.lm.context_length(self.lm.encode(prompt)))
        (request,) = requests_for(
            self.lm,
            [prompt],
            self.method,
            config,
            hooks=Hooks(allowed=self.allowed, logits_processor=self.processors),
            exclude=[self.exclude] if self.exclude else (),
            is_watched=self.is_followed and self.search_config is not None,
            max_seconds=self.max_seconds,
        )
        return request

    def _fitted(self, length: int) -> SearchConfig:
        """Return the settings with texts no longer than the model has room for."""
        limit = self.lm.backend.capabilities.max_length
        room = self.config.max_new_tokens if limit is None else limit - length
        if not 0 < room < self.config.max_new_tokens:
            return self.config
        return dataclasses.replace(self.config, max_new_tokens=room)

    @property
    def search_config(self) -> SearchConfig | None:
        """The settings of best-k search where that is the method, None for another one."""
        method = method_of(self.method)
        if isinstance(method, Preset):
            return method.config(self.lm, self.config)
        method.check(self.config)
        return None


@dataclass(frozen=True, kw_only=True)
class SearchProgress:
    """Where a search stands; `texts` are those completed since the client last heard of it."""

    step: int
    expanded: int
    num_texts: int
    mass: Mass
    texts: Sequence[Hypothesis]
    snapshot: SearchResult | None = None  # for the graph, where it is wanted


class Handle:
    """One call on its way. `notify` is called, from the loop's thread, when there is news."""

    def __init__(self, call: SearchCall, notify: Callable[[], None] = lambda: None) -> None:
        self.id = uuid.uuid4().hex
        self.call = call
        self.request: Request | None = None  # set by the loop once the call was found good
        self.submitted = time.monotonic()
        self.begun: float | None = None
        self.expanded = 0
        self.result: SearchResult | None = None
        self.error: BaseException | None = None
        self.is_cancelled = False
        self.notify = notify
        self._lock = threading.Lock()
        self._progress: SearchProgress | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is a result or an error."""
        return self.result is not None or self.error is not None

    @property
    def prompt_tokens(self) -> int:
        """Count the tokens of the prompt."""
        return 0 if self.request is None else self.request.length

    def accept(self, request: Request) -> None:
        """Note that the call is good."""
        self.request = request
        self.notify()

    def look(self, row: Row) -> None:
        """Tell where the search stands, if the client has taken the last."""
        if self._progress is not None:
            return
        standing = row.standing
        self.expanded = standing.expanded
        texts = row.fresh(standing)
        progress = SearchProgress(
            step=standing.step,
            expanded=standing.expanded,
            num_texts=len(row.told),
            mass=standing.mass,
            texts=texts,
            snapshot=row.result() if self.call.with_graph else None,
        )
        with self._lock:  # else a client that takes at this moment could throw it away
            self._progress = progress
        self.notify()

    def finish(self, result: SearchResult) -> None:
        """Hand over the result."""
        self.expanded = result.cost.expanded
        self.result = result
        self.notify()

    def fail(self, error: BaseException) -> None:
        """Hand over an error."""
        if not self.is_over:
            self.error = error
            self.notify()

    def take(self) -> SearchProgress | None:
        """Return the progress, once; the next is told from the next step."""
        with self._lock:
            progress, self._progress = self._progress, None
        return progress
