"""Text in, ranked texts out: `search`, `best_first`, `stream`, and `Run` to watch a search.

Knows prompts, settings and results; the scheduler does the rest.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from bestk.config import DIVERSITY, SearchConfig
from bestk.constraints.allowed import of_trie
from bestk.engine.batch import Row
from bestk.engine.memory import check_batch_size, is_out_of_memory
from bestk.engine.request import Request, Update, requests_of
from bestk.engine.scheduler import Scheduler
from bestk.errors import BestKError, OptionError, OutOfMemoryError, PromptError, SearchInterrupted
from bestk.lm.language_model import Features, LanguageModel, Message, Prompt, is_batch
from bestk.processors.pipeline import AllowedTokensFn, Hooks
from bestk.progress import ProgressBar
from bestk.rerank.postprocess import Finish
from bestk.rerank.select import Embed
from bestk.result import Hypothesis, SearchResult, not_started
from bestk.settings import SearchOptions

if TYPE_CHECKING:
    from bestk.constraints.trie import Trie
    from bestk.rerank import Reranker

Batch = Sequence[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]] | Sequence[Features]

logger = logging.getLogger("bestk")

# What best-first search sets itself; `max_frontier` is raised to hold everything.
_BEST_FIRST: dict[str, Any] = {"k": 1, "decay": "none", "min_prob": 0.0, "max_frontier": 1}


class SearchKeywords(SearchOptions, total=False):
    """All that `search` takes by name."""

    raw: bool
    batch_size: int | Literal["auto"]
    keep_tree: bool
    progress: bool | None
    logits_processor: Sequence[Any] | None
    stopping_criteria: Sequence[Any] | None
    prefix_allowed_tokens_fn: AllowedTokensFn | None
    constraints: Sequence[Any]
    allowed: Trie | None
    exclude: Sequence[Any] | None
    item_bias: Any
    renormalize: bool | None
    rerank: str | Reranker | Callable[[str, str], float] | None
    select: Literal["best", "diverse"] | None
    diversity: float
    embed: Embed | None
    prefetch: int | None


@overload
def search(
    lm: LanguageModel,
    prompts: str | Features | Sequence[int] | Sequence[Message],
    config: SearchConfig | None = None,
    **options: Unpack[SearchKeywords],
) -> SearchResult: ...


@overload
def search(
    lm: LanguageModel,
    prompts: list[str] | Sequence[Features] | Sequence[Sequence[int]] | Sequence[Sequence[Message]],
    config: SearchConfig | None = None,
    **options: Unpack[SearchKeywords],
) -> list[SearchResult]: ...


@overload
def search(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    config: SearchConfig | None = None,
    **options: Unpack[SearchKeywords],
) -> Any: ...
def search(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    config: SearchConfig | None = None,
    *,
    raw: bool = False,
    batch_size: int | str = "auto",
    keep_tree: bool = True,
    progress: bool | None = None,
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    prefix_allowed_tokens_fn: AllowedTokensFn | None = None,
    constraints: Sequence[Any] = (),
    allowed: Trie | None = None,
    exclude: Sequence[Any] | None = None,
    item_bias: Any = None,
    renormalize: bool | None = None,
    rerank: str | Reranker | Callable[[str, str], float] | None = None,
    select: str | None = None,
    diversity: float = DIVERSITY,
    embed: Embed | None = None,
    prefetch: int | None = None,
    **options: Any,
) -> Any:
    """Run best-k search: one result for a prompt, a list of them for a list of prompts.

    A chat model answers a prompt that is a text; with `raw` it continues it, as other models do.
    `options` are the fields of `SearchConfig`; where `config` is given too they change it.
    `batch_size` prompts are searched side by side, by default as many as memory allows; it changes
    nothing but the speed. `progress` shows a bar where it takes longer than a second, by default
    only where somebody watches. The processors and criteria are those of transformers' `generate`;
    each sees a node's own prefix, as `constraints` do. `rerank` puts the texts in another order: a
    name such as `"mbr-chrf"`, or a function of prompt and text. With `num_texts=n` the search is
    one for n texts, and returns good ones that differ (`select="diverse"`; `diversity` goes from 0,
    quality alone, to 1), or the first of its ranking (`select="best"`).

    With `allowed` every text is an item of a trie, and the search is exact (docs/catalogues.md):
    `exclude` leaves items out, a list for a prompt, and `item_bias` adds a number per row to log p.
    `renormalize` says whether probability goes to what is allowed alone: by default not with a
    trie, but with `prefix_allowed_tokens_fn`, as in transformers.

    `prefetch` is how many nodes of a search a pass may evaluate, those that will probably be popped
    later among them: fewer passes, the same search. 0 turns it off; by default it is used where it
    pays.
    """
    settings = SearchConfig.of(options, config)
    hooks = Hooks(
        logits_processor or (),
        stopping_criteria or (),
        prefix_allowed_tokens_fn,
        constraints,
        **of_trie(allowed, item_bias, renormalize),
    )
    finish = Finish(rerank=rerank, select=select, diversity=diversity, embed=embed)
    finish.check(settings)
    every: list[Any] = list(prompts) if is_batch(prompts) else [prompts]
    most = check_batch_size(batch_size)
    left_out = () if exclude is None else exclude if is_batch(prompts) else [exclude]
    requests = requests_of(
        lm,
        every,
        settings,
        hooks,
        raw=raw,
        exclude=left_out,
        keep_tree=keep_tree,
        prefetch=prefetch,
    )
    outcomes = Outcomes(requests, Scheduler(most))
    with contextlib.closing(outcomes.scheduler), ProgressBar(requests, progress) as bar:
        for update in outcomes.scheduler.run(requests):
            outcomes.note(update)
            bar.update(update)
    results = outcomes.results()
    for result in results:
        if result.notice is not None:
            logger.warning("%s", result.notice)
    finished = _finished(results, finish)
    return finished if is_batch(prompts) else finished[0]


def _finished(results: list[SearchResult], finish: Finish) -> list[SearchResult]:
    """Rerank and choose; where that fails, all results are handed over as they were found."""
    try:
        return [finish(result) for result in results]
    except Exception as error:  # rerank and embed are anybody's code
        known = isinstance(error, BestKError)
        why = str(error) if known else f"rerank or embed raised {type(error).__name__}: {error}"
        raise SearchInterrupted(" ".join(why.split()), results) from error


class Outcomes:
    """What became of the requests of one call; what fails is raised with all that was found."""

    def __init__(self, requests: Sequence[Request], scheduler: Scheduler) -> None:
        self.requests, self.scheduler = list(requests), scheduler
        self.found: dict[Request, SearchResult] = {}
        self.broken: dict[Request, Exception] = {}  # searches whose model broke

    def note(self, update: Update) -> None:
        """Take a result; raise an error, but where only the model's numbers for a prompt broke."""
        request, error = update.request, update.error
        if update.result is not None:
            self.found[request] = update.result
        if error is None:
            return
        if update.result is not None and update.result.stop_reason == "broken":
            self.broken[request] = error
            return
        has_begun = bool(self.found)
        partial = self.close()
        if isinstance(error, OutOfMemoryError) or is_out_of_memory(error):
            raise OutOfMemoryError(str(error), partial) from error.__cause__ or error
        if not isinstance(error, BestKError) or not has_begun:
            raise error
        raise SearchInterrupted(str(error), partial) from error

    def results(self) -> list[SearchResult]:
        """Return all results; raise if the model broke, the others being done."""
        for request in self.requests:
            if request in self.broken:
                raise SearchInterrupted(str(self.broken[request]), self.partial())
        return self.partial()

    def close(self) -> list[SearchResult]:
        """End what still runs, and return what is known."""
        partial = self.partial()
        self.found = dict(zip(self.requests, partial, strict=True))
        self.scheduler.close()
        return partial

    def partial(self) -> list[SearchResult]:
        """Return a result for every request, as good as is known."""
        return [self._known(request) for request in self.requests]

    def _known(self, request: Request) -> SearchResult:
        result = self.found.get(request)
        if result is None:
            result = self.scheduler.partial(request)
        if result is None:  # an empty one is false, and still a result
            result = not_started(request.prompt, request.config, request.lm.name)
        return result


