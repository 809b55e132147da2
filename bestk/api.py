"""Text in, ranked texts out: `search`, `best_first` and `stream`.

Knows prompts, settings and results; a search under way is in `run.py`, many prompts in `many.py`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from bestk.config import DIVERSITY, SearchConfig
from bestk.engine.many import auto_batch_size, check_batch_size, encode_all, search_many
from bestk.engine.run import Run
from bestk.errors import BestKError, OptionError, PromptError, SearchInterrupted
from bestk.lm.language_model import Features, LanguageModel, Message, Prompt, is_batch
from bestk.processors.pipeline import AllowedTokensFn, Hooks
from bestk.rerank.postprocess import Finish
from bestk.rerank.select import Embed, check_embed
from bestk.result import Hypothesis, SearchResult

if TYPE_CHECKING:
    from bestk.rerank import Reranker

Batch = Sequence[str] | Sequence[Sequence[int]] | Sequence[Sequence[Message]] | Sequence[Features]

logger = logging.getLogger("bestk")

# What best-first search sets itself; `max_frontier` is raised to hold everything.
_BEST_FIRST: dict[str, Any] = {"k": 1, "decay": "none", "min_prob": 0.0, "max_frontier": 1}


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
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    prefix_allowed_tokens_fn: AllowedTokensFn | None = None,
    rerank: str | Reranker | Callable[[str, str], float] | None = None,
    num_texts: int | None = None,
    select: str = "best",
    diversity: float = DIVERSITY,
    embed: Embed | None = None,
    **options: Any,
) -> Any:
    """Run best-k search: one result for a prompt, a list of them for a list of prompts.

    `options` are the fields of `SearchConfig`; where `config` is given too they change it.
    `batch_size` prompts are searched side by side, by default as many as memory allows; it changes
    nothing but the speed. The processors and criteria are those of transformers' `generate`; each
    sees a node's own prefix. `rerank` puts the texts in another order: a name such as `"mbr-chrf"`,
    or a function of prompt and text. Of them `num_texts` are returned: the first, or with
    `select="diverse"` good ones that differ; `diversity` goes from 0, quality alone, to 1.
    """
    settings = SearchConfig.of(options, config)
    hooks = Hooks(logits_processor or (), stopping_criteria or (), prefix_allowed_tokens_fn)
    check_embed(embed)
    finish = Finish(
        rerank=rerank, num_texts=num_texts, select=select, diversity=diversity, embed=embed
    )
    every = list(prompts) if is_batch(prompts) else [prompts]
    results = search_all(
        lm, every, settings, batch_size=batch_size, keep_tree=keep_tree, hooks=hooks
    )
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


def search_all(
    lm: LanguageModel,
    prompts: Sequence[Any],
    config: SearchConfig,
    *,
    batch_size: int | str = "auto",
    keep_tree: bool = True,
    hooks: Hooks | None = None,
) -> list[SearchResult]:
    """Search prompts by the fastest way that the settings leave; results as they were found."""
    hooks = hooks or Hooks()
    if config.constraints or config.is_shaped or hooks != Hooks():
        return _search_chunks(lm, prompts, config, batch_size, keep_tree, hooks)
    return search_many(lm, prompts, config, batch_size=batch_size, keep_tree=keep_tree)


def best_first(
    lm: LanguageModel,
    prompts: Prompt | Batch,
    config: SearchConfig | None = None,
    *,
    batch_size: int | str = "auto",
    keep_tree: bool = True,
    **options: Any,
) -> Any:
    """Run vanilla best-first search (Algorithm 1): one node a step, no decay, nothing pruned.

    As in the paper's footnote only the likeliest children of a node are kept, here the best 100
    unless `max_children` says otherwise; the scoring and the budget are the caller's.
    """
    settings = best_first_config(lm, config, **options)
    return search(lm, prompts, settings, batch_size=batch_size, keep_tree=keep_tree)


def best_first_config(
    lm: LanguageModel, config: SearchConfig | None = None, **options: Any
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
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    prefix_allowed_tokens_fn: AllowedTokensFn | None = None,
    **options: Any,
) -> Iterator[Hypothesis]:
    """Yield each text of one prompt as it completes; a text that comes again is not repeated.

    Closing the generator early ends the search and frees its memory.
    """
    if is_batch(prompt):
        raise PromptError("stream takes one prompt: use search for a list of them")
    hooks = Hooks(logits_processor or (), stopping_criteria or (), prefix_allowed_tokens_fn)
    return _stream(Run(lm, [prompt], SearchConfig.of(options, config), hooks))


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


def _search_chunks(
    lm: LanguageModel,
    prompts: Sequence[Any],
    config: SearchConfig,
    batch_size: int | str,
    keep_tree: bool,
    hooks: Hooks,
) -> list[SearchResult]:
    """Search prompts batch after batch, where every batch has rules and shapers of its own."""
    ids = encode_all(lm, prompts, config)
    size = check_batch_size(batch_size) or auto_batch_size(lm, config, ids)
    results: list[SearchResult] = []
    for start in range(0, len(prompts), size):
        shifted = dataclasses.replace(hooks, first=start)
        under_way = Run(lm, prompts[start : start + size], config, shifted)
        try:
            for _ in under_way:
                pass
        except SearchInterrupted as error:
            error.partial = results + error.partial
            raise
        results += under_way.results(keep_tree=keep_tree)
    return results
