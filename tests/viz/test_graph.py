"""The graph of a search: the replay against the live search, the schema, the texts of tokens."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from conftest import random_toy
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import steps
from test_oracle import config_options

import bestk
from bestk.config import SearchConfig
from bestk.core.record import TreeRecord
from bestk.core.state import SearchState
from bestk.core.tree import State
from bestk.errors import OptionError, SchemaError
from bestk.processors.pipeline import Hooks
from bestk.result import SearchResult
from bestk.viz.graph import difference, prompt_text, schema, to_graph
from bestk.viz.replay import replay


class Favour(bestk.Constraint):
    """Adds to the score of odd tokens, so that scores do not follow from the settings alone."""

    def bonus(self, context: Any, children: Any, asked: Any) -> torch.Tensor:
        return (children.token % 2).double() * 0.5


def count_states(graph: Any) -> Counter[str]:
    return Counter(node["state"] for node in graph["nodes"])


def live_frontier(searches: SearchState, row: int) -> list[tuple[int, int, float]]:
    """Read the frontier, best first, as (parent slot, token, priority)."""
    frontier = searches.frontier
    count = int(frontier.count()[row])
    order = frontier.order[row, :count]
    parent, token = frontier.nodes.parent[row, order], frontier.nodes.token[row, order]
    priority = frontier.priority[row, :count]
    return list(zip(parent.tolist(), token.tolist(), priority.tolist(), strict=True))


@settings(max_examples=300, deadline=None)
@given(
    options=config_options(),
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 12),
    favour=st.booleans(),
)
def test_replay_equals_the_live_search(
    options: dict[str, Any], seed: int, vocab: int, favour: bool
) -> None:
    config = SearchConfig(**options)
    lm = bestk.LanguageModel(random_toy(seed, vocab))
    hooks = Hooks(constraints=[Favour()] if favour else [])
    frontiers: list[list[Any]] = [[], []]
    dropped: list[dict[tuple[int, int], int]] = [{}, {}]
    for _, _, searches in steps(lm, [[1], [0, 1]], config, hooks=hooks):
        for row in range(2):
            clock = int(searches.clock[row])
            if clock == len(frontiers[row]):  # the row has taken this step too
                frontiers[row].append(live_frontier(searches, row))
            states = searches.tree.child_state[row, : int(searches.tree.count[row])]
            for slot, child in (states == State.DROPPED).nonzero().tolist():
                token = int(searches.tree.child_token[row, slot, child])
                dropped[row].setdefault((slot, token), clock)
    for row in range(2):
        (record,) = TreeRecord.of(searches.tree, [row])
        told = replay(record, config)
        owner, token = record.child_parent.numpy(), record.child_token.numpy()
        assert len(told.moments) == len(frontiers[row])
        for moment, live in zip(told.moments, frontiers[row], strict=True):
            entry = told.entry[moment.frontier - 1]
            replayed = zip(owner[entry], token[entry], moment.priorities, strict=True)
            assert list(replayed) == live, "the replayed frontier is not the search's"
        pruned = {
            (int(owner[told.entry[n - 1]]), int(token[told.entry[n - 1]])): int(told.pruned_at[n])
            for n in (told.pruned_at >= 0).nonzero()[0]
        }
        assert pruned == dropped[row]


@settings(max_examples=100, deadline=None)
@given(options=config_options(), seed=st.integers(0, 10**6), vocab=st.integers(2, 12))
def test_graph_keeps_its_schema_and_its_promises(
    options: dict[str, Any], seed: int, vocab: int
) -> None:
    lm = bestk.LanguageModel(random_toy(seed, vocab))
    result = bestk.search(lm, [1], **options)
    graph = to_graph(result)
    jsonschema.validate(json.loads(json.dumps(graph)), schema())
    nodes = graph["nodes"]
    assert [node["id"] for node in nodes] == list(range(len(nodes)))
    assert all(node["parent"] < node["id"] for node in nodes[1:])
    states = count_states(graph)
    assert states["expanded"] == result.cost.expanded
    assert states["complete"] == result.num_completions
    assert states["truncated"] == result.num_truncated
    assert [step["step"] for step in graph["steps"]] == list(range(graph["num_steps"]))
    for completion, hypothesis in zip(graph["completions"], result.hypotheses, strict=True):
        node = nodes[completion["node"]]
        assert node["state"] == "complete"
        assert math.isclose(node["log_prob"], hypothesis.log_prob, abs_tol=1e-12)
    for node in nodes[1:]:
        assert (node["state"] == "expanded") == (node["expanded"] is not None)
        assert node["state"].startswith("pruned") == (node["pruned"] is not None)
        if node["priority"] is not None:
            age = node["expanded"] - node["found"]
            assert node["priority"] == node["score"] - graph["decay"][age]


@settings(max_examples=100, deadline=None)
@given(options=config_options(), seed=st.integers(0, 10**6), vocab=st.integers(2, 12))
def test_frontiers_follow_from_the_nodes(options: dict[str, Any], seed: int, vocab: int) -> None:
    """The rule by which a reader works a frontier out, as docs/graph-schema.md states it."""
    graph = to_graph(bestk.search(bestk.LanguageModel(random_toy(seed, vocab)), [1], **options))
    for step in graph["steps"]:
        now = step["step"]
        frontier = [
            (-(node["score"] - graph["decay"][now + 1 - node["found"]]), node["id"])
            for node in graph["nodes"][1:]
            if node["state"] in ("open", "expanded", "pruned_frontier")
            and node["found"] <= now
            and (node["expanded"] is None or node["expanded"] > now)
            and (node["pruned"] is None or node["pruned"] > now)
        ]
        assert sorted(frontier) == [
            (-priority, node)
            for node, priority in zip(step["frontier"], step["priorities"], strict=True)
        ]


def test_saved_result_gives_the_same_graph() -> None:
    result = bestk.search(bestk.LanguageModel(random_toy(3, 6)), [1], beam_size=3, max_new_tokens=5)
    again = SearchResult.from_json(result.dumps(tree=True))
    assert to_graph(again) == to_graph(result)


def test_graph_needs_a_tree() -> None:
    lm = bestk.LanguageModel(random_toy(3, 6))
    result = bestk.search(lm, [1], keep_tree=False, beam_size=2, max_new_tokens=3)
    assert result.token_texts == {}
    with pytest.raises(OptionError, match="keep_tree=True"):
        to_graph(result)


def test_tree_with_other_settings_is_refused() -> None:
    lm = bestk.LanguageModel(random_toy(5, 8))
    result = bestk.search(lm, [1], k=1, beam_size=6, max_new_tokens=6, decay="none")
    data = result.to_json(tree=True)
    data["config"]["decay"] = "power"
    data["config"]["decay_weight"] = 5.0
    with pytest.raises(SchemaError, match="must follow from its settings"):
        to_graph(SearchResult.from_json(data))


def test_children_below_gamma_can_be_left_out() -> None:
    lm = bestk.LanguageModel(random_toy(5, 8))
    result = bestk.search(lm, [1], beam_size=4, max_new_tokens=6, min_prob=0.2, max_children=8)
    whole, slim = to_graph(result), to_graph(result, pruned_prob=False, frontiers=False)
    below = count_states(whole)["pruned_prob"]
    assert below > 0
    assert slim["num_left_out"] == below
    assert len(slim["nodes"]) == len(whole["nodes"]) - below
    assert slim["completions"] == whole["completions"]
    jsonschema.validate(slim, schema())


def test_growing_graph_keeps_its_numbers() -> None:
    """Every difference applied in turn gives the final graph: what a live picture relies on."""
    lm = bestk.LanguageModel(random_toy(11, 8))
    config = SearchConfig(k=2, beam_size=4, max_new_tokens=6, max_frontier=4)
    under_way = bestk.Run(lm, [[1]], config)
    nodes: dict[int, Any] = {}
    steps: list[Any] = []
    fields: dict[str, Any] = {}
    last = None
    for _ in under_way:
        graph = to_graph(under_way.results()[0])
        change = difference(last, graph)
        assert len(change["steps"]) == 1
        assert last is None or "prompt" not in change, "what has not changed is not told again"
        fields |= change
        nodes.update({node["id"]: node for node in change["nodes"]})
        steps += change["steps"]
        last = graph
    assert last is not None
    assert [nodes[i] for i in sorted(nodes)] == last["nodes"]
    assert steps == last["steps"]
    assert fields | {"nodes": last["nodes"], "steps": steps} == last


def test_prompts_of_every_kind_become_text() -> None:
    assert prompt_text("The dog") == "The dog"
    assert prompt_text([4, 5]) == "4 5"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert prompt_text(messages) == "system: Be brief.\nuser: Hi"


def test_every_field_is_documented() -> None:
    page = Path(bestk.__file__).parent.parent / "docs" / "graph-schema.md"
    written = page.read_text(encoding="utf-8")
    known = schema()
    fields = {*known["properties"], *known["properties"]["mass"]["properties"]}
    for part in ("node", "step", "completion"):
        fields |= set(known["$defs"][part]["properties"])
    fields |= set(known["$defs"]["node"]["properties"]["state"]["enum"])
    assert [name for name in sorted(fields) if f"`{name}`" not in written] == []
