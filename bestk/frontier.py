"""The frontiers of a batch of searches: unopened nodes, as columns of tensors.

Columns keep one order, older nodes first and, among nodes found in the same step, higher child
probability, lower token id, lower parent slot first. A stable sort by priority then breaks ties as
the design says, and nothing else has to. Knows neither probabilities nor text, only scores.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk import scoring


@dataclass
class Nodes:
    """Columns of unopened nodes; places where `is_open` is false are empty."""

    is_open: Bool[Tensor, "batch nodes"]
    token: Int[Tensor, "batch nodes"]
    parent: Int[Tensor, "batch nodes"]
    child: Int[Tensor, "batch nodes"]  # which child of its parent
    depth: Int[Tensor, "batch nodes"]
    step: Int[Tensor, "batch nodes"]
    score: Float[Tensor, "batch nodes"]
    log_prob: Float[Tensor, "batch nodes"]
    last_log_prob: Float[Tensor, "batch nodes"]

    def take(self, index: Int[Tensor, "batch picked"]) -> Nodes:
        """Pick nodes by position."""
        return Nodes(**{f.name: getattr(self, f.name).gather(1, index) for f in fields(self)})

    @staticmethod
    def empty(batch: int, size: int, device: torch.device) -> Nodes:
        """Make columns with no node in them."""
        whole = torch.zeros(batch, size, dtype=torch.int64, device=device)
        real = torch.zeros(batch, size, dtype=torch.float64, device=device)
        integers = {name: whole.clone() for name in ("token", "parent", "child", "depth", "step")}
        reals = {name: real.clone() for name in ("score", "log_prob", "last_log_prob")}
        return Nodes(is_open=torch.zeros_like(whole, dtype=torch.bool), **integers, **reals)


class Frontier:
    """The open nodes of a batch of searches, at most `size` each, ranked for the next pop."""

    def __init__(
        self, batch: int, size: int, decays: Float[Tensor, " ages"], device: torch.device
    ) -> None:
        self.size = size
        self.decays = decays
        self.nodes = Nodes.empty(batch, size, device)
        self.priority = torch.full((batch, size), -torch.inf, dtype=torch.float64, device=device)
        # The order of the next pop: positions by priority, best first.
        self.order = torch.arange(size, device=device).repeat(batch, 1)

    def clear(self, rows: Int[Tensor, " cleared"]) -> None:
        """Empty the frontiers of these searches."""
        self.nodes.is_open.index_fill_(0, rows, False)

    def count(self) -> Int[Tensor, " batch"]:
        """Count the open nodes of each search."""
        return self.nodes.is_open.sum(dim=1)

    def push(self, found: Nodes, next_clock: Int[Tensor, " batch"]) -> Nodes:
        """Add nodes, keep the best by their priority at the next pop, return the ones dropped."""
        found = canonical(found)
        pool = Nodes(
            **{
                f.name: torch.cat([getattr(self.nodes, f.name), getattr(found, f.name)], dim=1)
                for f in fields(found)
            }
        )
        age = (next_clock[:, None] - pool.step).clamp(0, len(self.decays) - 1)
        priority = scoring.priority(pool.score, age, self.decays)
        priority = priority.masked_fill(~pool.is_open, -torch.inf)
        # The order in the pool is the tie order, so the sort must be stable.
        priority, order = priority.sort(dim=1, descending=True, stable=True)
        best, rest = order[:, : self.size], order[:, self.size :]
        dropped = pool.take(rest)

        # Back to the tie order, and remember where each rank went.
        best, rank = best.sort(dim=1)
        kept = pool.take(best)
        for f in fields(kept):
            getattr(self.nodes, f.name).copy_(getattr(kept, f.name))
        self.order.scatter_(1, rank, torch.arange(self.size, device=rank.device).expand_as(rank))
        self.priority.copy_(priority[:, : self.size])  # by rank
        return dropped

    def pop(
        self, width: int, limit: Int[Tensor, " batch"]
    ) -> tuple[Nodes, Float[Tensor, "batch group"]]:
        """Remove the best nodes: `width` places, of which at most `limit` hold a node."""
        index = self.order[:, :width]
        group = self.nodes.take(index)
        places = torch.arange(index.shape[1], device=index.device)
        group.is_open = group.is_open & (places < limit[:, None])
        left = self.nodes.is_open.gather(1, index) & ~group.is_open
        self.nodes.is_open.scatter_(1, index, left)
        return group, self.priority[:, :width]

    def put_back(self, is_valid: Bool[Tensor, "batch group"]) -> Nodes:
        """Open the nodes of the last pop again, and return them."""
        index = self.order[:, : is_valid.shape[1]]
        self.nodes.is_open.scatter_(1, index, self.nodes.is_open.gather(1, index) | is_valid)
        return self.nodes.take(index)


def canonical(found: Nodes) -> Nodes:
    """Order nodes that were found in one step: child probability, token id, parent slot.

    They come by parent slot already; stable sorts, least important key first, do the rest.
    """
    order = found.token.sort(dim=1, stable=True).indices
    by_prob = found.last_log_prob.gather(1, order).sort(dim=1, descending=True, stable=True)
    return found.take(order.gather(1, by_prob.indices))
