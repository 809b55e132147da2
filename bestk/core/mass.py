"""Where a search's probability went: all shares add up to 1, so that nothing is lost sight of."""

from __future__ import annotations

from dataclasses import dataclass


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
