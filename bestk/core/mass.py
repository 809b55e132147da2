"""The mass ledger of a search: where the model's probability went, at any step.

All shares add up to 1: nothing that the model holds possible is lost sight of.
"""

from __future__ import annotations

from dataclasses import dataclass

from bestk.core.best_k import Searches


@dataclass(frozen=True, kw_only=True)
class Mass:
    """Where the model's probability went; all of it adds up to 1."""

    completed: float
    frontier: float
    pruned_prob: float  # never opened: below min_prob
    pruned_frontier: float  # pruned by max_frontier
    truncated: float

    @property
    def pruned(self) -> float:
        """Return what was pruned, for either reason."""
        return self.pruned_prob + self.pruned_frontier

    @property
    def total(self) -> float:
        """Add everything up; 1 but for rounding."""
        return self.completed + self.frontier + self.pruned + self.truncated

    def brief(self) -> dict[str, float]:
        """Return the four shares that add up to 1, as plain data."""
        return {
            "completed": self.completed,
            "frontier": self.frontier,
            "pruned": self.pruned,
            "truncated": self.truncated,
        }


def masses(searches: Searches) -> list[Mass]:
    """Say for every search, finished or not, where the model's probability went."""
    ledger = searches.ledger
    columns = zip(
        ledger.completed.tolist(),
        searches.frontier_mass().tolist(),
        ledger.pruned_prob.tolist(),
        ledger.pruned_frontier.tolist(),
        ledger.truncated.tolist(),
        strict=True,
    )
    return [
        Mass(
            completed=completed,
            frontier=frontier,
            pruned_prob=pruned_prob,
            pruned_frontier=pruned_frontier,
            truncated=truncated,
        )
        for completed, frontier, pruned_prob, pruned_frontier, truncated in columns
    ]
