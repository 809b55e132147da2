"""Text in, ranked texts out: `search`, `stream`, and `Run`, the search under way that both consume.

Knows prompts, settings and results; the loop itself is in `best_k.py`, models in the backends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, overload

import torch

from bestk.best_k import Searches, Step, run
from bestk.config import SearchConfig
from bestk.errors import BestKError, OptionError, OutOfMemoryError, PromptError, SearchInterrupted
from bestk.language_model import LanguageModel, Message, Prompt, is_batch
from bestk.record import TreeRecord
from bestk.result import Hypothesis, SearchResult, collect, completions
from bestk.stopping import StopStrings

Batch = Sequence[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]

DEFAULT_BATCH_SIZE = 8


@overload
def search(
    lm: LanguageModel,
    prompts: str,
    config: SearchConfig | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    keep_tree: bool = True,
    **options: Any,
) -> SearchResult: ...


@overload
def search(
    lm: LanguageModel,
    prompts: list[str],
    config: SearchConfig | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    keep_tree: bool = True,
    **options: Any,
) -> list[SearchResult]: ...


@overload
def search(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    config: SearchConfig | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    keep_tree: bool = True,
    **options: Any,
) -> Any: ...


def search(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    config: SearchConfig | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    keep_tree: bool = True,
    **options: Any,
) -> Any:
    """Run best-k search: one result for a prompt, a list of them for a list of prompts.

    `options` are the fields of `SearchConfig`; where `config` is given too they change it.
    """
    settings = SearchConfig.of(options, config)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    if not is_batch(prompts):
        return _search_chunk(lm, [prompts], settings, keep_tree)[0]
    results: list[SearchResult] = []
    for start in range(0, len(prompts), batch_size):
        try:
            chunk = prompts[start : start + batch_size]
            results += _search_chunk(lm, list(chunk), settings, keep_tree)
        except SearchInterrupted as error:
            error.partial = results + error.partial
            raise
    return results


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
        self._check_stop_ids()
        self.prompt_ids = [lm.encode(prompt) for prompt in self.prompts]
        for ids in self.prompt_ids:
            lm.check_length(ids, config.max_new_tokens)
        rules = [StopStrings(config.stop, lm.decode, config.min_new_tokens)] if config.stop else []
        backend = lm.backend
        self.searches = Searches(
            config,
            batch=len(self.prompts),
            vocab_size=backend.vocab_size,
            eos_ids=backend.eos_ids,
            device=backend.device,
            rules=rules,
        )
        self.started = time.perf_counter()
        self.seconds = 0.0
        self._seen = [0] * len(self.prompts)
        self._steps: Iterator[Step] | None = None

    def __iter__(self) -> Iterator[Step]:
        """Yield a Step for every model call. Breaks off with what was found, never without."""
        self.started = time.perf_counter()
        try:
            session = self.lm.backend.start(self.prompt_ids, self.searches.room)
            self._steps = run(session, self.searches)
            for step in self._steps:
                self.seconds = time.perf_counter() - self.started
                yield step
            self.searches.check()
        except BestKError as error:
            raise SearchInterrupted(str(error), self.results()) from error
        except (torch.OutOfMemoryError, RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            raise OutOfMemoryError(self._out_of_memory(), self.results()) from error
        finally:
            self.close()

    def fresh(self) -> list[list[Hypothesis]]:
        """Return, for every prompt, the texts completed since the last call."""
        counts = self.searches.tree.count.tolist()
        found = []
        for row, count in enumerate(counts):
            record = TreeRecord.of(self.searches.tree, row, count)
            bound = float("inf")  # nothing is certain while the search goes on
            found.append(
                completions(record, self.config, bound, self._decode, since=self._seen[row])
            )
        self._seen = counts
        return found

    def results(self, *, keep_tree: bool = True) -> list[SearchResult]:
        """Return a result for every prompt, whether or not its search has ended."""
        return collect(
            self.searches,
            prompts=self.prompts,
            decode=self._decode,
            model=self.lm.name,
            seconds=self.seconds,
            keep_tree=keep_tree,
            token_texts=self.lm.token_texts,
        )

    def close(self) -> None:
        """End the searches and free the model's memory of them."""
        if self._steps is not None:
            self._steps.close()  # type: ignore[attr-defined]

    def _decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return self.lm.decode(sequences, self.config.stop)

    def _check_stop_ids(self) -> None:
        size = self.lm.backend.vocab_size
        for token in self.config.stop_ids:
            if not 0 <= token < size:
                raise OptionError(f"stop_ids go from 0 to {size - 1}, got {token}")

    def _out_of_memory(self) -> str:
        config = self.config
        return (
            f"out of memory on {self.lm.backend.device} after "
            f"{int(self.searches.tree.count.max())} of {config.total_budget} expansions: lower "
            f"batch_size (now {len(self.prompts)}), k ({config.k}), beam_size "
            f"({config.beam_size}) or max_new_tokens ({config.max_new_tokens})"
        )


def _search_chunk(
    lm: LanguageModel, prompts: Sequence[Any], config: SearchConfig, keep_tree: bool
) -> list[SearchResult]:
    under_way = Run(lm, prompts, config)
    for _ in under_way:
        pass
    return under_way.results(keep_tree=keep_tree)


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


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text
