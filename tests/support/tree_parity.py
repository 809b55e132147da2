"""Compares search trees node for node; where they part, it has to be over what all but ties."""

from __future__ import annotations

import math
from typing import NamedTuple

import bestk
from bestk.core.tree import State

TIE = 1e-3  # in log-probability, as all that follows from it


class Parity(NamedTuple):
    """How far two trees are the same, and how far apart their log-probabilities are at most."""

    is_same: bool
    num_nodes: int  # in common, in the same order
    gap: float


def compare(one: bestk.SearchResult, other: bestk.SearchResult) -> Parity:
    """Walk two trees in the order of expansion, up to the first node where they part.

    What they part over must be a tie: two nodes of all but equal priority, or a child that all but
    is at the threshold. Raises AssertionError where it is not.
    """
    trees = _Tree(one), _Tree(other)
    common = 0
    for left, right in zip(*(tree.nodes for tree in trees), strict=False):
        if left != right:
            break
        common += 1
    gap = max(
        abs(listed[token] - trees[1].children[node][token])
        for node in trees[0].nodes[:common]
        for listed in [trees[0].children[node]]
        for token in listed.keys() & trees[1].children[node].keys()
    )
    is_same = common == len(trees[0].nodes) == len(trees[1].nodes)
    if not is_same:
        _check_tie(*trees, common, one.config.min_prob)
    return Parity(is_same, common, gap)


class _Tree:
    """The prefixes of a tree in the order of their expansion, with what the model listed."""

    def __init__(self, result: bestk.SearchResult) -> None:
        record = result.tree
        assert record is not None
        self.nodes = [tuple(record.tokens_to(slot)) for slot in range(len(record))]
        self.priority = record.priority.tolist()
        self.children: dict[tuple[int, ...], dict[int, float]] = {node: {} for node in self.nodes}
        self.unopened: set[tuple[int, ...]] = set()
        columns = (record.child_parent, record.child_token, record.child_log_prob)
        rows = zip(*(c.tolist() for c in (*columns, record.child_state)), strict=True)
        for parent, token, log_prob, state in rows:
            node = self.nodes[parent]
            self.children[node][token] = log_prob
            if state == State.BELOW:
                self.unopened.add((*node, token))


def _check_tie(one: _Tree, other: _Tree, common: int, min_prob: float) -> None:
    assert common < min(len(one.nodes), len(other.nodes)), "one tree is a part of the other"
    left, right = one.nodes[common], other.nodes[common]
    for node, tree in ((left, other), (right, one)):
        if node in tree.unopened:
            log_prob = tree.children[node[:-1]][node[-1]]
            assert abs(log_prob - math.log(min_prob)) < TIE, f"{node} is not at the threshold"
            return
    apart = abs(one.priority[common] - other.priority[common])
    assert apart < TIE, f"{left} and {right} were expanded, and their priorities are {apart} apart"
