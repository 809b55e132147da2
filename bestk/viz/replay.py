"""Replays a finished search on its record: when each child was pruned, and every frontier.

A record says which nodes were expanded and when, and what became of every child; the order of the
frontier follows from the scores and the decay. Priorities and ties are those of `frontier.py`, in
the same float64 arithmetic. Of other policies the record knows no priorities: open nodes are then
told in the order of their scores, what was dropped as dropped where it was found. Knows no text.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bestk.config import SearchConfig
from bestk.core.policy import age_table
from bestk.core.record import TreeRecord
from bestk.core.tree import State
from bestk.errors import SchemaError

# Open nodes put in order, all steps together: some seconds.
_MOST_ORDERED = 20_000_000

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
    reached = dataclasses.replace(config, k=1, budget=num_steps)  # not what a file says
    table: list[float] = age_table(reached, torch.device("cpu"))[: num_steps + 1].tolist()
    return table


def _moments(
    record: TreeRecord, config: SearchConfig, entry: Ints, slot: Ints, found: Ints
) -> tuple[tuple[Moment, ...], Ints]:
    score = np.concatenate([[0.0], _column(record.child_score)[entry]])
    state = np.concatenate([[int(State.EXPANDED)], _column(record.child_state)[entry]])
    was_open = np.isin(state, [State.OPEN, State.EXPANDED, State.DROPPED])
    expanded_at = np.where(slot >= 0, _column(record.expanded_at)[slot], -1)
    depth = np.concatenate([[0], _column(record.depth)[_column(record.child_parent)[entry]] + 1])
    own, score = score, score + config.depth_bonus * depth
    num_steps = int(_column(record.expanded_at).max()) + 1
    decays = np.array(decay_by_age(config, num_steps))
    is_known = (config.policy, config.sample) == ("best-k", None)
    was_open &= is_known | (state != int(State.DROPPED))
    pruned_at = np.full(len(found), -1, dtype=np.int64)
    frontier = np.zeros(1, dtype=np.int64)  # the root, about to be expanded
    moments, num_ordered = [], 0
    groups = _by_step(expanded_at, num_steps, order=slot)
    arrived = _by_step(np.where(was_open, found, -1), num_steps, order=np.arange(len(found)))
    for step, (group, fresh) in enumerate(zip(groups, arrived, strict=True)):
        num_ordered += len(frontier) + len(fresh)
        if num_ordered > _MOST_ORDERED:
            raise SchemaError(
                f"a search of {num_steps} steps with {len(frontier)} open nodes is too large to "
                "draw: search with a smaller budget or max_frontier"
            )
        is_first = frontier[: len(group)] if is_known else np.intersect1d(frontier, group)
        if not np.array_equal(is_first, group if is_known else np.sort(group)):
            raise SchemaError(
                f"a saved tree must follow from its settings, but step {step} expanded other "
                "nodes than the best: save the result again, tree and settings together"
            )
        left = frontier[~np.isin(frontier, group)]
        pool = np.sort(np.concatenate([left, fresh[fresh > 0]]))
        if is_known and config.prune_margin is not None and len(pool) >= config.k:
            least = np.sort(own[pool])[-config.k] - config.prune_margin
            pruned_at[pool[own[pool] < least]] = step
            pool = pool[own[pool] >= least]
        priority = score[pool] - decays[step + 1 - found[pool]]
        order = np.argsort(-priority, kind="stable")
        if is_known:
            pruned_at[pool[order[config.max_frontier :]]] = step
            order = order[: config.max_frontier]
        frontier = pool[order]
        moments.append(Moment(group, frontier, priority[order]))
    if not is_known:
        pruned_at = np.where(state == int(State.DROPPED), found, -1)
    return tuple(moments), pruned_at


def _by_step(steps: Ints, num_steps: int, *, order: Ints) -> list[Ints]:
    """List, for every step, which numbers it stands at, in order."""
    sorted_ = np.lexsort((order, steps))
    ends = np.searchsorted(steps[sorted_], np.arange(num_steps + 1))
    return [sorted_[start:end] for start, end in itertools.pairwise(ends.tolist())]


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
