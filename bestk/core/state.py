"""The state of a batch of searches: trees, frontiers, ledgers and clocks, as columns of tensors.

What a policy decides is done here, a fixed sequence of operations for all searches at once. Keeps
the books: where the probability went, and a bound on every text that was not found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.core.frontier import Frontier, Nodes
from bestk.core.ledger import Ledger
from bestk.core.policy import Plan, Shape, spec_of
from bestk.core.record import Finding, Standing, TreeRecord, texts_of
from bestk.core.tree import State, Tree
from bestk.nodes import Children

# Models give log-probabilities in single precision: of what is left of 1 no less can be trusted.
ROUNDING = 1e-5


class Fate(NamedTuple):
    """What becomes of the children of some nodes; of those that may open the rest is unlikely."""

    may_open: Bool[Tensor, "batch nodes children"]
    complete: Bool[Tensor, "batch nodes children"]
    truncated: Bool[Tensor, "batch nodes children"]
    opened: Bool[Tensor, "batch nodes children"]


class SearchState:
    """The searches of one batch."""

    def __init__(self, config: SearchConfig, shape: Shape) -> None:
        self.config, self.shape = config, shape
        self.by_score = False  # what is proven is the order of scores, not of probabilities
        self.spec = spec_of(config, shape.vocab_size, shape.num_forced)
        batch, device = shape.batch, shape.device
        num_children = self.spec.num_children + self.spec.num_forced
        self.tree = Tree(batch, self.spec.slots, self.spec.depth, num_children, device)
        self.frontier = Frontier(batch, config.max_frontier, device)
        self.is_stop = torch.zeros(shape.vocab_size, dtype=torch.bool, device=device)
        self.is_stop[[*shape.stop_ids, *config.stop_ids]] = True

        self.kept: list[tuple[Tensor, int | float]] = []
        self.ledger = Ledger(*(self.keep(0.0) for _ in range(4)))
        self.clock, self.num_completions, self.num_truncated = (self.keep(0) for _ in range(3))
        # The likeliest thing ever pruned: with the frontier, a bound on any text not found.
        self.pruned_bound = self.keep(-math.inf)
        self.broken_at = self.keep(-1)  # the step at which the model gave NaN
        self.is_active, self.timed_out = self.keep(True), self.keep(False)

    def keep(self, initial: int | float, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        """Make a column, a row for each search, that has its initial value where one begins."""
        if dtype is None and isinstance(initial, float):
            dtype = torch.float64
        shape = self.shape.batch, *size
        column = torch.full(shape, initial, dtype=dtype, device=self.shape.device)
        self.kept.append((column, initial))
        return column

    def columns(self) -> list[Tensor]:
        """Name every tensor that has a row per search."""
        own = [column for column, _ in self.kept]
        return [*own, *self.tree.columns(), *self.frontier.columns()]

    def restart(self, rows: Int[Tensor, " begun"]) -> Plan:
        """Begin these searches anew; their roots are planned."""
        for column, initial in self.kept:
            column.index_fill_(0, rows, initial)
        self.frontier.clear(rows)
        nodes = self.tree.roots(rows)
        return Plan(nodes, torch.zeros_like(nodes.depth, dtype=torch.float64), is_begin=True)

    def plan(self, nodes: Nodes) -> Plan:
        """Plan nodes of the frontier, which stay there until their step is taken."""
        width = nodes.token.shape[1]
        priority = self.frontier.priority[:, :width]
        return Plan(self.tree.place(nodes), nodes.log_prob, taken=nodes, priority=priority)

    def take(self, plan: Plan) -> None:
        """Move planned nodes out of the frontier into the tree."""
        if plan.is_begin:
            self.tree.count += plan.nodes.is_valid.sum(dim=1)
            return
        assert plan.taken is not None
        assert plan.priority is not None
        is_valid = plan.nodes.is_valid
        self.clock += is_valid.any(dim=1)
        self.frontier.pop(is_valid)
        self.tree.mark(plan.taken.parent, plan.taken.child, State.EXPANDED, is_valid)
        self.tree.append(plan.nodes, plan.taken, plan.priority, self.clock)

    def sound(self, plan: Plan, children: Children) -> Children:
        """Note searches whose model gave NaN; what it gave is no child, and proves nothing."""
        log_prob = children.log_prob.double()
        is_sound = log_prob < math.inf  # NaN is not
        is_broken = (plan.nodes.is_valid[..., None] > is_sound).flatten(1).any(dim=1)
        fresh = is_broken & (self.broken_at < 0)
        torch.where(fresh, self.clock, self.broken_at, out=self.broken_at)
        self.pruned_bound.masked_fill_(is_broken, math.inf)
        return children._replace(log_prob=log_prob.where(is_sound, -math.inf))

    def settle(
        self,
        plan: Plan,
        children: Children,
        fate: Fate,
        score: Float[Tensor, "batch nodes children"],
    ) -> None:
        """Record what became of children: in the tree, in the ledger, and in the bound."""
        exists = plan.nodes.is_valid[..., None] & (children.log_prob > -math.inf)
        state = exists * int(State.BELOW)
        state = state.masked_fill(fate.complete, int(State.COMPLETE))
        state = state.masked_fill(fate.truncated, int(State.TRUNCATED))
        state = state.masked_fill(fate.opened, int(State.OPEN))
        self.tree.record(plan.nodes, children, score, state)

        log_prob = plan.log_prob[..., None] + children.log_prob
        again = None if children.verdict is None else children.verdict.repeats
        booked = fate.complete if again is None else fate.complete & ~again
        kinds = torch.stack([booked, fate.truncated, fate.opened])
        whole = (plan.log_prob.exp() * plan.nodes.is_valid).sum(dim=1)
        self.ledger.book(whole, log_prob, kinds)
        self.num_completions += fate.complete.sum(dim=(1, 2))
        self.num_truncated += fate.truncated.sum(dim=(1, 2))
        passes = fate.complete | fate.truncated | fate.opened
        worth = score if self.by_score else log_prob
        self._raise_bound(plan, children, worth, fate.may_open ^ passes)

    def found(
        self,
        plan: Plan,
        children: Children,
        opened: Bool[Tensor, "batch nodes children"],
        score: Float[Tensor, "batch nodes children"],
    ) -> Nodes:
        """Put opened children into the frontier's order of ties, behind what is there."""
        shape = children.token.shape
        child = torch.arange(shape[2], device=score.device).expand(shape)
        found = Nodes.of(
            is_open=opened,
            token=children.token,
            parent=plan.nodes.slot[..., None].expand(shape),
            child=child,
            depth=(plan.nodes.depth[..., None] + 1).expand(shape),
            step=self.clock[:, None, None].expand(shape),
            score=score,
            log_prob=plan.log_prob[..., None] + children.log_prob,
            last_log_prob=children.log_prob,
        )
        return self.frontier.push(found)

    def prune(self, pool: Nodes, priority: Float[Tensor, "batch pool"]) -> None:
        """Keep the best of a pool, and book what is dropped."""
        self.drop(self.frontier.prune(pool, priority))

    def drop(self, dropped: Nodes) -> None:
        """Book nodes that leave the frontier unopened."""
        self.tree.mark(dropped.parent, dropped.child, State.DROPPED, dropped.is_open)
        self.ledger.pruned_frontier += (dropped.log_prob.exp() * dropped.is_open).sum(dim=1)
        worth = dropped.score if self.by_score else dropped.log_prob
        self.pruned_bound.clamp_(min=worth.where(dropped.is_open, -math.inf).amax(dim=1))

    def update_active(self) -> None:
        """Stop the searches that have reached a limit."""
        config = self.config
        active = (self.tree.count < config.total_budget) & self.frontier.nodes.is_open.any(dim=1)
        active &= (self.broken_at < 0) > self.timed_out
        if config.max_completions is not None:
            active &= self.num_completions < config.max_completions
        self.is_active.copy_(active)

    def stop_certified(self) -> None:
        """Stop the searches whose texts are proven, where that was asked for."""
        if self.config.certify is not None:
            self.is_active &= self.certified(self.tree.used) < self.config.certify

    def time_out(self, rows: Iterable[int]) -> None:
        """Stop these searches where they are."""
        for row in rows:
            self.timed_out[row] = True
            self.is_active[row] = False

    def bound(self) -> Float[Tensor, " batch"]:
        """Return the highest log-probability that a text not yet completed could have."""
        nodes = self.frontier.nodes
        worth = nodes.score if self.by_score else nodes.log_prob
        still_open = worth.masked_fill(~nodes.is_open, -math.inf).amax(dim=1)
        return torch.maximum(self.pruned_bound, still_open)

    def certified(self, slots: int) -> Int[Tensor, " batch"]:
        """Count the completions, in so many slots, that are proven to be the model's likeliest."""
        tree, used = self.tree, slice(slots)
        worth = tree.child_score[:, used]
        if not self.by_score:
            worth = tree.log_prob[:, used, None] + tree.child_log_prob[:, used]
        is_complete = tree.child_state[:, used] == State.COMPLETE
        proven = is_complete & (worth >= self.bound()[:, None, None])
        is_used = torch.arange(slots, device=worth.device) < tree.count[:, None]
        return (proven & is_used[..., None]).sum(dim=(1, 2))

    def frontier_mass(self) -> Float[Tensor, " batch"]:
        """Sum the probability of all open nodes; before anything is expanded the root is open."""
        nodes = self.frontier.nodes
        return (nodes.log_prob.exp() * nodes.is_open).sum(dim=1) + (self.tree.count == 0)

    def stop_reasons(self) -> list[str]:
        """Name why every search ended; one that never did was broken off."""
        config = self.config
        limits = {
            "broken": self.broken_at >= 0,
            "max_completions": self.num_completions >= (config.max_completions or math.inf),
            "certified": self.certified(int(self.tree.count.max())) >= (config.certify or math.inf),
            "budget": self.tree.count >= config.total_budget,
        }
        reasons, timed_out = [], self.timed_out.tolist()
        for row, is_active in enumerate(self.is_active.tolist()):
            hit = (name for name, reached in limits.items() if bool(reached[row]))
            broken_off = "timeout" if timed_out[row] else "exhausted"
            reasons.append("interrupted" if is_active else next(hit, broken_off))
        return reasons

    def standing(self, row: int) -> Standing:
        """Return where a search stands."""
        return Standing(
            step=int(self.clock[row]),
            expanded=int(self.tree.count[row]),
            num_completions=int(self.num_completions[row]),
            mass=self.ledger.masses(self.frontier_mass())[row],
        )

    def findings(self, rows: Sequence[int]) -> list[Finding]:
        """Return what these searches have found so far."""
        clocks, reasons, bounds = self.clock.tolist(), self.stop_reasons(), self.bound().tolist()
        masses = self.ledger.masses(self.frontier_mass())
        truncated, broken_at = self.num_truncated.tolist(), self.broken_at.tolist()
        return [
            Finding(
                texts=texts_of(record, bounds[row], by_score=self.by_score),
                mass=masses[row],
                expanded=len(record),
                steps=clocks[row] + 1,
                stop_reason=reasons[row],
                num_truncated=truncated[row],
                bound=bounds[row],
                broken_at=broken_at[row],
                record=record,
            )
            for row, record in zip(rows, TreeRecord.of(self.tree, rows), strict=True)
        ]

    def _raise_bound(
        self,
        plan: Plan,
        children: Children,
        worth: Float[Tensor, "batch nodes children"],
        unopened: Bool[Tensor, "batch nodes children"],
    ) -> None:
        """Raise the bound by the best child that was not opened, listed or not."""
        best = worth.where(unopened, -math.inf).amax(dim=2)
        if children.rest is not None:
            best = torch.maximum(best, plan.log_prob + children.rest)
        elif self.spec.num_children < self.shape.vocab_size or self.config.sample == "tokens":
            # A token past the list is no likelier than the last of the likeliest, nor than what is
            # left; forced tokens come after those, and are as unlikely as they are.
            unseen = (1 - children.log_prob.exp().sum(dim=2)).clamp(min=ROUNDING).log()
            if self.config.sample is None:  # what is drawn may leave likelier tokens out
                last = children.log_prob[..., self.spec.num_children - 1]
                unseen = torch.minimum(unseen, last)
            best = torch.maximum(best, plan.log_prob + unseen)
        self.pruned_bound.clamp_(min=best.where(plan.nodes.is_valid, -math.inf).amax(dim=1))
