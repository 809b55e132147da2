"""Runs best-k search, beam search and sampling in one process and measures each.

All methods get the same model, prompts and budget of b·T node expansions, and are timed in turns,
so that a busy moment of the machine hits all of them.
"""

from __future__ import annotations

import functools
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import bestk
from bestk.errors import ModelError
from bestk_eval.benchmark.instruments import (
    copy_bandwidth,
    forward_timer,
    peak,
    quiet,
    stopwatch,
    watched,
    weight_bytes,
)
from bestk_eval.benchmark.prompts import make_prompts
from bestk_eval.benchmark.report import BenchReport, BenchRow, BenchSettings

if TYPE_CHECKING:
    from bestk import LanguageModel

BEAM = "beam search"  # transformers': what the others are compared with


def bench(lm: LanguageModel, settings: BenchSettings | None = None) -> BenchReport:
    """Measure every method on one model, in turns, and return what each cost."""
    import torch
    import transformers

    settings = settings or BenchSettings()
    model = lm.backend.network
    if model is None:
        raise ModelError(f"bench needs a model of transformers, got {lm.name}")
    prompts = make_prompts(lm, settings)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    device = lm.backend.device
    step, once = weight_bytes(model)
    bandwidth = copy_bandwidth(device)
    methods = _methods(lm, model, prompts, settings)
    facts = {
        name: _first(lm, method, watch=model if name == BEAM or device.type != "cuda" else None)
        for name, method in methods.items()
    }
    # Every shape keeps its graphs, so that none is captured again in its turn.
    with bestk.kept_batches(lm, max(2, len(settings.ks))):
        seconds, outside = _timed(model, methods, settings.repeats, device)
    rows = [
        BenchRow(
            method=name,
            k=method.k,
            seconds=seconds[name],
            outside=outside.get(name),
            floor_seconds=(step * facts[name]["model_calls"] + once) / bandwidth,
            beam_seconds=seconds[BEAM],
            **facts[name],
        )
        for name, method in methods.items()
    ]
    is_gpu = device.type == "cuda"
    return BenchReport(
        model=lm.name,
        device=torch.cuda.get_device_name(device) if is_gpu else str(device),
        dtype=lm.backend.facts()["dtype"],
        threads=torch.get_num_threads(),
        load=load,
        versions={"torch": torch.__version__, "transformers": transformers.__version__},
        settings=settings,
        prompt_tokens=len(prompts[0]),
        weight_bytes=step,
        encoder_bytes=once,
        bandwidth=bandwidth,
        memory="peak beyond the weights" if is_gpu else "key/value cache",
        rows=tuple(rows),
    )


def _methods(
    lm: LanguageModel, model: Any, prompts: list[list[int]], settings: BenchSettings
) -> dict[str, _Method]:
    batch, others = settings.batch, settings.others

    def best_k(k: int) -> _Method:
        run = functools.partial(bestk.search, lm, prompts, settings.best_k(k), batch_size=batch)
        return _Method(k=k, run=run, count=_count_results)

    def own(name: str) -> _Method:
        told: dict[str, Any] = {"batch_size": batch, "seed": settings.seed}
        run = functools.partial(bestk.run_method, lm, prompts, name, others, **told)
        return _Method(run=run, count=_count_results)

    return {
        **{f"best-k, k={k}": best_k(k) for k in settings.ks},
        BEAM: _Method(
            run=lambda: beam_search(model, prompts, settings),
            count=lambda texts, calls: _count_beams(lm, texts, settings, calls),
        ),
        "our beam search": own("BS"),
        "nucleus 0.8": own("Ncls0.8"),
    }


def beam_search(
    model: Any, prompts: Sequence[Sequence[int]], settings: BenchSettings
) -> list[list[int]]:
    """Run transformers' beam search and return the ids of its texts, b for each prompt in turn."""
    import torch

    ids = torch.tensor(prompts, device=model.device)
    found = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        num_beams=settings.beam_size,
        num_return_sequences=settings.beam_size,
        max_new_tokens=settings.max_new_tokens,
        min_new_tokens=settings.min_new_tokens,
        do_sample=False,
    )
    start = 0 if model.config.is_encoder_decoder else ids.shape[1]
    texts: list[list[int]] = found[:, start:].tolist()
    return texts


@dataclass(frozen=True, kw_only=True)
class _Method:
    """A way to spend the budget: `run` is timed, `count` tells of its outcome and model calls."""

    run: Callable[[], Any]
    count: Callable[[Any, int], dict[str, int]]
    k: int | None = None


def _count_results(results: Any, _: int) -> dict[str, int]:
    return {
        "unique_texts": sum(len(result.hypotheses) for result in results),
        "expanded": sum(result.cost.expanded for result in results),
        "model_calls": max(result.cost.model_calls for result in results),
    }


def _count_beams(
    lm: LanguageModel, texts: Any, settings: BenchSettings, calls: int
) -> dict[str, int]:
    """Count what beam search gave and did: b expansions per prompt in each of its model calls."""
    size, batch = settings.beam_size, settings.batch
    groups = [lm.decode(texts[n * size : (n + 1) * size]) for n in range(batch)]
    return {
        "unique_texts": sum(len(set(group)) for group in groups),
        "expanded": calls * size * batch,
        "model_calls": calls,
    }


def _first(lm: LanguageModel, method: _Method, watch: Any) -> dict[str, Any]:
    """Run a method for the first time: what it finds, does and holds.

    `watch` is a model whose calls are looked at. On a GPU it is left out for our own methods: they
    count their calls.
    """
    device = lm.backend.device
    with watched(watch) as seen:
        first, found = stopwatch(method.run, device)
    facts = method.count(found, seen.calls) | {"memory_bytes": seen.cache_bytes}
    if device.type == "cuda":
        with bestk.kept_batches(lm, 0):
            facts["memory_bytes"] = peak(method.run, device)
    return {"first_seconds": first, **facts}


def _timed(
    model: Any, methods: dict[str, _Method], repeats: int, device: Any
) -> tuple[dict[str, float], dict[str, float]]:
    """Run all methods in turns; return the median seconds of each, and its share outside."""
    is_gpu = device.type == "cuda"
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    outside: dict[str, list[float]] = {name: [] for name in methods}
    with quiet():
        for _ in range(2 if is_gpu else 0):  # graphs of a shape are captured at its second call
            for method in methods.values():
                method.run()
        for _ in range(repeats):
            for name, method in methods.items():
                with forward_timer(None if is_gpu else model) as inside:
                    spent, _ = stopwatch(method.run, device)
                seconds[name].append(spent)
                outside[name].append(1 - sum(inside) / spent)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    shares = {name: statistics.median(found) for name, found in outside.items()}
    return median, {} if is_gpu else shares
