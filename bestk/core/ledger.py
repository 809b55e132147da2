"""The mass ledger while a search runs: its shares as tensors, a number per search.

`mass.py` reads it. Knows probabilities, not why a child was pruned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bestk.backends.base import Group


@dataclass
class Ledger:
    """Where each search's probability went; with the frontier's share it sums to 1."""

    completed: Float[Tensor, " batch"]
    truncated: Float[Tensor, " batch"]
    pruned_prob: Float[Tensor, " batch"]  # never opened: below γ
    pruned_frontier: Float[Tensor, " batch"]  # opened, then pruned from the heap

    @staticmethod
    def empty(batch: int, device: torch.device) -> Ledger:
        """Make the ledgers of searches that have not begun."""
        return Ledger(*(torch.zeros(batch, dtype=torch.float64, device=device) for _ in range(4)))

    def book(
        self,
        group: Group,
        log_prob: Float[Tensor, "batch group children"],
        kinds: Bool[Tensor, "kinds batch group children"],
    ) -> None:
        """Book the children of a group: complete, too long and opened ones, the rest as pruned."""
        completed, truncated, opened = (log_prob.exp() * kinds).sum(dim=(2, 3)).unbind()
        whole = (group.log_prob.exp() * group.is_valid).sum(dim=1)
        self.completed += completed
        self.truncated += truncated
        self.pruned_prob += whole - completed - truncated - opened
