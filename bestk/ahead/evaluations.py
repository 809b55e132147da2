"""What the model said of the nodes of one search, whether they were popped already or not.

A tree slot tells the order in which nodes joined the tree; an evaluation slot, where the keys and
values of a node lie, the order in which they were evaluated. A node that was evaluated and is not
in the tree is *ready*: it is kept until it is popped, or forgotten, and is then evaluated again if
its turn comes. Slot 0 is the root, the last one is scratch. The parent of an evaluated node is
evaluated. Knows arrays; no policy and no model.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

from bestk.nodes import BatchSpec

FREE, READY = -2, -1  # instead of a tree slot
_KEPT = ("token", "log_prob", "may_open", "passes", "completes", "bonus", "opened", "score")
_MARKS = ("may_open", "passes", "completes", "opened")


class Evaluations:
    """The evaluated nodes of one search, with their children; `tree_slots` nodes may be popped."""

    def __init__(self, spec: BatchSpec, tree_slots: int) -> None:
        size, number = spec.slots + 1, spec.num_children + spec.num_forced
        self.scratch = spec.slots

        def whole(*shape: int, fill: int = 0) -> Int[np.ndarray, "..."]:
            return np.full(shape, fill, dtype=np.int64)

        self.parent, self.child, self.token, self.depth = (whole(size) for _ in range(4))
        self.log_prob: Float[np.ndarray, " slots"] = np.zeros(size)
        self.home: Int[np.ndarray, " slots"] = whole(size, fill=FREE)  # its tree slot
        self.path: Int[np.ndarray, "slots depth"] = whole(size, spec.depth, fill=-1)
        self.prefix: Int[np.ndarray, "slots depth"] = self.path.copy()
        self.child_slot: Int[np.ndarray, "slots children"] = whole(size, number, fill=-1)
        # Of children: what a step is told, and what it will make of them.
        self.children: dict[str, np.ndarray] = {
            name: np.zeros((size, number), dtype=bool if name in _MARKS else np.float64)
            for name in _KEPT
        }
        self.children["token"] = whole(size, number)
        self.children["log_prob"][:] = -np.inf
        self.of_tree: Int[np.ndarray, " tree"] = whole(tree_slots + 1)
        self.home[0] = self.home[self.scratch] = 0
        self.passes = self.rows = 1  # how often the model ran for this search, on how many nodes

    def slots(self, parent: np.ndarray, child: np.ndarray) -> Int[np.ndarray, " nodes"]:
        """Return the slots of children of tree slots, −1 for those not evaluated."""
        slots: Int[np.ndarray, " nodes"] = self.child_slot[self.of_tree[parent], child]
        return slots

    @property
    def num_free(self) -> int:
        """Count the slots that hold nothing."""
        return int((self.home == FREE).sum())

    @property
    def deepest(self) -> int:
        """Return the depth of the deepest evaluated node."""
        return int(self.depth[self.home > FREE].max())

    def place(self, parent: np.ndarray, child: np.ndarray) -> Int[np.ndarray, " nodes"]:
        """Lay children of evaluated nodes out in free slots; until `keep` nothing holds them."""
        slot: Int[np.ndarray, " nodes"] = np.flatnonzero(self.home == FREE)[: len(parent)]
        self.parent[slot], self.child[slot] = parent, child
        self.token[slot] = self.children["token"][parent, child]
        self.log_prob[slot] = self.log_prob[parent] + self.children["log_prob"][parent, child]
        self.depth[slot] = self.depth[parent] + 1
        for table, own in ((self.path, slot), (self.prefix, self.token[slot])):
            table[slot] = table[parent]
            table[slot, self.depth[parent]] = own
        return slot

    def keep(self, slot: Int[np.ndarray, " nodes"], **children: np.ndarray) -> None:
        """Keep what the model said of placed nodes; the root has its place from the start."""
        for name, column in children.items():
            self.children[name][slot] = column
        self.child_slot[slot] = -1
        inner = slot[slot > 0]
        self.home[inner] = READY
        self.child_slot[self.parent[inner], self.child[inner]] = inner

    def commit(self, slot: np.ndarray, tree_slot: np.ndarray) -> None:
        """Note that nodes have joined the tree."""
        self.home[slot] = tree_slot
        self.of_tree[tree_slot] = slot

    def make_room(
        self, wanted: int, least: int, reached: Bool[np.ndarray, " slots"], group: np.ndarray
    ) -> int:
        """Forget ready nodes until there is room for `wanted` more; return how many have room.

        Those that nobody will reach soon go. All others, but those of the `group` that comes next,
        go too where `least` have no room.
        """
        is_ready = self.home == READY
        self._forget(is_ready & ~reached, wanted - self.num_free)
        reached[group] = False
        self._forget(is_ready & reached, least - self.num_free)
        return min(wanted, self.num_free)

    def _forget(self, some: Bool[np.ndarray, " slots"], number: int) -> None:
        """Forget so many nodes, each after all that are below it."""
        slots = np.flatnonzero(some)
        gone = slots[np.argsort(-self.depth[slots], kind="stable")[: max(0, number)]]
        self.home[gone] = FREE
        self.child_slot[self.parent[gone], self.child[gone]] = -1
