"""Guesses which nodes a search will pop soon: by running it on, over a scratch frontier.

What the model has said of nodes that were not popped yet is known, so the search goes on through
them as it will; a node that was not evaluated brings no children. A wrong guess costs the place of
a row and changes nothing: what is popped, and when, is for the search to say. Knows arrays, and
asks the policy for priorities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.ahead.evaluations import READY, Evaluations
from bestk.core.frontier import WHOLES, Nodes

_STEP = WHOLES.index("step")
# A policy's rank of open nodes at a time.
Priority = Callable[[Nodes, Tensor], Tensor]


class OpenNodes(NamedTuple):
    """The frontier of one search, its parents' evaluation slots, and the next group in it."""

    parent: Int[np.ndarray, " open"]
    child: Int[np.ndarray, " open"]
    whole: Int[np.ndarray, "wholes open"]
    real: Float[np.ndarray, "reals open"]
    group: Int[np.ndarray, " group"]  # places among them


class Guess(NamedTuple):
    """Nodes that are worth a row, the group's own first; and the ready ones that come before."""

    parent: Int[np.ndarray, " rows"]
    child: Int[np.ndarray, " rows"]
    num_missing: int  # of the group: these must be evaluated
    reached: Bool[np.ndarray, " slots"]


class Scratch:
    """The frontier of a search that runs on: what is open, and what ready nodes will bring."""

    def __init__(self, known: Evaluations, nodes: OpenNodes) -> None:
        ready, kept = np.flatnonzero(known.home == READY), known.children
        of, child = kept["opened"][ready].nonzero()
        above = ready[of]
        self.parent = np.concatenate([nodes.parent, above])
        self.child = np.concatenate([nodes.child, child])
        last, depth = kept["log_prob"][above, child], known.depth[above] + 1
        # Their parents are in no tree, and nobody has found them yet.
        whole = [kept["token"][above, child], np.full(len(of), -1), child, depth, 0 * child]
        real = [kept["score"][above, child], known.log_prob[above] + last, last]
        self.whole = np.concatenate([nodes.whole, np.stack(whole)], axis=1)
        self.real = np.concatenate([nodes.real, np.stack(real)], axis=1)
        self.slot = known.child_slot[self.parent, self.child].tolist()
        first = len(nodes.parent)
        self.is_open = np.arange(len(self.parent)) < first
        ends = first + np.searchsorted(of, np.arange(len(ready) + 1))
        bounds = zip(ends.tolist(), ends[1:].tolist(), strict=False)
        self.children = dict(zip(ready.tolist(), (slice(*one) for one in bounds), strict=True))
        self.reached = np.zeros(len(known.home), dtype=bool)
        # The same memory, as policies know it.
        columns = map(torch.from_numpy, (self.is_open, self.whole, self.real))
        self.pool = Nodes(*(column[None] for column in columns))

    def pop(self, places: Int[np.ndarray, " group"], clock: int) -> list[int]:
        """Pop nodes, open their children, and return those that were not evaluated."""
        self.is_open[places] = False
        missing = []
        for place in places.tolist():
            slot = self.slot[place]
            if slot < 0:
                missing.append(place)
            else:
                self.reached[slot] = True
                found = self.children[slot]
                self.is_open[found], self.whole[_STEP, found] = True, clock
        return missing

    def best(self, number: int, priority: Priority, clock: int) -> Int[np.ndarray, " best"]:
        """Return the places of the next group, best first."""
        rank = priority(self.pool, torch.tensor([clock]))[0].numpy()
        rank = np.where(self.is_open, rank, -np.inf)
        best = np.argpartition(-rank, number - 1)[:number] if number < len(rank) else slice(None)
        some: Int[np.ndarray, " best"] = np.arange(len(rank))[best]
        some = some[rank[some] > -np.inf]
        ranked: Int[np.ndarray, " best"] = some[np.argsort(-rank[some], kind="stable")]
        return ranked


def look_ahead(
    known: Evaluations,
    nodes: OpenNodes,
    priority: Priority,
    *,
    clock: int,
    left: int,
    width: int,
    most: int,
) -> Guess:
    """Run a search on from the pop at `clock`, with `left` nodes to expand, for `most` rows."""
    scratch = Scratch(known, nodes)
    popped = nodes.group
    rows = scratch.pop(popped, clock)
    num_missing = len(rows)
    while len(rows) < most and len(popped) and (left := left - len(popped)) > 0:
        clock += 1
        popped = scratch.best(min(width, left), priority, clock)
        rows += scratch.pop(popped, clock)
    taken = np.array(rows[: max(most, num_missing)], dtype=np.int64)
    return Guess(scratch.parent[taken], scratch.child[taken], num_missing, scratch.reached)
