"""The graph of a search as plain data: the one format that every picture is drawn from.

Made from any result that has kept its tree; `graph.schema.json` beside this file says what is in
it, docs/graph-schema.md what it means. Knows tokens, texts and steps; draws nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

from bestk.core.tree import State
from bestk.errors import OptionError
from bestk.lm.images import content_text
from bestk.result import SearchResult
from bestk.viz.replay import Replay, decay_by_age, replay

FORMAT = "bestk.graph"
FORMAT_VERSION = 1

STATES = {
    State.EXPANDED: "expanded",
    State.OPEN: "open",
    State.BELOW: "pruned_prob",
    State.DROPPED: "pruned_frontier",
    State.TRUNCATED: "truncated",
    State.COMPLETE: "complete",
}

Graph = dict[str, Any]
Node = dict[str, Any]

_ALWAYS = ("format", "version", "num_steps")  # in every part of a graph
_TOLD = ("text", "score", "log_prob", "step", "count", "is_certified")  # of a completed text


def to_graph(result: SearchResult, *, frontiers: bool = True, pruned_prob: bool = True) -> Graph:
    """Tell a search as a graph: nodes, steps, texts.

    Without `frontiers` the steps do not list theirs; whoever reads the graph can work them out from
    the nodes. Without `pruned_prob` the children below `min_prob` are counted, not listed.
    """
    if result.tree is None:
        raise OptionError(
            "the result has no tree to draw: search with keep_tree=True, save it with tree=True"
        )
    told = replay(result.tree, result.config)
    nodes = _nodes(result, told)
    left_out = 0
    if not pruned_prob:
        listed = [node for node in nodes if node["state"] != "pruned_prob"]
        left_out, nodes = len(nodes) - len(listed), listed
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "prompt": prompt_text(result.prompt),
        "signature": result.signature,
        "stop_reason": result.stop_reason,
        "config": _plain(dataclasses.asdict(result.config)),
        "mass": dataclasses.asdict(result.mass),
        "decay": decay_by_age(result.config, len(told.moments)),
        "num_steps": len(told.moments),
        "num_left_out": left_out,
        "nodes": nodes,
        "steps": _steps(told, frontiers),
        "completions": _completions(result, nodes),
    }


def difference(old: Graph | None, new: Graph) -> Graph:
    """Return what of `new` is not in `old`, or not as it is there: fields, nodes, steps.

    What a growing picture is fed with: numbers of nodes never change while a search goes on.
    """
    if old is None:
        return new
    known = {node["id"]: node for node in old["nodes"]}
    fresh = [node for node in new["nodes"] if known.get(node["id"]) != node]
    changed = {name: x for name, x in new.items() if name in _ALWAYS or old.get(name) != x}
    return {**changed, "nodes": fresh, "steps": new["steps"][len(old["steps"]) :]}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the graph."""
    text = resources.files("bestk.viz").joinpath("graph.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def prompt_text(prompt: Any) -> str:
    """Show a prompt of any kind as text.

    >>> prompt_text([{"role": "user", "content": "Hi"}])
    'user: Hi'
    """
    if isinstance(prompt, str):
        return prompt
    if all(isinstance(item, Mapping) for item in prompt):
        return "\n".join(
            f"{item.get('role')}: {content_text(item.get('content'))}" for item in prompt
        )
    return " ".join(map(str, prompt))


def _nodes(result: SearchResult, told: Replay) -> list[Node]:
    record = result.tree
    assert record is not None
    nodes = [_root()]
    entries, parents = told.entry.tolist(), told.parent.tolist()
    slots, found, pruned_at = (x.tolist() for x in (told.slot, told.found, told.pruned_at))
    tokens, depths = record.child_token.tolist(), record.depth.tolist()
    last, totals = record.child_log_prob.tolist(), record.log_prob.tolist()
    scores, states = record.child_score.tolist(), record.child_state.tolist()
    owners, expanded_at = record.child_parent.tolist(), record.expanded_at.tolist()
    priorities = record.priority.tolist()
    bonus = result.config.depth_bonus
    for number, (entry, parent) in enumerate(zip(entries, parents, strict=True), start=1):
        owner, slot = owners[entry], slots[number]
        state = STATES[State(states[entry])]
        pruned = found[number] if state == "pruned_prob" else pruned_at[number]
        nodes.append(
            {
                "id": number,
                "parent": parent,
                "token": tokens[entry],
                "text": result.token_texts.get(tokens[entry], str(tokens[entry])),
                "depth": depths[owner] + 1,
                "probability": math.exp(last[entry]),
                "log_prob": totals[owner] + last[entry],
                "score": scores[entry] + bonus * (depths[owner] + 1),
                "state": state,
                "found": found[number],
                "expanded": expanded_at[slot] if slot >= 0 else None,
                "priority": priorities[slot] if slot >= 0 else None,
                "pruned": pruned if pruned >= 0 else None,
            }
        )
    return nodes


def _root() -> Node:
    return {
        "id": 0,
        "parent": None,
        "token": None,
        "text": "",
        "depth": 0,
        "probability": 1.0,
        "log_prob": 0.0,
        "score": 0.0,
        "state": "expanded",
        "found": 0,
        "expanded": 0,
        "priority": None,
        "pruned": None,
    }


def _steps(told: Replay, frontiers: bool) -> list[dict[str, Any]]:
    steps = []
    for number, moment in enumerate(told.moments):
        step: dict[str, Any] = {"step": number, "expanded": moment.expanded.tolist()}
        if frontiers:
            step["frontier"] = moment.frontier.tolist()
            step["priorities"] = moment.priorities.tolist()
        steps.append(step)
    return steps


def _completions(result: SearchResult, nodes: list[Node]) -> list[dict[str, Any]]:
    place = {(node["parent"], node["token"]): node["id"] for node in nodes}
    listed = []
    for rank, hypothesis in enumerate(result.hypotheses, start=1):
        node = 0
        for token in hypothesis.token_ids:
            node = place[node, token]
        told = {name: getattr(hypothesis, name) for name in _TOLD}
        listed.append({"rank": rank, "node": node, **told})
    return listed


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    return {name: list(x) if isinstance(x, tuple) else x for name, x in config.items()}