def best_first(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    config: SearchConfig | None = None,
    *,
    raw: bool = False,
    batch_size: int | Literal["auto"] = "auto",
    keep_tree: bool = True,
    progress: bool | None = None,
    **options: Unpack[SearchOptions],
) -> Any:
    """Run vanilla best-first search (Algorithm 1): one node a step, no decay, nothing pruned.

    As in the paper's footnote only the likeliest children of a node are kept, here the best 100
    unless `max_children` says otherwise; the scoring and the budget are the caller's.
    """
    settings = best_first_config(lm, config, **options)
    return search(
        lm,
        prompts,
        settings,
        raw=raw,
        batch_size=batch_size,
        keep_tree=keep_tree,
        progress=progress,
    )


def best_first_config(
    lm: LanguageModel, config: SearchConfig | None = None, **options: Unpack[SearchOptions]
) -> SearchConfig:
    """Return the settings with which best-k search is vanilla best-first search."""
    for name in options:
        if name in _BEST_FIRST:
            raise OptionError(f"best_first sets {name} itself: use search to choose it")
    settings = SearchConfig.of({**options, **_BEST_FIRST}, config)
    if settings.max_children is None:
        settings = SearchConfig.of({"max_children": 100}, settings)
    everything = settings.total_budget * settings.num_children(lm.backend.vocab_size)
    return SearchConfig.of({"max_frontier": everything}, settings)


