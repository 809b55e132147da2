"""A batch taken step by step, as the scheduler would, with its state in the open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import bestk
from bestk.core.best_k import BestK
from bestk.core.policy import Plan
from bestk.core.state import SearchState
from bestk.engine.batch import Batch
from bestk.engine.request import Request, requests_of


def batch_of(
    lm: bestk.LanguageModel, prompts: Sequence[Any], config: bestk.SearchConfig, **more: Any
) -> Batch:
    """Open a batch that has read its prompts."""
    requests = requests_of(lm, prompts, config, **more)
    made = Batch(requests, len(requests), max(request.length for request in requests))
    fill(made, requests)
    return made


def fill(batch: Batch, requests: Sequence[Request]) -> None:
    for request in requests:
        assert batch.fits(request, batch.num_rows), "there is no room"
        batch.arrive(request)
    batch.step()


def state(batch: Batch) -> SearchState:
    assert isinstance(batch.policy, BestK)
    return batch.policy.search


def steps(
    lm: bestk.LanguageModel, prompts: Sequence[Any], config: bestk.SearchConfig, **more: Any
) -> Iterator[tuple[int, Plan | None, SearchState]]:
    """Yield every step: its number, what it expands (nothing for the roots), the state after it."""
    batch = batch_of(lm, prompts, config, **more)
    yield 0, None, state(batch)
    number = 1
    while len(batch.ended()) < len(prompts):
        plan = batch.policy.next()  # looking changes nothing
        batch.step()
        yield number, plan, state(batch)
        number += 1
    batch.close()
