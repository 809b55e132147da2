"""The mass ledger while a search runs: its shares as tensors, a number per search.

Knows probabilities, not why a child was pruned.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from bestk.core.mass import Mass


@dataclass
class Ledger:
    """Where each search's probability went; with the frontier's share it sums to 1."""

    completed: Float[Tensor, " batch"]
    truncated: Float[Tensor, " batch"]
    pruned_prob: Float[Tensor, " batch"]  # never opened: below γ
    pruned_frontier: Float[Tensor, " batch"]  # opened, then pruned from the heap

    def book(
        self,
        whole: Float[Tensor, " batch"],
        log_prob: Float[Tensor, "batch nodes children"],
        kinds: Bool[Tensor, "kinds batch nodes children"],
    ) -> None:
        """Book the children of nodes that hold `whole`: complete, truncated, opened; the rest."""
        completed, truncated, opened = (log_prob.exp() * kinds).sum(dim=(2, 3)).unbind()
        self.completed += completed
        self.truncated += truncated
        self.pruned_prob += whole - completed - truncated - opened

    def masses(self, frontier: Float[Tensor, " batch"]) -> list[Mass]:
        """Return the shares of every search; `frontier` is that of its open nodes."""
        columns = {name: column.tolist() for name, column in vars(self).items()}
        return [
            Mass(frontier=share, **{name: column[row] for name, column in columns.items()})
            for row, share in enumerate(frontier.tolist())
        ]