def stream(
    lm: LanguageModel,
    prompt: Prompt,
    config: SearchConfig | None = None,
    *,
    raw: bool = False,
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    prefix_allowed_tokens_fn: AllowedTokensFn | None = None,
    allowed: Trie | None = None,
    exclude: Sequence[Any] | None = None,
    item_bias: Any = None,
    renormalize: bool | None = None,
    prefetch: int | None = None,
    **options: Unpack[SearchOptions],
) -> Iterator[Hypothesis]:
    """Yield each text of one prompt as it completes; a text that comes again is not repeated.

    With `num_texts=n` these are the first n that end, and where fewer do, texts that were cut off.
    Closing the generator early ends the search and frees its memory.
    """
    if is_batch(prompt):
        raise PromptError("stream takes one prompt: use search for a list of them")
    hooks = Hooks(
        logits_processor or (),
        stopping_criteria or (),
        prefix_allowed_tokens_fn,
        **of_trie(allowed, item_bias, renormalize),
    )
    settings = SearchConfig.of(options, config)
    left_out = () if exclude is None else [exclude]
    requests = requests_of(
        lm,
        [prompt],
        settings,
        hooks,
        raw=raw,
        exclude=left_out,
        is_watched=True,
        prefetch=prefetch,
    )
    return _stream(requests)


def _stream(requests: Sequence[Request]) -> Iterator[Hypothesis]:
    outcomes = Outcomes(requests, Scheduler())
    told: set[str] = set()
    most = requests[0].config.num_texts or math.inf
    with contextlib.closing(outcomes.scheduler):
        for update in outcomes.scheduler.run(requests):
            outcomes.note(update)
            fresh: Sequence[Hypothesis] = ()
            if update.row is not None:
                fresh = update.row.fresh(update.row.standing)
            if update.result is not None and most < math.inf:
                fresh = update.result.hypotheses
            for text in fresh:
                if text.text not in told and len(told) < most:
                    told.add(text.text)
                    yield text
            if len(told) >= most:
                return


class Run:
    """Searches under way: iterate for their steps, ask for what was found at any of them."""

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Sequence[Any],
        config: SearchConfig,
        hooks: Hooks | None = None,
        *,
        raw: bool = False,
    ) -> None:
        self.requests = requests_of(lm, prompts, config, hooks, raw=raw, is_watched=True)
        self.config = self.requests[0].config if self.requests else config
        self.scheduler = Scheduler(max(1, len(self.requests)))
        self.outcomes = Outcomes(self.requests, self.scheduler)
        self._rows: dict[Request, Row] = {}

    def __iter__(self) -> Iterator[Update]:
        """Yield an update for every step. Breaks off with what was found, never without."""
        try:
            for request in self.requests:
                self.scheduler.add(request)
            while self.scheduler.has_work:
                updates = self.scheduler.step()
                for update in updates:  # first: `results` are those of the whole step
                    self.outcomes.note(update)
                for update in updates:
                    if update.row is not None:
                        self._rows[update.request] = update.row
                        yield update
        finally:
            self.outcomes.close()

    def close(self) -> None:
        """End the searches where they are; what they found stays."""
        self.outcomes.close()

    def fresh(self) -> list[list[Hypothesis]]:
        """Return, for every prompt, the texts completed since the last call."""
        rows = [self._rows.get(request) for request in self.requests]
        return [[] if row is None else row.fresh(row.standing) for row in rows]

    def results(self) -> list[SearchResult]:
        """Return a result for every prompt, whether or not its search has ended."""
        return self.outcomes.partial()
