"""Stop strings: which children complete a text because its words now end in one.

Knows texts through the decoder it is given. Only children that pass γ are decoded, a few per step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bestk.constraints.base import Constraint, Decode, Marks
from bestk.nodes import Children
from bestk.processors.base import NodeContext

# A stop string of n characters can begin n tokens back at most; more context costs little and
# keeps multi-byte characters and joined words decoding as they do in the whole text.
_CONTEXT = 8


class StopStrings(Constraint):
    """Completes a child when its token makes a stop string appear in the text."""

    def __init__(self, strings: Sequence[str], decode: Decode, min_new_tokens: int = 0) -> None:
        self.strings = tuple(strings)
        self.decode = decode
        self.min_new_tokens = min_new_tokens
        self.reach = max(map(len, self.strings)) + _CONTEXT

    def completes(self, context: NodeContext, children: Children, asked: Marks) -> Marks:
        """Decode the end of each child's text."""
        group = context.nodes
        complete = torch.zeros_like(asked)
        rows, places, numbers = asked.nonzero(as_tuple=True)
        nodes = list(zip(rows.tolist(), places.tolist(), strict=True))
        tails = {
            node: prefix[:depth][-self.reach :]
            for node, prefix, depth in zip(
                nodes,
                group.prefix[rows, places].tolist(),
                group.depth[rows, places].tolist(),
                strict=True,
            )
        }
        tokens = children.token[rows, places, numbers].tolist()
        before = dict(zip(tails, self.decode(list(tails.values())), strict=True))
        after = self.decode(
            [[*tails[node], token] for node, token in zip(nodes, tokens, strict=True)]
        )
        hits = [self._appears(before[node], text) for node, text in zip(nodes, after, strict=True)]
        complete[rows, places, numbers] = torch.tensor(
            hits, dtype=torch.bool, device=complete.device
        )
        return complete & (group.depth[..., None] + 1 >= self.min_new_tokens)

    def _appears(self, old: str, new: str) -> bool:
        return any(new.count(string) > old.count(string) for string in self.strings)
