"""Runs methods over the examples of a task, batch by batch, into a folder; resumes what was begun.

    >>> for step in evaluate(lm, Settings(task="commongen"), Path("out")): ...  # doctest: +SKIP

A plan of batches is made first, from the settings alone: each batch of examples goes through every
method before the next, so a run that is cut short has the same examples for all. Knows no metric.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bestk import LanguageModel, Prompt, SearchResult, __version__
from bestk.baselines import Request, Scheduler, requests_for, results_of, run_method
from bestk.config import SearchConfig
from bestk.errors import OptionError
from bestk_eval import BATCH_SIZE
from bestk_eval.examples import Example, digest
from bestk_eval.methods import NamedMethod, parse_all
from bestk_eval.store import Store
from bestk_eval.tasks import Task, task_of
from bestk_eval.tasks.base import style_of
from bestk_eval.tasks.reading import choose, read_examples

SCORE_DIGITS = 6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an evaluation runs; the model comes apart."""

    task: str | Task
    methods: tuple[str, ...] = ("BS", "BKS_mean", "BKS_last")
    num_examples: int | None = None  # all of them
    split: str | None = None  # the task's own
    beam_size: int = SearchConfig().beam_size
    max_new_tokens: int | None = None  # the task's
    stop: tuple[str, ...] = ()  # strings that complete a text, for models that know no end
    style: str = "auto"
    batch_size: int = BATCH_SIZE
    seed: int = 0
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        for name in ("num_examples", "beam_size", "max_new_tokens", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands: how many results there are, of how many."""

    done: int
    total: int
    method: str  # the one that just ran


@dataclass(frozen=True, kw_only=True)
class ExampleBatch:
    """Examples that go through a method together; their answers may be equally long."""

    examples: tuple[Example, ...]
    max_new_tokens: int
    method: NamedMethod

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Name the lines that the batch writes."""
        return [(example.id, self.method.name) for example in self.examples]

    def requests(
        self, lm: LanguageModel, prompts: Sequence[Prompt], settings: Settings
    ) -> list[Request]:
        """Return what the scheduler is asked for."""
        config = self.method.config(self.max_new_tokens, settings.beam_size, settings.stop)
        method, seed = self.method.method, self.method.seed
        seed = settings.seed if seed is None else seed
        return requests_for(lm, prompts, method, config, seed=seed, keep_tree=False)


def evaluate(lm: LanguageModel, settings: Settings, folder: Path) -> Iterator[Progress]:
    """Run what is left of an evaluation; yields after every batch, first for what was done before.

    Everything yielded is on disk: leaving off at any moment, or a kill, loses the batch at hand.
    """
    task = task_of(settings.task)
    style = style_of(settings.style, lm)
    methods = parse_all(settings.methods)
    every = read_examples(task, settings.data_dir, settings.split)
    examples = choose(every, settings.num_examples, settings.seed)
    plan = make_plan(lm, task, examples, methods, settings)
    for batch in plan:  # what cannot run costs no other's time
        batch.method.check(batch.max_new_tokens, settings.beam_size, settings.stop)
    store = Store(folder)
    try:
        store.begin(_facts(lm, task, style, methods, examples, settings), examples)
        start = store.resume([batch.keys for batch in plan])
        total = sum(len(batch.keys) for batch in plan)
        done = sum(len(batch.keys) for batch in plan[:start])
        yield Progress(done=done, total=total, method="")
        for number, batch in enumerate(plan[start:]):
            prompts = [
                task.prompt_that_fits(example, style, lm, batch.max_new_tokens)
                for example in batch.examples
            ]
            if number == 0:
                _warm_up(lm, prompts[0])
            started = time.perf_counter()
            requests = batch.requests(lm, prompts, settings)
            found: dict[Request, SearchResult] = {}
            with contextlib.closing(Scheduler(len(requests))) as scheduler:
                for request in requests:
                    scheduler.add(request)
                while scheduler.has_work:
                    found |= results_of(scheduler.step())
            results = [found[request] for request in requests]
            seconds = time.perf_counter() - started
            store.append(*_lines(batch, results, seconds, keeps_cut=task.keeps_cut))
            done += len(batch.keys)
            yield Progress(done=done, total=total, method=batch.method.name)
    finally:
        store.close()


def make_plan(
    lm: LanguageModel,
    task: Task,
    examples: Sequence[Example],
    methods: Sequence[NamedMethod],
    settings: Settings,
) -> list[ExampleBatch]:
    """Lay out the batches: examples with equally long answers together, every method on each."""
    by_room: dict[int, list[Example]] = {}
    for example in examples:
        room = settings.max_new_tokens or task.room(example, lm)
        by_room.setdefault(room, []).append(example)
    return [
        ExampleBatch(
            examples=tuple(members[start : start + settings.batch_size]),
            max_new_tokens=room,
            method=method,
        )
        for room, members in by_room.items()
        for start in range(0, len(members), settings.batch_size)
        for method in methods
    ]


def _warm_up(lm: LanguageModel, prompt: Prompt) -> None:
    """Try the model out, so that the first method's seconds do not include it."""
    run_method(lm, prompt, "BS", raw=True, beam_size=1, max_new_tokens=2, k=1)


def _lines(
    batch: ExampleBatch, results: Sequence[SearchResult], seconds: float, *, keeps_cut: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Word what is kept of a batch: its results, and the seconds of each."""
    each = round(seconds / len(results), 6)
    pairs = zip(batch.keys, results, strict=True)
    return (
        [_record(key, result) | (_cut(result) if keeps_cut else {}) for key, result in pairs],
        [{"example": key[0], "method": key[1], "seconds": each} for key in batch.keys],
    )


def _record(key: tuple[str, str], result: SearchResult) -> dict[str, Any]:
    """Keep the complete texts of a result: what was cut off at the longest length is counted."""
    complete = [h for h in result.hypotheses if h.is_complete]
    counts = Counter(h.text for h in result.raw if h.is_complete)
    return {
        "example": key[0],
        "method": key[1],
        "texts": [h.text for h in complete],
        "counts": [counts[h.text] for h in complete],
        "scores": [round(h.score, SCORE_DIGITS) for h in complete],
        "log_probs": [round(h.log_prob, SCORE_DIGITS) for h in complete],
        "truncated": result.num_truncated,
        "expanded": result.cost.expanded,
        "model_calls": result.cost.steps,  # what was evaluated ahead of time saves seconds alone
        "signature": result.signature,
    }


def _cut(result: SearchResult) -> dict[str, Any]:
    """Keep what was cut off, likeliest first, and how many tokens every text has."""
    complete = [h for h in result.hypotheses if h.is_complete]
    cut = sorted((h for h in result.hypotheses if not h.is_complete), key=lambda h: -h.log_prob)
    return {
        "lengths": [len(h.token_ids) for h in complete],
        "cut": [h.text for h in cut],
        "cut_log_probs": [round(h.log_prob, SCORE_DIGITS) for h in cut],
        "cut_lengths": [len(h.token_ids) for h in cut],
    }


def _facts(
    lm: LanguageModel,
    task: Task,
    style: str,
    methods: Sequence[NamedMethod],
    examples: Sequence[Example],
    settings: Settings,
) -> dict[str, Any]:
    """List everything that the results depend on."""
    facts = lm.backend.facts()
    longest: int | str = settings.max_new_tokens or task.max_new_tokens
    if settings.max_new_tokens is None and task.source_factor is not None:
        longest = f"{task.source_factor:g}*source"
    return {
        "bestk": __version__,
        "task": task.name,
        "source": settings.task if isinstance(settings.task, str) else None,
        "split": settings.split,
        "kind": task.kind,
        "prompt": task.plain if style == "plain" else task.chat,
        "style": style,
        "model": lm.name,
        # What a model's numbers depend on besides its weights, as far as its backend says.
        "dtype": facts["dtype"],
        "device": facts["device"],
        "source_language": lm.src_lang,
        "decoder_prompt": facts.get("decoder_prompt", []),
        "methods": [method.name for method in methods],
        "examples": len(examples),
        "data": digest(examples),
        "beam_size": settings.beam_size,
        "max_new_tokens": longest,
        "stop": list(settings.stop),
        "batch_size": settings.batch_size,
        "seed": settings.seed,
    }
