"""The frontiers of a batch of searches: unopened nodes, as columns of tensors.

Columns keep one order, older nodes first and, among nodes found in the same step, higher child
probability, lower token id, lower parent slot first. A stable sort by priority then breaks ties as
the design says, and nothing else has to. Knows neither probabilities nor text, only scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

WHOLES = ("token", "parent", "child", "depth", "step")  # child: which child of its parent
_REALS = ("score", "log_prob", "last_log_prob")


@dataclass
class Nodes:
    """Columns of unopened nodes; places where `is_open` is false are empty.

    The columns lie side by side in two tensors, so that moving nodes costs a GPU few launches.
    """

    is_open: Bool[Tensor, "batch nodes"]
    whole: Int[Tensor, "batch wholes nodes"]
    real: Float[Tensor, "batch reals nodes"]

    @staticmethod
    def of(is_open: Bool[Tensor, "batch ..."], **columns: Tensor) -> Nodes:
        """Put columns together by their names; all may have more axes than one."""
        return Nodes(
            is_open=is_open.flatten(1),
            whole=torch.stack([columns[name] for name in WHOLES], dim=1).flatten(2),
            real=torch.stack([columns[name] for name in _REALS], dim=1).flatten(2),
        )

    @staticmethod
    def empty(batch: int, size: int, device: torch.device) -> Nodes:
        """Make columns with no node in them."""
        return Nodes(
            is_open=torch.zeros(batch, size, dtype=torch.bool, device=device),
            whole=torch.zeros(batch, len(WHOLES), size, dtype=torch.int64, device=device),
            real=torch.zeros(batch, len(_REALS), size, dtype=torch.float64, device=device),
        )

    @staticmethod
    def joined(one: Nodes, other: Nodes) -> Nodes:
        """Append nodes to nodes."""
        return Nodes(
            is_open=torch.cat([one.is_open, other.is_open], dim=1),
            whole=torch.cat([one.whole, other.whole], dim=2),
            real=torch.cat([one.real, other.real], dim=2),
        )

    def take(self, index: Int[Tensor, "batch picked"]) -> Nodes:
        """Pick nodes by position."""
        wide = index[:, None]
        return Nodes(
            is_open=self.is_open.gather(1, index),
            whole=self.whole.gather(2, wide.expand(-1, len(WHOLES), -1)),
            real=self.real.gather(2, wide.expand(-1, len(_REALS), -1)),
        )

    def become(self, other: Nodes, index: Int[Tensor, "batch nodes"]) -> None:
        """Become these of other nodes, in the same memory."""
        wide = index[:, None]
        torch.gather(other.is_open, 1, index, out=self.is_open)
        torch.gather(other.whole, 2, wide.expand(-1, len(WHOLES), -1), out=self.whole)
        torch.gather(other.real, 2, wide.expand(-1, len(_REALS), -1), out=self.real)

    @property
    def token(self) -> Int[Tensor, "batch nodes"]:
        return self.whole[:, 0]

    @property
    def parent(self) -> Int[Tensor, "batch nodes"]:
        return self.whole[:, 1]

    @property
    def child(self) -> Int[Tensor, "batch nodes"]:
        return self.whole[:, 2]

    @property
    def depth(self) -> Int[Tensor, "batch nodes"]:
        return self.whole[:, 3]

    @property
    def step(self) -> Int[Tensor, "batch nodes"]:
        return self.whole[:, 4]

    @property
    def score(self) -> Float[Tensor, "batch nodes"]:
        return self.real[:, 0]

    @property
    def log_prob(self) -> Float[Tensor, "batch nodes"]:
        return self.real[:, 1]

    @property
    def last_log_prob(self) -> Float[Tensor, "batch nodes"]:
        return self.real[:, 2]


class Frontier:
    """The open nodes of a batch of searches, at most `size` each, ranked for the next pop.

    One that `shrinks` has no more places, at any time, than its open nodes need.
    """

    def __init__(
        self, batch: int, size: int, device: torch.device, *, shrinks: bool = False
    ) -> None:
        self.size, self.shrinks = size, shrinks
        self._empty(batch, 1 if shrinks else size, device)

    def emptied(self, batch: int) -> Frontier:
        """Return a frontier of another number of searches with as many places, and no nodes."""
        other = Frontier(batch, self.size, self.order.device, shrinks=self.shrinks)
        other._empty(batch, self.order.shape[1], self.order.device)
        return other

    def columns(self) -> list[Tensor]:
        """Name every tensor that has a row per search."""
        return [self.nodes.is_open, self.nodes.whole, self.nodes.real, self.priority, self.order]

    def clear(self, rows: Int[Tensor, " cleared"]) -> None:
        """Empty the frontiers of these searches."""
        self.nodes.is_open.index_fill_(0, rows, False)

    def count(self) -> Int[Tensor, " batch"]:
        """Count the open nodes of each search."""
        return self.nodes.is_open.sum(dim=1)

    def best(self, width: int, most: Int[Tensor, " batch"]) -> Nodes:
        """Return the best nodes, which stay: `width` places, of which at most `most` hold one."""
        group = self.nodes.take(self.order[:, :width])
        places = torch.arange(group.token.shape[1], device=self.order.device)
        group.is_open = group.is_open & (places < most[:, None])
        return group

    def pop(self, is_taken: Bool[Tensor, "batch group"]) -> None:
        """Remove the best nodes, where they are taken."""
        index = self.order[:, : is_taken.shape[1]]
        was_open = self.nodes.is_open.gather(1, index)
        self.nodes.is_open.scatter_(1, index, was_open & ~is_taken)

    def push(self, found: Nodes) -> Nodes:
        """Add nodes that were found in one step, behind the others in the order of ties."""
        return Nodes.joined(self.nodes, canonical(found))

    def prune(
        self,
        pool: Nodes,
        priority: Float[Tensor, "batch pool"],
        wanted: Bool[Tensor, "batch pool"] | None = None,
    ) -> Nodes:
        """Keep the best of a pool by their priority at the next pop, return the ones dropped.

        Those that are not `wanted` are dropped first.
        """
        was_open = pool.is_open
        if wanted is not None:
            pool.is_open = was_open & wanted
        # The order in the pool is the tie order, so the sort must be stable.
        priority, order = priority.where(pool.is_open, -torch.inf).sort(
            dim=1, descending=True, stable=True
        )
        size = self.size
        if self.shrinks:
            size = min(size, max(1, int(pool.is_open.sum(dim=1).max())))
            self._empty(len(self.order), size, self.order.device)
        best = order[:, :size]

        # Back to the tie order: what is kept moves up, and each rank remembers where it went.
        is_kept = torch.zeros_like(pool.is_open).scatter_(1, best, True)
        position = is_kept.cumsum(dim=1) - 1
        target = torch.where(is_kept, position, size)  # the rest goes past the end
        source = target.new_zeros(len(target), size + 1)
        source.scatter_(
            1, target, torch.arange(target.shape[1], device=target.device).expand_as(target)
        )
        self.nodes.become(pool, source[:, :size])
        torch.gather(position, 1, best, out=self.order)
        self.priority.copy_(priority[:, :size])  # by rank
        pool.is_open = was_open > (is_kept & pool.is_open)
        return pool

    def _empty(self, batch: int, size: int, device: torch.device) -> None:
        """Have so many places, and nothing in them."""
        self.nodes = Nodes.empty(batch, size, device)
        self.priority = torch.full((batch, size), -torch.inf, dtype=torch.float64, device=device)
        # The order of the next pop: positions by priority, best first.
        self.order = torch.arange(size, device=device).repeat(batch, 1)


def canonical(found: Nodes) -> Nodes:
    """Order nodes that were found in one step: child probability, token id, parent slot.

    They come by parent slot already; stable sorts, least important key first, do the rest.
    """
    order = found.token.sort(dim=1, stable=True).indices
    by_prob = found.last_log_prob.gather(1, order).sort(dim=1, descending=True, stable=True)
    return found.take(order.gather(1, by_prob.indices))
