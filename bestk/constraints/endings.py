"""Where a text may end: not before it meets every requirement, whichever way it ends.

A stop token, a stop string or a criterion ends a text; a child that would end one too early may not
be opened. A stop string cuts the text where it appears, so no later token could mend it. What is
checked is the very text that the search would return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from jaxtyping import Bool
from torch import Tensor

from bestk.backends.base import Children, Group
from bestk.core.best_k import Rule


class Requirement(Protocol):
    """Something that a complete text must be or hold."""

    def is_met_by(self, text: str) -> bool:
        """Say whether a text that ends here is as it must be."""
        ...


class Endings(Rule):
    """Bars the children that would end a text which does not meet all requirements.

    `enders` are the rules that complete texts; `decode` makes of ids the text that is returned.
    """

    def __init__(
        self,
        requirements: Sequence[Requirement],
        enders: Sequence[Rule],
        decode: Callable[[Sequence[Sequence[int]]], list[str]],
    ) -> None:
        self.requirements = tuple(requirements)
        self.enders = tuple(enders)
        self.decode = decode

    def bar(
        self,
        group: Group,
        children: Children,
        may_open: Bool[Tensor, "batch group children"],
        is_stop: Bool[Tensor, "batch group children"],
    ) -> Bool[Tensor, "batch group children"] | None:
        """Decode the children that would end a text, and judge the text."""
        ends = may_open & is_stop
        for rule in self.enders:
            complete = rule.judge(group, children, may_open, is_stop).complete
            if complete is not None:
                ends = ends | (may_open & complete)
        barred = torch.zeros_like(may_open)
        rows, places, numbers = ends.nonzero(as_tuple=True)
        sequences = [
            [*prefix[:depth], token]
            for prefix, depth, token in zip(
                group.prefix[rows, places].tolist(),
                group.depth[rows, places].tolist(),
                children.token[rows, places, numbers].tolist(),
                strict=True,
            )
        ]
        unfit = [not self._is_fit(text) for text in self.decode(sequences)]
        barred[rows, places, numbers] = torch.tensor(unfit, dtype=torch.bool, device=barred.device)
        return barred

    def _is_fit(self, text: str) -> bool:
        return all(requirement.is_met_by(text) for requirement in self.requirements)
