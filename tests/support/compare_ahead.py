"""Compares searches that evaluate ahead of time by kernels with the oracle, in the interpreter."""

from __future__ import annotations

import os
import random
from typing import Any

os.environ["BESTK_KERNELS"] = "search"

import interpreted
from light_toy import random_distribution
from oracle import best_k

import bestk
from bestk.ahead.best_k import BestKAhead
from bestk.backends.toy import ToyBackend
from bestk.engine import prefetch

PROMPTS = [[1], [0, 1], [1, 1]]


def searches(seed: int, spare: int) -> None:
    """Search prompts side by side, with settings at their edges and with little room."""
    draw, vocab = random.Random(seed), 2 + seed % 9
    budget = draw.randint(1, 40)
    config = bestk.SearchConfig(
        k=draw.randint(1, min(5, budget)),
        budget=budget,
        max_new_tokens=draw.randint(1, 7),
        min_new_tokens=draw.choice([0, 1]),
        min_prob=draw.choice([0.0, 0.05, 0.2]),
        min_children=draw.randint(0, 2),
        max_children=draw.choice([None, 3]),
        max_frontier=draw.choice([2, 7, 500]),
        max_completions=draw.choice([None, None, 3]),
        scoring=draw.choice(["last", "mean", "sum"]),
        decay=draw.choice(["power", "log", "none"]),
    )
    toy = ToyBackend(lambda prefix: random_distribution(seed, prefix, vocab), vocab_size=vocab)
    prefetch.SPARE = spare
    rows, lanes = draw.choice([1, 4, 16]), draw.choice([1, 3])
    lm = bestk.LanguageModel(toy)
    for result, prompt in zip(
        bestk.search(lm, PROMPTS, config, prefetch=rows, batch_size=lanes), PROMPTS, strict=True
    ):
        trace = best_k(toy, tuple(prompt), config)
        assert groups(result) == trace.groups, f"{config} {rows}"
        found = {h.token_ids: h.log_prob for h in result.hypotheses}
        assert found.keys() == trace.completions.keys()
        assert all(abs(found[ids] - log_prob) < 1e-6 for ids, log_prob in trace.completions.items())
        cost = result.cost
        assert cost.model_calls <= cost.steps
        assert cost.expanded <= cost.evaluated <= cost.model_calls * max(rows, config.k)


def groups(result: Any) -> list[list[tuple[int, ...]]]:
    found: dict[int, list[tuple[int, ...]]] = {}
    for slot, step in enumerate(result.tree.expanded_at.tolist()[1:], start=1):
        found.setdefault(step, []).append(tuple(result.tree.tokens_to(slot)))
    return [found[step] for step in sorted(found)]


def deep() -> None:
    """One node a step, sixty steps: as many passes as the tree is deep, or few more."""
    lm = bestk.LanguageModel(ToyBackend(lambda p: random_distribution(5, p, 12), vocab_size=12))
    config = bestk.SearchConfig(k=1, budget=60, max_new_tokens=8, scoring="last")
    passes = {}
    for BestKAhead.guesses in (True, False):
        result = bestk.search(lm, [1], config, prefetch=32)
        passes[BestKAhead.guesses] = result.cost.model_calls
        depth = int(result.tree.depth.max())
    assert depth < passes[True] <= 2 * depth + 4
    assert passes[False] == 60, "without guesses it is the plain search"


COMPARISONS = {"deep": deep}
for number in range(8):
    COMPARISONS[f"search {number}"] = lambda number=number: searches(number, 16)
    COMPARISONS[f"forgetful {number}"] = lambda number=number: searches(100 + number, 0)

if __name__ == "__main__":
    interpreted.main(COMPARISONS)
