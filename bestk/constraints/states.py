"""What a constraint remembers of every node: a state for each prefix of generated tokens.

A state depends on the tokens alone, so nodes of different searches with the same prefix share it,
and one that was forgotten is made again from its nearest ancestor that was not. The search may jump
between branches as it likes. Knows nothing of what a state is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from bestk.nodes import NodeBatch

Prefix = tuple[int, ...]
NodeState = TypeVar("NodeState")

# Enough for every node of a large batch; older states are forgotten, and made again when needed.
MAX_STATES = 20_000


class PrefixStates(Generic[NodeState]):
    """States by prefix, each made from its parent's by one more token."""

    def __init__(
        self,
        root: NodeState,
        advance: Callable[[NodeState, int], NodeState],
        max_states: int = MAX_STATES,
    ) -> None:
        self.root = root
        self.advance = advance
        self.max_states = max_states
        self._states: OrderedDict[Prefix, NodeState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, prefix: Prefix) -> NodeState:
        known = len(prefix)
        while known and prefix[:known] not in self._states:
            known -= 1
        state = self._states[prefix[:known]] if known else self.root
        if known:
            self._states.move_to_end(prefix[:known])
        for length in range(known + 1, len(prefix) + 1):
            state = self.advance(state, prefix[length - 1])
            self._states[prefix[:length]] = state
            if len(self._states) > self.max_states:
                self._states.popitem(last=False)
        return state


def prefixes(nodes: NodeBatch) -> list[list[Prefix | None]]:
    """Return the tokens of every node, None for a place that holds none."""
    return [
        [
            tuple(tokens[:depth]) if is_valid else None
            for tokens, depth, is_valid in zip(row, depths, valid, strict=True)
        ]
        for row, depths, valid in zip(
            nodes.prefix.tolist(), nodes.depth.tolist(), nodes.is_valid.tolist(), strict=True
        )
    ]
