"""Best-k search with diverse completion: the policy of searches that are asked for n texts.

Some of the open nodes are *lanes*. A lane is never left before its text ends: at each step it goes
on with the child that is likeliest once n-grams which were said before are paid for. Where a lane
ends, another begins at the open node of the highest worth, if the budget has room for it to end:

    worth(u) = log p(u) + μ · (new n-grams in its prefix) + what its rest will probably add

So a budget of n · T expansions always ends n texts. Its kin: limited discrepancy search (Harvey and
Ginsberg 1995) and the penalty of diverse beam search (Vijayakumar et al. 2018), on a tree. Counts
are whole numbers, and novelty is summed in units of 2⁻²⁰: a batch, or another device, changes no
choice. Knows tokens and probabilities, no text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.core.best_k import BestK
from bestk.core.frontier import Nodes
from bestk.core.policy import Plan, Shape
from bestk.core.record import Finding, Found, TreeRecord, texts_of
from bestk.core.state import Fate
from bestk.core.tree import State
from bestk.nodes import Children

_UNIT = 1 << 20  # of novelty
_WEIGHTS = (0.3, 0.7)  # of tokens and of pairs of tokens, among what is new
_BUCKETS = 1 << 16  # that n-grams are counted in
_MOST_SAID = 32  # what was said more often is no less new
_EXPECTED_NOVELTY = 0.6  # ρ: of tokens that are still to come
_EXPECTED_LOG_PROB = -0.4  # of a token, before any was taken
_EXPECTED_LENGTH = 0.6  # of a text, as a share of T, before any ended
_SLACK = 1.3  # how much longer than the mean a text is expected to get, for room
_LANE = 1e9  # puts lanes before all other open nodes, and reserves after them


class Diverse(BestK):
    """Follows lanes to the end of their texts, and begins them where something new is likely."""

    def __init__(self, config: SearchConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        keep = self.search.keep
        self.num_texts = config.num_texts or config.beam_size
        fresh = [
            [round(weight * math.exp(-said) * _UNIT) for said in range(_MOST_SAID + 1)]
            for weight in _WEIGHTS
        ]
        self.table: Int[Tensor, "orders said"] = torch.tensor(fresh, device=shape.device)
        # How often lanes said each n-gram; and which n-grams each expanded node ends with.
        self.said: Int[Tensor, "batch orders buckets"] = keep(0, 2, _BUCKETS, dtype=torch.int32)
        self.grams: Int[Tensor, "batch orders slots"] = keep(0, 2, self.spec.slots + 1)
        self.num_lanes, self.num_ended = keep(0), keep(0)
        self.num_taken, self.ended_length = keep(0), keep(0)  # tokens by lanes; in ended ones
        self.taken_log_prob = keep(0.0)

    def next(self) -> Plan:
        """Return the nodes of the next step: the lanes."""
        search = self.search
        left = (self.config.total_budget - search.tree.count).minimum(self.num_lanes)
        return search.plan(search.frontier.best(self.spec.width, most=left * search.is_active))

    def step(self, plan: Plan, children: Children) -> None:
        """Take one step of every search."""
        search = self.search
        was_lane = self._lanes()
        search.take(plan)
        children = search.sound(plan, children)
        fate, score = self.fate(plan, children), self.score(plan, children)
        followed = self._follow(plan, children, fate, score)
        fate = self._with_reserve(plan, children, fate)
        search.settle(plan, children, fate, score)
        pool = search.found(plan, children, fate.opened, score)
        is_lane = pool.is_open & self._among(pool, plan.nodes.slot, followed)
        is_lane[:, : was_lane.shape[1]] |= was_lane & pool.is_open[:, : was_lane.shape[1]]
        priority, is_lane = self._begin_lanes(pool, is_lane)
        search.prune(pool, priority + _LANE * is_lane)
        self.num_lanes.copy_(is_lane.sum(dim=1))  # in place: captured steps read it there
        places = torch.arange(search.frontier.size, device=priority.device)
        search.frontier.priority.sub_(_LANE * (places < self.num_lanes[:, None]))
        search.update_active()
        search.is_active &= self.num_lanes > 0
        search.stop_certified()

    def score(self, plan: Plan, children: Children) -> Float[Tensor, "batch nodes children"]:
        """Score children by the likelihood of their texts."""
        score = plan.log_prob[..., None] + children.log_prob
        bonus = None if children.verdict is None else children.verdict.bonus
        return score if bonus is None else score + bonus

    def findings(self, rows: Sequence[int], *, keep_tree: bool = True) -> list[Finding]:
        """Return what these searches have found so far, cut texts last."""
        found = []
        for finding in super().findings(rows, keep_tree=keep_tree):
            assert finding.record is not None
            cut = texts_of(finding.record, math.inf, state=State.TRUNCATED)
            likeliest = {text.token_ids[:-1]: text for text in reversed(cut)}
            texts = [*finding.texts, *reversed(likeliest.values())]
            if len(texts) < self.num_texts and not self.search.shape.is_judged:
                rest = [text for text in cut if text is not likeliest[text.token_ids[:-1]]]
                texts += [*rest, *self._unlikely(finding.record)]
            found.append(dataclasses.replace(finding, texts=texts))
        return found

    def _unlikely(self, record: TreeRecord) -> list[Found]:
        """Return texts whose last tokens are too unlikely to be opened, for want of others."""
        is_stop, config = self.search.is_stop, self.config
        return [
            dataclasses.replace(text, is_complete=bool(is_stop[text.token_ids[-1]]))
            for text in texts_of(record, math.inf, state=State.BELOW)
            if len(text.token_ids)
            >= (config.min_new_tokens if is_stop[text.token_ids[-1]] else config.max_new_tokens)
        ]

    def _lanes(self) -> Bool[Tensor, "batch open"]:
        """Return which places of the frontier hold the lanes of the next step."""
        frontier = self.search.frontier
        first = frontier.order[:, : self.spec.width]
        is_lane = torch.arange(first.shape[1], device=first.device) < self.num_lanes[:, None]
        return torch.zeros_like(frontier.nodes.is_open).scatter_(1, first, is_lane)

    def _with_reserve(self, plan: Plan, children: Children, fate: Fate) -> Fate:
        """Keep unlikely children open too, for want of others."""
        unlikely = fate.may_open & ~(fate.complete | fate.truncated | fate.opened)
        unlikely &= ~self.search.is_stop[children.token.clamp(min=0)]
        if children.verdict is not None:
            unlikely &= ~children.verdict.completes
        goes_on = plan.nodes.depth[..., None] + 1 < self.config.max_new_tokens
        return fate._replace(opened=fate.opened | (unlikely & goes_on))

    def _follow(
        self,
        plan: Plan,
        children: Children,
        fate: Fate,
        score: Float[Tensor, "batch nodes children"],
    ) -> Int[Tensor, "batch nodes"]:
        """Return which child each lane goes on with, −1 where it ends; one after another.

        So a lane pays for what those before it say at the same step. What ends a text is free.
        """
        nodes = plan.nodes
        number = torch.arange(children.token.shape[2], device=score.device)
        grams = _grams(nodes.token[..., None], children.token)
        novelty_weight, followed = self.config.novelty / _UNIT, []
        for lane in range(nodes.token.shape[1]):
            fresh = self._fresh(grams[:, :, lane])  # [batch, children]
            paid = novelty_weight * (_UNIT - fresh) * ~fate.complete[:, lane]
            passes = fate.complete[:, lane] | fate.opened[:, lane] | fate.truncated[:, lane]
            value = (score[:, lane] - paid).where(passes, -math.inf)
            is_best = passes & (value == value.amax(dim=1, keepdim=True))
            best = number.where(is_best, len(number)).amin(dim=1).clamp(max=len(number) - 1)
            at = best[:, None]
            goes_on = fate.opened[:, lane].gather(1, at)[:, 0]
            self._say(grams[:, :, lane].gather(2, at[:, None].expand(-1, 2, 1)), goes_on[:, None])
            is_taken = passes.any(dim=1)
            self.num_taken += is_taken
            taken = children.log_prob[:, lane].gather(1, at)[:, 0]
            self.taken_log_prob += taken.where(is_taken, 0.0)
            ends = is_taken & ~goes_on  # at a stop token, or cut at T
            self.num_ended += ends
            self.ended_length += ends * (nodes.depth[:, lane] + 1)
            followed.append(best.where(goes_on, -1))
        slots = nodes.slot[:, None].expand(-1, 2, -1)
        self.grams.scatter_(2, slots, _grams(_before(plan), nodes.token))
        return torch.stack(followed, dim=1)

    def _begin_lanes(
        self, pool: Nodes, is_lane: Bool[Tensor, "batch pool"]
    ) -> tuple[Float[Tensor, "batch pool"], Bool[Tensor, "batch pool"]]:
        """Begin lanes, as many as fit; return the worth of open nodes, and which are lanes."""
        tree, config = self.search.tree, self.config
        left = (config.total_budget - tree.count)[:, None]
        length = self.ended_length.double() / self.num_ended.clamp(min=1)
        length = length.where(self.num_ended > 0, _EXPECTED_LENGTH * config.max_new_tokens)
        needed = (_SLACK * length).ceil().long().clamp(max=config.max_new_tokens)
        has_all = (self.num_ended >= self.num_texts)[:, None]
        needed = needed.where(has_all[:, 0], config.max_new_tokens)
        need = (needed[:, None] - pool.depth).clamp(min=1)
        is_reserve = self._is_reserve(pool)
        path = tree.path.gather(1, pool.parent[..., None].expand(-1, -1, tree.path.shape[2]))
        if path.device.type == "cpu":
            path = path[..., : int(pool.depth.amax())]
        place = torch.arange(pool.token.shape[1], device=path.device)
        before = tree.token.gather(1, pool.parent)
        grams = _grams(before, pool.token)  # [batch, orders, pool]
        rest = self._rest(pool, length)
        # What is left when no text can end any more is spent all the same.
        is_idle = ~is_lane.any(dim=1, keepdim=True)
        is_idle &= (need.where(pool.is_open, config.max_new_tokens) > left).all(dim=1, keepdim=True)
        for turn in range(self.spec.width + 1):
            fresh = torch.nn.functional.pad(self._fresh(self.grams), (1, 0))  # −1 is no slot
            known = fresh.gather(1, (path + 1).flatten(1)).view_as(path).sum(dim=2)
            novelty = (known + self._fresh(grams)) * (config.novelty / _UNIT)
            worth = pool.score + novelty + rest
            room = left - (need * is_lane).sum(dim=1, keepdim=True)
            num_lanes = is_lane.sum(dim=1, keepdim=True)
            may = pool.is_open & ~is_lane & (num_lanes < self.spec.width) & (left > num_lanes)
            is_short = (self.num_ended[:, None] + num_lanes) < self.num_texts
            may &= ~is_reserve | (is_short & ~(may & ~is_reserve).any(dim=1, keepdim=True))
            # Nor does the last lane hold up the rest, once n have ended.
            may &= (need <= room) | is_idle | (has_all & (2 * num_lanes < self.spec.width))
            value = worth.where(may, -math.inf)
            is_best = may & (value == value.amax(dim=1, keepdim=True))
            best = place.where(is_best, len(place)).amin(dim=1, keepdim=True)
            begins = place == best
            # A graph takes every turn, with nothing to do in the last ones.
            if turn == self.spec.width or (path.device.type == "cpu" and not begins.any()):
                break
            is_lane = is_lane | begins
            at = best.clamp(max=len(place) - 1)
            steps = path.gather(1, at[..., None].expand(-1, -1, path.shape[2]))[:, 0]
            own = grams.gather(2, at[:, None].expand(-1, 2, 1))
            told = self.grams.gather(2, steps.clamp(min=0)[:, None].expand(-1, 2, -1))
            is_told = torch.nn.functional.pad(steps >= 0, (0, 1), value=True)
            self._say(torch.cat([told, own], dim=2), is_told & (best < len(place)))
        return worth - _LANE * is_reserve, is_lane

    def _rest(self, pool: Nodes, length: Float[Tensor, " batch"]) -> Float[Tensor, "batch pool"]:
        """Estimate what the tokens still to come will add to the worth of open nodes."""
        each = self.taken_log_prob / self.num_taken.clamp(min=1)
        each = each.where(self.num_taken > 0, _EXPECTED_LOG_PROB)
        each = each + self.config.novelty * _EXPECTED_NOVELTY
        return (length[:, None] - pool.depth).clamp(min=1) * each[:, None]

    def _is_reserve(self, pool: Nodes) -> Bool[Tensor, "batch pool"]:
        is_listed = (pool.child >= self.config.min_children) & (pool.child < self.spec.num_children)
        return is_listed & (pool.last_log_prob < self.threshold)

    def _among(
        self,
        pool: Nodes,
        slot: Int[Tensor, "batch nodes"],
        child: Int[Tensor, "batch nodes"],
    ) -> Bool[Tensor, "batch pool"]:
        """Return which nodes of a pool are these children of these slots."""
        is_it = (pool.parent[..., None] == slot[:, None]) & (
            pool.child[..., None] == child[:, None]
        )
        return is_it.any(dim=2)

    def _fresh(self, grams: Int[Tensor, "batch orders n"]) -> Int[Tensor, "batch n"]:
        """Return how new n-grams are, in units, from 0 to about `_UNIT`."""
        said = self.said.gather(2, grams).clamp(max=_MOST_SAID)
        tokens, pairs = said.unbind(1)
        return self.table[0][tokens] + self.table[1][pairs]

    def _say(self, grams: Int[Tensor, "batch orders n"], where: Bool[Tensor, "batch n"]) -> None:
        """Count n-grams as said."""
        self.said.scatter_add_(2, grams, where[:, None].expand_as(grams).to(self.said.dtype))


def _grams(before: Tensor, token: Tensor) -> Tensor:
    """Return the buckets of tokens and of pairs of tokens, on a new second axis."""
    pairs = (before + 1) * 1_000_003 + token
    return torch.stack([token.expand_as(pairs) % _BUCKETS, pairs % _BUCKETS], dim=1)


def _before(plan: Plan) -> Int[Tensor, "batch nodes"]:
    """Return the token before each planned node's own, −1 at the beginning."""
    at = (plan.nodes.depth - 2).clamp(min=0)[..., None]
    return plan.nodes.prefix.gather(2, at)[..., 0].where(plan.nodes.depth >= 2, -1)
