"""Text in, ranked texts out: `search`, `stream`, and `Run`, the search under way that both consume.

Knows prompts, settings and results; the loop itself is in `best_k.py`, models in the backends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, overload

from bestk.best_k import Rule, Searches, Step, run
from bestk.config import SearchConfig
from bestk.constraints import constraints_of
from bestk.errors import (
    BestKError,
    ModelError,
    OptionError,
    OutOfMemoryError,
    PromptError,
    SearchInterrupted,
)
from bestk.language_model import LanguageModel, Message, Prompt, is_batch
from bestk.many import (
    auto_batch_size,
    check_batch_size,
    encode_all,
    is_out_of_memory,
    out_of_memory,
    search_many,
    stop_rules,
)
from bestk.record import TreeRecord
from bestk.result import Hypothesis, SearchResult, collect, completions

Batch = Sequence[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]

logger = logging.getLogger("bestk")


@overload
def search(
    lm: LanguageModel,
    prompts: str,
    config: SearchConfig | None = None,
    *,
    batch_size: int | str = "auto",
    keep_tree: bool = True,
    **options: Any,
) -> SearchResult: ...


@overload
def search(
    lm: LanguageModel,
    prompts: list[str],
    config: SearchConfig | None = None,
    *,
    batch_size: int | str = "auto",
    keep_tree: bool = True,
    **options: Any,
) -> list[SearchResult]: ...


@overload
def search(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    config: SearchConfig | None = None,
    *,
    batch_size: int | str = "auto",
    keep_tree: bool = True,
    **options: Any,
) -> Any: ...


def search(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    config: SearchConfig | None = None,
    *,
    batch_size: int | str = "auto",
    keep_tree: bool = True,
    **options: Any,
) -> Any:
    """Run best-k search: one result for a prompt, a list of them for a list of prompts.

    `options` are the fields of `SearchConfig`; where `config` is given too they change it.
    `batch_size` prompts are searched side by side, by default as many as memory allows; it changes
    nothing but the speed.
    """
    settings = SearchConfig.of(options, config)
    every = list(prompts) if is_batch(prompts) else [prompts]
    if settings.constraints:
        results = _search_chunks(lm, every, settings, batch_size, keep_tree)
    else:
        results = search_many(lm, every, settings, batch_size=batch_size, keep_tree=keep_tree)
    for result in results:
        if result.notice is not None:
            logger.warning("%s", result.notice)
    return results if is_batch(prompts) else results[0]


def best_first(
    lm: LanguageModel, prompts: Prompt | Batch, config: SearchConfig | None = None, **options: Any
) -> Any:
    """Run vanilla best-first search (Algorithm 1): one node a step, no decay, nothing pruned.

    As in the paper's footnote only the likeliest children of a node are kept, here the best 100
    unless `max_children` says otherwise; the scoring and the budget are the caller's.
    """
    plain = {"k": 1, "decay": "none", "min_prob": 0.0, "max_frontier": 1}
    for name in options:
        if name in plain:
            raise OptionError(f"best_first sets {name} itself: use search to choose it")
    settings = SearchConfig.of({"max_children": 100, **options, **plain}, config)
    everything = settings.total_budget * settings.num_children(lm.backend.vocab_size)
    return search(lm, prompts, SearchConfig.of({"max_frontier": everything}, settings))


def stream(
    lm: LanguageModel, prompt: Prompt, config: SearchConfig | None = None, **options: Any
) -> Iterator[Hypothesis]:
    """Yield each text of one prompt as it completes; a text that comes again is not repeated.

    Closing the generator early ends the search and frees its memory.
    """
    if is_batch(prompt):
        raise PromptError("stream takes one prompt: use search for a list of them")
    under_way = Run(lm, [prompt], SearchConfig.of(options, config))
    return _stream(under_way)


class Run:
    """A batch of searches under way: iterate it for the steps, ask it for what was found."""

    def __init__(self, lm: LanguageModel, prompts: Sequence[Any], config: SearchConfig) -> None:
        self.lm = lm
        self.prompts = list(prompts)
        self.config = config
        self.prompt_ids = encode_all(lm, self.prompts, config)
        constraints = constraints_of(config, lm)
        self.shaper = constraints.shaper
        self.searches = self._searches([*constraints.rules, *stop_rules(lm, config)])
        self.started = time.perf_counter()
        self.seconds = 0.0
        self._seen = [(0, 0)] * len(self.prompts)  # slots and completions that `fresh` told of
        self._steps: Iterator[Step] | None = None

    def __iter__(self) -> Iterator[Step]:
        """Yield a Step for every model call. Breaks off with what was found, never without."""
        self.started = time.perf_counter()
        try:
            session = self.lm.backend.start(self.prompt_ids, self.searches.room, self.shaper)
            self._steps = run(session, self.searches)
            for step in self._steps:
                self.seconds = time.perf_counter() - self.started
                yield step
            complaint = self.searches.complaint({row: row for row in range(len(self.prompts))})
            if complaint is not None:
                raise ModelError(complaint)
        except (BestKError, RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                expanded = int(self.searches.tree.count.max())
                raise self._out_of_memory(expanded, self.results()) from error
            if not isinstance(error, BestKError) or self._steps is None:
                raise
            raise SearchInterrupted(str(error), self.results()) from error
        finally:
            self.close()

    def fresh(self) -> list[list[Hypothesis]]:
        """Return, for every prompt, the texts completed since the last call."""
        counts = self.searches.tree.count.tolist()
        totals = self.searches.num_completions.tolist()
        found: list[list[Hypothesis]] = [[] for _ in counts]
        for row, (slot, total) in enumerate(self._seen):
            if totals[row] > total:
                (record,) = TreeRecord.of(self.searches.tree, [row])
                bound = float("inf")  # nothing is certain while the search goes on
                found[row] = completions(record, self.config, bound, self._decode, since=slot)
        self._seen = list(zip(counts, totals, strict=True))
        return found

    def results(self, *, keep_tree: bool = True) -> list[SearchResult]:
        """Return a result for every prompt, whether or not its search has ended."""
        return collect(
            self.searches,
            prompts=dict(enumerate(self.prompts)),
            decode=self._decode,
            model=self.lm.name,
            seconds=self.seconds,
            keep_tree=keep_tree,
        )

    def close(self) -> None:
        """End the searches and free the model's memory of them."""
        if self._steps is not None:
            self._steps.close()  # type: ignore[attr-defined]

    def _searches(self, rules: Sequence[Rule]) -> Searches:
        backend = self.lm.backend
        try:
            return Searches(
                self.config,
                batch=len(self.prompts),
                vocab_size=backend.vocab_size,
                eos_ids=backend.eos_ids,
                device=backend.device,
                rules=rules,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise self._out_of_memory(expanded=0) from error

    def _decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return self.lm.decode(sequences, self.config.stop)

    def _out_of_memory(
        self, expanded: int, partial: list[SearchResult] | None = None
    ) -> OutOfMemoryError:
        message = out_of_memory(self.lm, self.config, len(self.prompts), expanded)
        return OutOfMemoryError(message, partial)


def _search_chunks(
    lm: LanguageModel,
    prompts: Sequence[Any],
    config: SearchConfig,
    batch_size: int | str,
    keep_tree: bool,
) -> list[SearchResult]:
    """Search prompts batch after batch, where every batch has rules and shapers of its own."""
    ids = encode_all(lm, prompts, config)
    size = check_batch_size(batch_size) or auto_batch_size(lm, config, ids)
    results: list[SearchResult] = []
    for start in range(0, len(prompts), size):
        under_way = Run(lm, prompts[start : start + size], config)
        try:
            for _ in under_way:
                pass
        except SearchInterrupted as error:
            error.partial = results + error.partial
            raise
        results += under_way.results(keep_tree=keep_tree)
    return results


def _stream(under_way: Run) -> Iterator[Hypothesis]:
    texts = set()
    steps = iter(under_way)
    try:
        for _ in steps:
            for hypothesis in under_way.fresh()[0]:
                if hypothesis.text not in texts:
                    texts.add(hypothesis.text)
                    yield hypothesis
    finally:
        steps.close()  # type: ignore[attr-defined]
