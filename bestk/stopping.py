"""Stop strings: which children complete a text because its words now end in one.

Knows texts through the decoder it is given. Only children that pass γ are decoded, a few per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from bestk.backends.base import Children, Group
from bestk.best_k import Rule, Verdict

# A stop string of n characters can begin n tokens back at most; more context costs little and
# keeps multi-byte characters and joined words decoding as they do in the whole text.
_CONTEXT = 8


class StopStrings(Rule):
    """Completes a child when its token makes a stop string appear in the text."""

    def __init__(
        self,
        strings: Sequence[str],
        decode: Callable[[Sequence[Sequence[int]]], list[str]],
        min_new_tokens: int = 0,
    ) -> None:
        self.strings = tuple(strings)
        self.decode = decode
        self.min_new_tokens = min_new_tokens
        self.reach = max(map(len, self.strings)) + _CONTEXT

    def judge(
        self,
        group: Group,
        children: Children,
        passes: Bool[Tensor, "batch group children"],
        is_stop: Bool[Tensor, "batch group children"],
    ) -> Verdict:
        complete = torch.zeros_like(passes)
        rows, places, numbers = (passes & ~is_stop).nonzero(as_tuple=True)
        tails = [
            [*prefix[:depth][-self.reach :], token]
            for prefix, depth, token in zip(
                group.prefix[rows, places].tolist(),
                group.depth[rows, places].tolist(),
                children.token[rows, places, numbers].tolist(),
                strict=True,
            )
        ]
        before = self.decode([tail[:-1] for tail in tails])
        after = self.decode(tails)
        depths = (group.depth[rows, places] + 1).tolist()
        hits = [
            depth >= self.min_new_tokens and self._appears(old, new)
            for old, new, depth in zip(before, after, depths, strict=True)
        ]
        complete[rows, places, numbers] = torch.tensor(
            hits, dtype=torch.bool, device=complete.device
        )
        return Verdict(complete=complete)

    def _appears(self, old: str, new: str) -> bool:
        return any(new.count(string) > old.count(string) for string in self.strings)
