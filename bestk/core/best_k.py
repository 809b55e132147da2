"""Best-k search (Algorithm 2 of the paper) for a batch of prompts in lockstep.

`run` is the loop: pop the best nodes of every frontier, expand them in one model call, push their
children, prune. `Searches` holds the state of all searches as tensors of fixed shape; a step is a
fixed sequence of tensor operations, no Python per node. Knows tokens and probabilities, no text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.backends.base import Children, Group, Room, Session
from bestk.config import SearchConfig
from bestk.core import scoring
from bestk.core.frontier import Frontier, Nodes
from bestk.core.ledger import Ledger
from bestk.core.stepper import step_kernels
from bestk.core.tree import State, Tree

# Models give log-probabilities in single precision: of what is left of 1 no less can be trusted.
_ROUNDING = 1e-5


class Verdict(NamedTuple):
    """What a rule says of the children that a group opens; None where it has nothing to say."""

    complete: Bool[Tensor, "batch group children"] | None = None  # these complete a text
    bonus: Float[Tensor, "batch group children"] | None = None  # added to their scores


class Rule:
    """Judges children by more than their probability: stop strings, constraints on the text.

    `bar` speaks first, of all children that exist; then, of those that pass γ, `judge`. `is_stop`
    marks the children whose token completes a text. Children whose tokens the rule `wants` pass γ
    whatever their probability; a session lists them if the rule is its `Seeker` too.
    """

    num_wanted = 0  # the most tokens that `wants` names for a node

    def wants(self, group: Group) -> Int[Tensor, "batch group wanted"] | None:
        """Name `num_wanted` different tokens per node, −1 for none; None for none at all."""
        return None

    def bar(
        self,
        group: Group,
        children: Children,
        may_open: Bool[Tensor, "batch group children"],
        is_stop: Bool[Tensor, "batch group children"],
    ) -> Bool[Tensor, "batch group children"] | None:
        """Say which children may not be opened, whatever their probability."""
        return None

    def judge(
        self,
        group: Group,
        children: Children,
        passes: Bool[Tensor, "batch group children"],
        is_stop: Bool[Tensor, "batch group children"],
    ) -> Verdict:
        """Say which of the passing children complete a text, and what is added to their scores."""
        return Verdict()


@dataclass(frozen=True)
class Step:
    """One turn of the loop, as every front end sees it.

    `searches` is the live state: read from it what is needed before asking for the next step.
    """

    index: int  # 0 is the root's expansion
    group: Group
    searches: Searches


def run(session: Session, searches: Searches) -> Iterator[Step]:
    """Search until every search of the batch has stopped; closes the session however it ends."""
    started = time.monotonic()
    timeout = searches.config.timeout
    try:
        yield Step(0, searches.begin(session.root), searches)
        index = 1
        while searches.is_running():
            if timeout is not None and time.monotonic() - started >= timeout:
                searches.time_out(range(searches.batch))
                return
            yield Step(index, searches.advance(session.expand), searches)
            index += 1
    finally:
        session.close()


class Searches:
    """The state of a batch of searches: trees, frontiers, ledgers, clocks."""

    def __init__(
        self,
        config: SearchConfig,
        *,
        batch: int,
        vocab_size: int,
        eos_ids: tuple[int, ...],
        device: torch.device,
        rules: Sequence[Rule] = (),
    ) -> None:
        self.config = config
        self.batch = batch
        self.rules = tuple(rules)
        self.vocab_size = vocab_size
        self.eos_ids = eos_ids
        self.room = room(config, vocab_size, sum(rule.num_wanted for rule in self.rules))
        num_children = self.room.num_children + self.room.num_wanted
        self.tree = Tree(batch, self.room.capacity, self.room.depth, num_children, device)
        self.powers = scoring.length_powers(config, device)
        self.frontier = Frontier(batch, config.max_frontier, scoring.decays(config, device), device)
        self.is_stop = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self.is_stop[[*eos_ids, *config.stop_ids]] = True

        def whole() -> Int[Tensor, " batch"]:
            return torch.zeros(batch, dtype=torch.int64, device=device)

        self.ledger = Ledger.empty(batch, device)
        self.clock = whole()
        self.num_completions = whole()
        self.num_truncated = whole()
        # The likeliest thing ever pruned: with the frontier, a bound on any text not found.
        self.pruned_bound = torch.full_like(self.ledger.completed, -math.inf)
        self.broken_at = whole() - 1  # the step at which the model gave NaN
        self.is_active = torch.ones(batch, dtype=torch.bool, device=device)
        self.timed_out = torch.zeros_like(self.is_active)
        self.all_rows = torch.arange(batch, device=device)
        self.kernels = step_kernels(self, _ROUNDING)

    def restart(self, rows: Int[Tensor, " restarted"] | None = None) -> Group:
        """Begin these searches anew, all by default; the group holds their roots."""
        rows = self.all_rows if rows is None else rows
        for counter in (self.clock, self.num_completions, self.num_truncated):
            counter.index_fill_(0, rows, 0)
        for mass in vars(self.ledger).values():
            mass.index_fill_(0, rows, 0.0)
        self.pruned_bound.index_fill_(0, rows, -math.inf)
        self.broken_at.index_fill_(0, rows, -1)
        self.is_active.index_fill_(0, rows, True)
        self.timed_out.index_fill_(0, rows, False)
        self.frontier.clear(rows)
        return self.tree.plant(rows)

    def columns(self) -> list[Tensor]:
        """Name every tensor that has a row per search."""
        own = [self.clock, self.num_completions, self.num_truncated, self.pruned_bound]
        own += [self.broken_at, self.is_active, self.timed_out, *vars(self.ledger).values()]
        return [*own, *self.tree.columns(), *self.frontier.columns()]

    def time_out(self, rows: Iterable[int]) -> None:
        """Stop these searches where they are."""
        for row in rows:
            self.timed_out[row] = True
            self.is_active[row] = False

    def begin(
        self,
        read: Callable[[Group], Children],
        rows: Int[Tensor, " restarted"] | None = None,
    ) -> Group:
        """Expand the roots of these searches, all by default: step 0 of the loop."""
        group = self.restart(rows)
        try:
            children = read(group)
        except BaseException:
            self.tree.count -= group.is_valid.sum(dim=1)
            raise
        self.push(group, children)
        return group

    def advance(self, expand: Callable[[Group], Children]) -> Group:
        """Do one step of the loop: pop, expand, push, prune."""
        group = self.pop()
        try:
            children = expand(group)
        except BaseException:
            self.put_back(group)
            raise
        self.push(group, children)
        return group

    def pop(self) -> Group:
        """Take the best nodes of every frontier, within what is left of each budget."""
        if self.kernels is not None:
            return self.kernels.pop(self)
        self.clock += self.is_active
        left = (self.config.total_budget - self.tree.count) * self.is_active
        nodes, priority = self.frontier.pop(self.room.width, left)
        self.tree.mark(nodes.parent, nodes.child, State.EXPANDED, nodes.is_open)
        return self.tree.append(
            token=nodes.token,
            parent=nodes.parent,
            depth=nodes.depth,
            step=nodes.step,
            log_prob=nodes.log_prob,
            last_log_prob=nodes.last_log_prob,
            priority=priority,
            clock=self.clock,
            is_valid=nodes.is_open,
        )

    def put_back(self, group: Group) -> None:
        """Undo the last pop, whose nodes could not be expanded: the ledger still adds up."""
        self.tree.count -= group.is_valid.sum(dim=1)
        nodes = self.frontier.put_back(group.is_valid)
        self.tree.mark(nodes.parent, nodes.child, State.OPEN, group.is_valid)
        self.clock -= self.is_active.long()

    def push(self, group: Group, children: Children) -> None:
        """Sort the children of a group into complete, too long, open and not worth opening."""
        if self.kernels is not None:
            self.kernels.push(self, group, children)
            self._stop_if_certified()
            return
        children = self._sound(group, Children(children.token, children.log_prob.double()))
        depth = group.depth[..., None] + 1
        log_prob = group.log_prob[..., None] + children.log_prob

        exists = group.is_valid[..., None] & (children.log_prob > -math.inf)
        is_stop = self.is_stop[children.token.clamp(min=0)]
        may_open = exists
        if self.config.min_new_tokens > 1:
            may_open = exists & ~(is_stop & (depth < self.config.min_new_tokens))
        for rule in self.rules:
            barred = rule.bar(group, children, may_open, is_stop)
            may_open = may_open if barred is None else may_open & ~barred
        passes = self._passes(group, children, may_open)
        complete, bonus = self._judge(group, children, passes, is_stop)
        goes_on = passes ^ complete
        too_long = goes_on & (depth >= self.config.max_new_tokens)
        opens = goes_on ^ too_long

        state = exists * int(State.BELOW)
        state = state.masked_fill(complete, int(State.COMPLETE))
        state = state.masked_fill(too_long, int(State.TRUNCATED))
        state = state.masked_fill(opens, int(State.OPEN))
        found = self._found(group, children, log_prob, opens, bonus)
        self.tree.record(group, children, found.score.view_as(state), state)

        kinds = torch.stack([complete, too_long, opens])
        self.ledger.book(group, log_prob, kinds)
        num_completed, num_truncated, _ = kinds.sum(dim=(2, 3)).unbind()
        self.num_completions += num_completed
        self.num_truncated += num_truncated
        self._bound(group, children, log_prob, may_open ^ passes)
        dropped = self.frontier.push(found, self.clock + 1)
        self._account_dropped(dropped)
        self._update_active()

    def is_running(self) -> bool:
        """Say whether any search goes on. The one place where the host waits for the device."""
        return bool(self.is_active.any())

    def frontier_mass(self) -> Float[Tensor, " batch"]:
        """Sum the probability of all open nodes; before anything is expanded the root is open."""
        nodes = self.frontier.nodes
        return (nodes.log_prob.exp() * nodes.is_open).sum(dim=1) + (self.tree.count == 0)

    def bound(self) -> Float[Tensor, " batch"]:
        """Return the highest log-probability that a text not yet completed could have."""
        nodes = self.frontier.nodes
        still_open = nodes.log_prob.masked_fill(~nodes.is_open, -math.inf).amax(dim=1)
        return torch.maximum(self.pruned_bound, still_open)

    def certified(self) -> Int[Tensor, " batch"]:
        """Count the completions that are proven to be the model's likeliest."""
        tree = self.tree
        log_prob = tree.log_prob[..., None] + tree.child_log_prob
        proven = (tree.child_state == State.COMPLETE) & (log_prob >= self.bound()[:, None, None])
        return proven[:, : tree.capacity].sum(dim=(1, 2))

    def complaint(self, numbers: Mapping[int, int]) -> str | None:
        """Say where the model gave NaN or infinity; `numbers` says which prompt a row holds."""
        for row, step in enumerate(self.broken_at.tolist()):
            if step >= 0 and row in numbers:
                return (
                    f"the model gave NaN or infinite logits at step {step} of prompt "
                    f"{numbers[row]}: load it in a wider dtype (float32), or check its weights"
                )
        return None

    def _passes(
        self, group: Group, children: Children, may_open: Bool[Tensor, "batch group children"]
    ) -> Bool[Tensor, "batch group children"]:
        config = self.config
        threshold = math.log(config.min_prob) if config.min_prob > 0 else -math.inf
        # The children are sorted, so the running count is the rank among those that may open.
        is_among_best = may_open.cumsum(dim=2) <= config.min_children
        passes = (children.log_prob >= threshold) | is_among_best
        for rule in self.rules:
            wanted = rule.wants(group)
            if wanted is not None:
                passes = passes | (children.token[..., None] == wanted[..., None, :]).any(dim=-1)
        return may_open & passes

    def _judge(
        self,
        group: Group,
        children: Children,
        passes: Bool[Tensor, "batch group children"],
        is_stop: Bool[Tensor, "batch group children"],
    ) -> tuple[Bool[Tensor, "batch group children"], Float[Tensor, "batch group children"] | None]:
        complete, bonus = passes & is_stop, None
        for rule in self.rules:
            verdict = rule.judge(group, children, passes, is_stop)
            if verdict.complete is not None:
                complete = complete | (passes & verdict.complete)
            if verdict.bonus is not None:
                bonus = verdict.bonus if bonus is None else bonus + verdict.bonus
        return complete, bonus

    def _found(
        self,
        group: Group,
        children: Children,
        log_prob: Float[Tensor, "batch group children"],
        opens: Bool[Tensor, "batch group children"],
        bonus: Float[Tensor, "batch group children"] | None,
    ) -> Nodes:
        shape = children.token.shape
        depth = (group.depth[..., None] + 1).expand(shape)
        child = torch.arange(shape[2], device=depth.device).expand(shape)
        if self.config.alpha is None:
            score = scoring.last_token(children.log_prob)
        else:
            length = depth.clamp(max=self.config.max_new_tokens)
            score = scoring.length_normalised(log_prob, length, self.powers)
        if bonus is not None:
            score = score + bonus
        return Nodes.of(
            is_open=opens,
            token=children.token,
            parent=group.slot[..., None].expand(shape),
            child=child,
            depth=depth,
            step=self.clock[:, None, None].expand(shape),
            score=score,
            log_prob=log_prob,
            last_log_prob=children.log_prob,
        )

    def _account_dropped(self, dropped: Nodes) -> None:
        self.tree.mark(dropped.parent, dropped.child, State.DROPPED, dropped.is_open)
        self.ledger.pruned_frontier += (dropped.log_prob.exp() * dropped.is_open).sum(dim=1)
        best = dropped.log_prob.where(dropped.is_open, -math.inf).amax(dim=1)
        self.pruned_bound.clamp_(min=best)

    def _bound(
        self,
        group: Group,
        children: Children,
        log_prob: Float[Tensor, "batch group children"],
        unopened: Bool[Tensor, "batch group children"],
    ) -> None:
        """Raise the bound by the best child that was not opened, listed or not."""
        best = log_prob.where(unopened, -math.inf).amax(dim=2)
        if self.room.num_children < self.vocab_size:
            # A token past the list is no likelier than the last of the likeliest, nor than what is
            # left; wanted tokens come after those, and are as unlikely as they are.
            left = (1 - children.log_prob.exp().sum(dim=2)).clamp(min=_ROUNDING).log()
            last = children.log_prob[..., self.room.num_children - 1]
            unseen = group.log_prob + torch.minimum(left, last)
            best = torch.maximum(best, unseen)
        self.pruned_bound.clamp_(min=best.where(group.is_valid, -math.inf).amax(dim=1))

    def _sound(self, group: Group, children: Children) -> Children:
        """Note a search whose model gave NaN; what it gave is no child, and proves nothing."""
        is_sound = children.log_prob < math.inf  # NaN is not
        is_broken = (group.is_valid[..., None] > is_sound).flatten(1).any(dim=1)
        fresh = is_broken & (self.broken_at < 0)
        torch.where(fresh, self.clock, self.broken_at, out=self.broken_at)
        self.pruned_bound.masked_fill_(is_broken, math.inf)
        return Children(children.token, children.log_prob.where(is_sound, -math.inf))

    def _update_active(self) -> None:
        config = self.config
        active = (self.tree.count < config.total_budget) & self.frontier.nodes.is_open.any(dim=1)
        active &= (self.broken_at < 0) > self.timed_out
        if config.max_completions is not None:
            active &= self.num_completions < config.max_completions
        self.is_active.copy_(active)
        self._stop_if_certified()

    def _stop_if_certified(self) -> None:
        if self.config.certify is not None:
            self.is_active &= self.certified() < self.config.certify

    def stop_reasons(self) -> list[str]:
        """Say of every search why it ended; one that never did was broken off."""
        config = self.config
        limits = {
            "broken": self.broken_at >= 0,
            "max_completions": self.num_completions >= (config.max_completions or math.inf),
            "certified": self.certified() >= (config.certify or math.inf),
            "budget": self.tree.count >= config.total_budget,
            "exhausted": self.frontier.count() == 0,
        }
        reasons, timed_out = [], self.timed_out.tolist()
        for row, is_active in enumerate(self.is_active.tolist()):
            hit = (name for name, reached in limits.items() if bool(reached[row]))
            broken_off = "timeout" if timed_out[row] else "interrupted"
            reasons.append(broken_off if is_active else next(hit, broken_off))
        return reasons


def room(config: SearchConfig, vocab_size: int, num_wanted: int = 0) -> Room:
    """Derive from the settings how much a session must be ready for."""
    return Room(
        width=min(config.k, config.max_frontier),
        capacity=config.total_budget,
        depth=config.max_new_tokens,
        num_children=config.num_children(vocab_size),
        num_wanted=num_wanted,
    )
