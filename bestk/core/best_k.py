"""Best-k search, Algorithm 2 of Xu et al. (ACL 2023), for a batch of searches in lockstep.

Knows nodes, scores and probabilities; no model, no text, no batching. A step is taken when the
children of its nodes are known, so it never has to be undone. Comments: the paper's lines.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.core.frontier import Nodes
from bestk.core.policy import Plan, Policy, Shape, age_table, length_table
from bestk.core.record import Finding, Standing
from bestk.core.state import Fate, SearchState
from bestk.core.stepper import step_kernels
from bestk.nodes import Children, Gate, NodeBatch


class BestK(Policy):
    """Which nodes come next, and what becomes of their children."""

    is_static = can_refill = True

    def __init__(self, config: SearchConfig, shape: Shape) -> None:
        self.config = config
        self.search = SearchState(config, shape)
        self.spec = self.search.spec
        self.is_active = self.search.is_active
        self.decay = age_table(config, shape.device)  # κ·age^β
        self.power = length_table(config, shape.device)  # length^α
        self.threshold = math.log(config.min_prob) if config.min_prob > 0 else -math.inf  # log γ
        # The kernels know these methods alone, not what a subclass makes of them.
        self.kernels = step_kernels(self) if type(self) is BestK else None

    def begin(self, rows: Int[Tensor, " begun"], keys: Sequence[int] = ()) -> Plan:
        """Start these searches anew."""
        return self.search.restart(rows)

    def next(self) -> Plan:
        """Return the nodes of the next step, best first; they stay in the frontier."""
        search = self.search
        if self.kernels is not None:
            return self.kernels.next(self)
        left = (self.config.total_budget - search.tree.count) * search.is_active  # 4: T < budget
        # 9-10: g = min(k, |PQ|), heappop(g)
        return search.plan(search.frontier.best(self.spec.width, most=left))

    def step(self, plan: Plan, children: Children) -> None:
        """Take one step of every search."""
        search = self.search
        if self.kernels is not None and children.verdict is None:
            self.kernels.step(self, plan, children)
            search.stop_certified()
            return
        search.take(plan)  # 11: O ← O \\ H; 25: T ← T + g; 26: t ← t + 1
        children = search.sound(plan, children)  # 13-15: n ∘ v
        fate, score = self.fate(plan, children), self.score(plan, children)
        search.settle(plan, children, fate, score)  # 16-17: P ← P ∪ (n ∘ v)
        pool = search.found(plan, children, fate.opened, score)  # 20-21: ⟨h(n ∘ v), v, t⟩
        if self.config.prune_margin is not None:
            self.drop_below(pool, self.config.prune_margin)
        search.prune(pool, self.priority(pool, search.clock + 1))  # 6-8 and 24, for the next t
        search.update_active()
        search.stop_certified()

    def gate(self, nodes: NodeBatch, children: Children) -> Gate:
        """Return which children exist and may be opened, and which end a text by their token."""
        exists = (children.log_prob > -math.inf) & (children.log_prob < math.inf)
        may_open = nodes.is_valid[..., None] & exists
        is_stop = self.search.is_stop[children.token.clamp(min=0)]
        if self.config.min_new_tokens > 1:
            is_early = nodes.depth[..., None] + 1 < self.config.min_new_tokens
            may_open = may_open & ~(is_stop & is_early)
        is_likely = children.log_prob.double() >= self.threshold

        def passes(may_open: Tensor, is_forced: Tensor | None) -> Tensor:
            # The children are sorted, so the running count is the rank among those that may open.
            is_among_best = may_open.cumsum(dim=2) <= self.config.min_children
            wanted = is_likely | is_among_best
            return may_open & (wanted if is_forced is None else wanted | is_forced)

        return Gate(may_open, is_stop, passes)

    def fate(self, plan: Plan, children: Children) -> Fate:
        """Sort children into complete, truncated, open, and those not worth opening."""
        verdict = children.verdict
        if verdict is None:
            gate = self.gate(plan.nodes, children)
            may_open = gate.may_open
            passes = gate.passes(may_open, None)
            complete = passes & gate.is_stop
        else:
            may_open, passes = verdict.may_open, verdict.passes
            is_stop = self.search.is_stop[children.token.clamp(min=0)]
            complete = passes & (is_stop | verdict.completes)
        goes_on = passes ^ complete
        depth = plan.nodes.depth[..., None] + 1
        truncated = goes_on & (depth >= self.config.max_new_tokens)
        return Fate(may_open, complete, truncated, goes_on ^ truncated)

    def score(self, plan: Plan, children: Children) -> Float[Tensor, "batch nodes children"]:
        """Score children when they are found: h."""
        if self.config.alpha is None:
            score = children.log_prob  # the memoryless score of BKS_last
        else:
            length = (plan.nodes.depth[..., None] + 1).expand(children.token.shape)
            length = length.clamp(max=self.config.max_new_tokens)
            score = (plan.log_prob[..., None] + children.log_prob) / self.power[length]
        bonus = None if children.verdict is None else children.verdict.bonus
        return score if bonus is None else score + bonus

    def priority(self, pool: Nodes, clock: Int[Tensor, " batch"]) -> Float[Tensor, "batch pool"]:
        """Rank open nodes at a time: score less decay(n.time, t)."""
        age = (clock[:, None] - pool.step).clamp(0, len(self.decay) - 1)
        return pool.score + self.config.depth_bonus * pool.depth.double() - self.decay[age]

    def drop_below(self, pool: Nodes, margin: float) -> None:
        """Drop the nodes whose score is more than ε below the k-th best of a pool."""
        score = pool.score.where(pool.is_open, -math.inf)
        if score.shape[1] < self.config.k:
            return
        least = score.topk(self.config.k).values[:, -1:]
        lost = Nodes(pool.is_open & (score < least - margin), pool.whole, pool.real)
        self.search.drop(lost)
        pool.is_open = pool.is_open & ~lost.is_open

    def time_out(self, rows: Iterable[int]) -> None:
        """Stop these searches where they are."""
        self.search.time_out(rows)

    def standing(self, row: int) -> Standing:
        """Return where a search stands."""
        return self.search.standing(row)

    def findings(self, rows: Sequence[int], *, keep_tree: bool = True) -> list[Finding]:
        """Return what these searches have found so far."""
        return self.search.findings(rows)

    def resized(self, rows: Sequence[int], batch: int) -> BestK:
        """Return a batch of another size that goes on with these searches, in its first rows."""
        shape = dataclasses.replace(self.search.shape, batch=batch)
        other = self.like(shape)
        index = torch.tensor(rows, dtype=torch.int64, device=shape.device)
        other.search.frontier = self.search.frontier.emptied(batch)
        for new, old in zip(other.columns(), self.columns(), strict=True):
            new[: len(rows)] = old[index]
        other.is_active[len(rows) :] = False
        return other

    def like(self, shape: Shape) -> BestK:
        """Return searches of another shape with the same settings, none of which has begun."""
        return type(self)(self.config, shape)

    def columns(self) -> list[Tensor]:
        """Name every tensor that has a row per search."""
        return self.search.columns()
