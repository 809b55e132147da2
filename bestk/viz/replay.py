"""Replays a finished search on its record: when each child was pruned, and every frontier.

A record says which nodes were expanded and when, and what became of every child; the order of the
frontier follows from the scores and the decay. Priorities and ties are those of `frontier.py`, in
the same float64 arithmetic. Knows nothing of text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bestk.config import SearchConfig
from bestk.core.policy import age_table
from bestk.core.record import TreeRecord
from bestk.core.tree import State
from bestk.errors import SchemaError

Ints = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Moment:
    """The state after one step: which nodes it expanded, and the frontier that it left.

    Nodes go by their number (see `Replay`). `priorities` are those of the next pop.
    """

    expanded: Ints
    frontier: Ints  # best first
    priorities: Reals


@dataclass(frozen=True)
class Replay:
    """A search told in order. Nodes are numbered as they were found, 0 being the root.

    Among nodes found in one step, the likelier child, then the lower token id, then the one whose
    parent was expanded first has the lower number: of two nodes of equal priority the lower number
    goes first. `entry[i]` is the row of node i + 1 in the record's `child_*` columns.
    """

    entry: Ints
    parent: Ints  # for every node but the root, the number of its parent
    slot: Ints  # for every node, where it was expanded; −1 where it was not
    found: Ints
    pruned_at: Ints  # −1 where it was not pruned from the frontier
    moments: tuple[Moment, ...]


def replay(record: TreeRecord, config: SearchConfig) -> Replay:
    """Run a search again without its model; complains where the record and the settings differ."""
    entry = _in_order_found(record)
    slot = _slots(record, entry)
    number = np.empty(len(record), dtype=np.int64)  # of each slot
    number[slot[slot >= 0]] = np.flatnonzero(slot >= 0)
    parent = number[_column(record.child_parent)[entry]]
    found = np.concatenate([[0], _found(record)[entry]])
    moments, pruned_at = _moments(record, config, entry, slot, found)
    return Replay(entry, parent, slot, found, pruned_at, moments)


def decay_by_age(config: SearchConfig, num_steps: int) -> list[float]:
    """List what the decay takes from a score at every age from 0 to `num_steps`."""
    table: list[float] = age_table(config, torch.device("cpu"))[: num_steps + 1].tolist()
    return table


def _moments(
    record: TreeRecord, config: SearchConfig, entry: Ints, slot: Ints, found: Ints
) -> tuple[tuple[Moment, ...], Ints]:
    score = np.concatenate([[0.0], _column(record.child_score)[entry]])
    state = np.concatenate([[int(State.EXPANDED)], _column(record.child_state)[entry]])
    was_open = np.isin(state, [State.OPEN, State.EXPANDED, State.DROPPED])
    expanded_at = np.where(slot >= 0, _column(record.expanded_at)[slot], -1)
    num_steps = int(_column(record.expanded_at).max()) + 1
    decays = np.array(decay_by_age(config, num_steps))
    pruned_at = np.full(len(found), -1, dtype=np.int64)
    frontier = np.zeros(1, dtype=np.int64)  # the root, about to be expanded
    moments = []
    for step in range(num_steps):
        group = np.flatnonzero(expanded_at == step)
        group = group[np.argsort(slot[group])]
        if not np.array_equal(frontier[: len(group)], group):
            raise SchemaError(
                f"a saved tree must follow from its settings, but step {step} expanded other "
                "nodes than the best: save the result again, tree and settings together"
            )
        fresh = np.flatnonzero((found == step) & was_open)
        pool = np.sort(np.concatenate([frontier[len(group) :], fresh[fresh > 0]]))
        priority = score[pool] - decays[step + 1 - found[pool]]
        order = np.argsort(-priority, kind="stable")
        pruned_at[pool[order[config.max_frontier :]]] = step
        order = order[: config.max_frontier]
        frontier = pool[order]
        moments.append(Moment(group, frontier, priority[order]))
    return tuple(moments), pruned_at


def _in_order_found(record: TreeRecord) -> Ints:
    parent = _column(record.child_parent)
    token = _column(record.child_token)
    log_prob = np.asarray(record.child_log_prob, dtype=np.float64)
    order: Ints = np.lexsort((parent, token, -log_prob, _found(record)))
    return order


def _slots(record: TreeRecord, entry: Ints) -> Ints:
    """Return of every node, the root first, in which slot it was expanded."""
    where = {
        (parent, token): slot
        for slot, (parent, token) in enumerate(
            zip(record.parent.tolist(), record.token.tolist(), strict=True)
        )
    }
    parents, tokens = record.child_parent.tolist(), record.child_token.tolist()
    return np.array([0] + [where.get((parents[i], tokens[i]), -1) for i in entry.tolist()])


def _found(record: TreeRecord) -> Ints:
    """Return of every child at which step its parent was expanded."""
    found: Ints = _column(record.expanded_at)[_column(record.child_parent)]
    return found


def _column(values: torch.Tensor) -> NDArray[np.generic]:
    return values.numpy()
