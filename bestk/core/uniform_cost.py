"""Uniform-cost search: the best open nodes come next, as many as the n best texts may still need.

For scores that no longer text can raise, sums of log-probabilities with an admissible bonus. Once
n texts are complete, a node below the n-th can be in none of the n best: it is not opened, and all
that are not below go through the model together. Before that a quarter of `k` do, the deepest of
them first, so that texts are found however flat the model is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.core.best_k import BestK
from bestk.core.frontier import Frontier, Nodes
from bestk.core.policy import Plan, Shape
from bestk.core.state import Fate
from bestk.nodes import Children

_AHEAD = 1e4  # nats: no path differs by as much
_SLACK = 1e-3  # what single precision and the order of a sum may change of a score


class UniformCost(BestK):
    """Proves n texts to be the best, n being `certify`, in few calls."""

    def __init__(self, config: SearchConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.search.by_score = True
        is_on_cpu = shape.device.type == "cpu"
        self.search.frontier = Frontier(
            shape.batch, config.max_frontier, shape.device, shrinks=is_on_cpu
        )
        # The scores of the n best complete texts, best first.
        self.best: Float[Tensor, "batch n"] = self.search.keep(-torch.inf, config.certify or 1)

    def begin(self, rows: Int[Tensor, " begun"], keys: Sequence[int] = ()) -> Plan:
        """Start these searches anew."""
        self.floor = None
        return super().begin(rows, keys)

    def next(self) -> Plan:
        """Return the nodes that may still matter, best first; they stay in the frontier."""
        search, frontier, width = self.search, self.search.frontier, self.spec.width
        left = (self.config.total_budget - search.tree.count) * search.is_active
        if self.config.certify is not None:
            worst = self.best[:, -1:]
            needed = (frontier.priority >= worst).sum(dim=1)
            most = torch.where(worst[:, 0] > -torch.inf, needed, max(1, width // 16))
            left = torch.minimum(left, most)
        if left.device.type == "cpu":
            width = min(max(1, int(torch.minimum(left, frontier.count()).max())), width)
        plan = search.plan(frontier.best(width, most=left))
        self.floor = self.best[:, -1:] - plan.log_prob - _SLACK
        return plan

    def step(self, plan: Plan, children: Children) -> None:
        """Take one step of every search."""
        search = self.search
        search.take(plan)
        children = search.sound(plan, children)
        fate, score = self.fate(plan, children), self.score(plan, children)
        worst = self._note(fate, score)
        matters = score >= worst[..., None]
        fate = fate._replace(complete=fate.complete & matters, opened=fate.opened & matters)
        index = self._promising(fate, score)
        opened = torch.zeros_like(fate.opened).flatten(1).scatter_(1, index, True)
        fate = fate._replace(opened=fate.opened & opened.view_as(fate.opened))
        search.settle(plan, children, fate, score)
        found = self._found(plan, children, fate, score, index)
        pool = Nodes.joined(search.frontier.nodes, found)
        priority = self.priority(pool, search.clock + 1)
        search.drop(search.frontier.prune(pool, priority, pool.score >= worst))
        search.update_active()
        if self.config.certify is not None:
            search.is_active &= self.best[:, -1] < search.bound()

    def priority(self, pool: Nodes, clock: Int[Tensor, " batch"]) -> Float[Tensor, "batch pool"]:
        """Rank open nodes: by score, and until n texts are complete some deep ones before all."""
        score = super().priority(pool, clock)
        deep = (score + _AHEAD * pool.depth).where(pool.is_open, -torch.inf)
        least = deep.topk(min(max(1, self.spec.width // 16), deep.shape[1])).values[:, -1:]
        is_ahead = (deep >= least) & (self.best[:, -1:] == -torch.inf)
        return score + _AHEAD * is_ahead

    def _note(
        self, fate: Fate, score: Float[Tensor, "batch nodes children"]
    ) -> Float[Tensor, "batch 1"]:
        """Take the completed into the n best, and return the n-th's score."""
        found = score.where(fate.complete, -torch.inf).flatten(1)
        every = torch.cat([self.best, found], dim=1)
        self.best.copy_(every.topk(self.best.shape[1]).values)
        if self.config.certify is None:
            return torch.full_like(self.best[:, -1:], -torch.inf)
        return self.best[:, -1:]

    def _promising(
        self, fate: Fate, score: Float[Tensor, "batch nodes children"]
    ) -> Int[Tensor, "batch found"]:
        """Return the places of the best open children, as many as the frontier holds."""
        worth = score.where(fate.opened, -torch.inf).flatten(1)
        size = min(self.search.frontier.size, worth.shape[1])
        if worth.device.type == "cpu":
            size = min(size, max(1, int(fate.opened.sum(dim=(1, 2)).max())))
        return worth.topk(size).indices.sort(dim=1).values  # back in the order of ties

    def _found(
        self,
        plan: Plan,
        children: Children,
        fate: Fate,
        score: Float[Tensor, "batch nodes children"],
        index: Int[Tensor, "batch found"],
    ) -> Nodes:
        """Return some children as nodes."""
        num_children = score.shape[2]
        node = index // num_children
        last = children.log_prob.flatten(1).gather(1, index)
        return Nodes.of(
            is_open=fate.opened.flatten(1).gather(1, index),
            token=children.token.flatten(1).gather(1, index),
            parent=plan.nodes.slot.gather(1, node),
            child=index % num_children,
            depth=plan.nodes.depth.gather(1, node) + 1,
            step=self.search.clock[:, None].expand_as(index),
            score=score.flatten(1).gather(1, index),
            log_prob=plan.log_prob.gather(1, node) + last,
            last_log_prob=last,
        )
