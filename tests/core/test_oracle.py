"""The tensor core against the heap version of Algorithm 2, node for node."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import best_k
from stepping import steps

import bestk
from bestk.config import SearchConfig
from bestk.core.policy import Plan
from bestk.core.record import TreeRecord, texts_of
from bestk.core.state import SearchState

PROMPTS = [(1,), (0, 1), (1, 1)]
Prefix = tuple[int, ...]


@st.composite
def config_options(draw: st.DrawFn) -> dict[str, Any]:
    length = draw(st.integers(1, 8))
    budget = draw(st.integers(1, 40))  # most are no multiple of k
    return {
        "k": draw(st.integers(1, min(6, budget))),
        "budget": budget,
        "max_new_tokens": length,
        "min_new_tokens": draw(st.integers(0, min(2, length))),
        "max_frontier": draw(st.sampled_from([1, 2, 3, 7, 500])),
        "min_prob": draw(st.sampled_from([0.0, 0.05, 0.1, 0.3])),
        "min_children": draw(st.integers(0, 2)),
        "max_children": draw(st.sampled_from([None, None, 2, 3])),
        "max_completions": draw(st.sampled_from([None, None, 1, 3])),
        "certify": draw(st.sampled_from([None, None, 1, 2])),
        "stop_ids": draw(st.sampled_from([(), (), (1,)])),
        "decay": draw(st.sampled_from(["power", "log", "none"])),
        "decay_weight": draw(st.sampled_from([0.0, 0.05, 1.0])),
        "decay_power": draw(st.sampled_from([0.5, 1.0])),
        "depth_bonus": draw(st.sampled_from([0.0, 0.0, 0.1, 3.0])),
        "prune_margin": draw(st.sampled_from([None, None, 0.0, 0.5])),
    }


@pytest.mark.parametrize(
    "score", [{"scoring": "mean"}, {"scoring": "sum"}, {"scoring": "last"}, {"length_alpha": 0.7}]
)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(options=config_options(), seed=st.integers(0, 10**6), vocab=st.integers(2, 12))
def test_core_equals_oracle(
    score: dict[str, Any], options: dict[str, Any], seed: int, vocab: int
) -> None:
    config = SearchConfig(**options, **score)
    model = random_toy(seed, vocab)
    lm = bestk.LanguageModel(model)
    groups: list[list[list[Prefix]]] = [[], [], []]
    frontiers: list[list[set[Prefix]]] = [[], [], []]
    ledgers: list[list[dict[str, float]]] = [[], [], []]
    for number, plan, searches in steps(lm, PROMPTS, config):
        assert int(searches.tree.count.max()) <= config.total_budget, "the budget was exceeded"
        for row in range(3):
            ledger = _ledger(searches, row)
            assert abs(sum(ledger.values()) - 1) < 1e-6, f"mass was lost or made: {number}"
            popped = [] if plan is None else _popped(plan, row)
            if popped or not number:  # a search that has stopped takes no part in a step
                frontiers[row].append(_open(searches, row))
                ledgers[row].append(ledger)
            if popped:
                groups[row].append(popped)
    for row, prompt in enumerate(PROMPTS):
        trace = best_k(model, prompt, config)
        assert groups[row] == trace.groups
        assert frontiers[row] == trace.frontiers
        assert ledgers[row] == [pytest.approx(mass, abs=1e-9) for mass in trace.mass]
        found = _completions(searches, row)
        assert len(found) == len(dict(found)), "a text was completed twice"
        assert dict(found) == pytest.approx(trace.completions, abs=1e-12)
        assert int(searches.num_completions[row]) == len(found)


def _popped(plan: Plan, row: int) -> list[Prefix]:
    group = plan.nodes
    return [
        tuple(prefix[:depth])
        for prefix, depth, is_valid in zip(
            group.prefix[row].tolist(),
            group.depth[row].tolist(),
            group.is_valid[row].tolist(),
            strict=True,
        )
        if is_valid
    ]


def _open(searches: SearchState, row: int) -> set[Prefix]:
    token, parent = searches.tree.token[row].tolist(), searches.tree.parent[row].tolist()
    nodes = searches.frontier.nodes
    is_open = nodes.is_open[row]
    ends = zip(nodes.parent[row][is_open].tolist(), nodes.token[row][is_open].tolist(), strict=True)
    prefixes = []
    for slot, last in ends:
        path = [last]
        while slot > 0:
            path.append(token[slot])
            slot = parent[slot]
        prefixes.append(tuple(path[::-1]))
    assert len(prefixes) == len(set(prefixes)), "a node is open twice"
    return set(prefixes)


def _ledger(searches: SearchState, row: int) -> dict[str, float]:
    ledger = searches.ledger
    return {
        "completed": float(ledger.completed[row]),
        "truncated": float(ledger.truncated[row]),
        "pruned_prob": float(ledger.pruned_prob[row]),
        "pruned_frontier": float(ledger.pruned_frontier[row]),
        "frontier": float(searches.frontier_mass()[row]),
    }


def _completions(searches: SearchState, row: int) -> list[tuple[Prefix, float]]:
    (record,) = TreeRecord.of(searches.tree, [row])
    return [(text.token_ids, text.log_prob) for text in texts_of(record, 0.0)]
