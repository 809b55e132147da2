"""Guesses which nodes a search will pop soon: by running it on, over a scratch frontier.

What the model has said of nodes that were not popped yet is known, so the search goes on through
them as it will; a node that was not evaluated brings no children. A wrong guess costs the place of
a row and changes nothing: what is popped, and when, is for the search to say. Knows arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from bestk.ahead.evaluations import READY, Evaluations


class OpenNodes(NamedTuple):
    """The frontier of one search, by its parents' evaluation slots, and the next group in it."""

    parent: Int[np.ndarray, " open"]
    child: Int[np.ndarray, " open"]
    score: Float[np.ndarray, " open"]
    step: Int[np.ndarray, " open"]
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
        ready = np.flatnonzero(known.home == READY)
        of, child = known.children["opened"][ready].nonzero()
        self.parent = np.concatenate([nodes.parent, ready[of]])
        self.child = np.concatenate([nodes.child, child])
        found = known.children["score"][ready[of], child]
        self.score = np.concatenate([nodes.score, found])
        self.step = np.concatenate([nodes.step, np.zeros(len(of), dtype=np.int64)])
        self.slot = known.child_slot[self.parent, self.child].tolist()
        self.value = self.score.copy()  # of what is open; −inf is not
        self.value[len(nodes.score) :] = -np.inf
        ends = len(nodes.score) + np.searchsorted(of, np.arange(len(ready) + 1))
        bounds = zip(ends.tolist(), ends[1:].tolist(), strict=False)
        self.children = dict(zip(ready.tolist(), (slice(*one) for one in bounds), strict=True))
        self.reached = np.zeros(len(known.home), dtype=bool)

    def pop(self, places: Int[np.ndarray, " group"], clock: int) -> list[int]:
        """Pop nodes, open their children, and return those that were not evaluated."""
        self.value[places] = -np.inf
        missing = []
        for place in places.tolist():
            slot = self.slot[place]
            if slot < 0:
                missing.append(place)
            else:
                self.reached[slot] = True
                found = self.children[slot]
                self.value[found], self.step[found] = self.score[found], clock
        return missing

    def best(
        self, number: int, decay: Float[np.ndarray, " ages"], clock: int
    ) -> Int[np.ndarray, " best"]:
        """Return the places of the next group, best first."""
        rank = self.value - decay[clock - self.step]
        best = np.argpartition(-rank, number - 1)[:number] if number < len(rank) else slice(None)
        some: Int[np.ndarray, " best"] = np.arange(len(rank))[best]
        some = some[rank[some] > -np.inf]
        ranked: Int[np.ndarray, " best"] = some[np.argsort(-rank[some], kind="stable")]
        return ranked


def look_ahead(
    known: Evaluations,
    nodes: OpenNodes,
    decay: Float[np.ndarray, " ages"],
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
        popped = scratch.best(min(width, left), decay, clock)
        rows += scratch.pop(popped, clock)
    taken = np.array(rows[: max(most, num_missing)], dtype=np.int64)
    return Guess(scratch.parent[taken], scratch.child[taken], num_missing, scratch.reached)
