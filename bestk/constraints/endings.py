"""Where a text may end: not before it meets every requirement, whichever way it ends.

A stop token or a stop string ends a text; a child that would end one too early may not be opened.
A stop string cuts the text where it appears, so no later token could mend it. What is checked is
the very text that the search would return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from jaxtyping import Bool
from torch import Tensor

from bestk.backends.base import Children, Group
from bestk.best_k import Rule

if TYPE_CHECKING:
    from bestk.language_model import LanguageModel


class Requirement(Protocol):
    """Something that a complete text must be or hold."""

    def is_met_by(self, text: str) -> bool:
        """Say whether a text that ends here is as it must be."""
        ...


class Endings(Rule):
    """Bars the children that would end a text which does not meet all requirements."""

    def __init__(
        self, requirements: Sequence[Requirement], lm: LanguageModel, stop: Sequence[str]
    ) -> None:
        self.requirements = tuple(requirements)
        self.lm = lm
        self.stop = tuple(stop)
        self._could_stop: dict[int, bool] = {}

    def bar(
        self,
        group: Group,
        children: Children,
        may_open: Bool[Tensor, "batch group children"],
        is_stop: Bool[Tensor, "batch group children"],
    ) -> Bool[Tensor, "batch group children"] | None:
        """Decode the children that could end a text, and judge the text."""
        could_end = may_open & (is_stop | self._could_end(children, may_open))
        rows, places, numbers = could_end.nonzero(as_tuple=True)
        barred = torch.zeros_like(may_open)
        if not len(rows):
            return barred
        sequences = [
            [*prefix[:depth], token]
            for prefix, depth, token in zip(
                group.prefix[rows, places].tolist(),
                group.depth[rows, places].tolist(),
                children.token[rows, places, numbers].tolist(),
                strict=True,
            )
        ]
        ends = is_stop[rows, places, numbers].tolist()
        unfit = [
            (is_end or any(string in text for string in self.stop)) and not self._is_fit(text)
            for text, is_end in zip(self.lm.decode(sequences), ends, strict=True)
        ]
        barred[rows, places, numbers] = torch.tensor(unfit, device=barred.device)
        return barred

    def _is_fit(self, text: str) -> bool:
        for string in self.stop:
            text = text.partition(string)[0]
        return all(requirement.is_met_by(text) for requirement in self.requirements)

    def _could_end(
        self, children: Children, may_open: Bool[Tensor, "batch group children"]
    ) -> Bool[Tensor, "batch group children"]:
        """Mark tokens that hold the last character of a stop string, or a part of a character."""
        if not self.stop:
            return torch.zeros_like(may_open)
        tokens = children.token.where(may_open, -1)
        marks = [
            [[token >= 0 and self._holds_last(token) for token in listed] for listed in row]
            for row in tokens.tolist()
        ]
        return torch.tensor(marks, dtype=torch.bool, device=may_open.device)

    def _holds_last(self, token: int) -> bool:
        if token not in self._could_stop:
            text = self.lm.token_text(token)
            last = {string[-1] for string in self.stop} | {"\ufffd"}
            # Without a tokenizer texts are ids with spaces between them.
            self._could_stop[token] = self.lm.tokenizer is None or not last.isdisjoint(text)
        return self._could_stop[token]
