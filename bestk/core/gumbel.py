"""Sampling without replacement: n different texts, drawn as a model draws them, by one search.

Every text has a key, its log-probability with Gumbel noise; the n highest keys are n draws without
replacement (Kool et al. 2019, "Stochastic beams and where to find them"). A node's key is the
highest below it, and its children's are drawn given that, from the top down. So a best-first search
by keys ends with the n highest, and reads no other branch but those that go through the model
beside them. Texts that are cut at T are texts.

Of n + 1 children of a node and of n + 1 open nodes all others have lower keys, so less is listed
than the vocabulary. Nodes below the n-th highest key, of open nodes and texts, are never expanded:
n · T expansions always do. Knows tokens and probabilities, no text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.core.drawing import Drawing
from bestk.core.noise import gumbel, of_prefixes
from bestk.core.policy import Plan, Shape
from bestk.core.record import Drawn, Finding, Found, Standing, texts_of
from bestk.core.state import Fate
from bestk.core.tree import State
from bestk.nodes import Children, NodeBatch

_ROOT = -1  # in place of a token, at the address of the root
_AT_ONCE = 1 << 22  # tokens whose noise is in memory


class Gumbel(Drawing):
    """Follows the highest keys to the end of their texts."""

    def __init__(self, config: SearchConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.num_texts = config.num_texts or config.beam_size
        # The highest keys of texts, one more than are wanted.
        self.best: Float[Tensor, "batch texts"] = self.search.keep(-math.inf, self.num_texts + 1)

    def draw(
        self,
        nodes: NodeBatch,
        log_probs: Float[Tensor, "batch nodes vocab"],
        rows: Int[Tensor, " some"] | None,
    ) -> Children:
        """List the children of the highest keys, which are those of the highest noise."""
        seeds = self.seeds if rows is None else self.seeds[rows]
        log_probs = self.allowed(nodes, log_probs)
        every = torch.arange(log_probs.shape[2], device=log_probs.device)
        at_once = max(1, _AT_ONCE // log_probs[0].numel())
        address = of_prefixes(seeds, nodes.prefix)
        parts = (torch.split(log_probs, at_once), torch.split(address, at_once))
        tokens = [
            (part + gumbel(at, every.expand_as(part))).topk(self.spec.num_children).indices
            for part, at in zip(*parts, strict=True)
        ]
        token = torch.cat(tokens)
        return Children(token, log_probs.gather(2, token).double())

    def next(self) -> Plan:
        """Return the nodes of the highest keys, as far as they may matter."""
        search = self.search
        left = (self.config.total_budget - search.tree.count) * search.is_active
        return search.plan(search.frontier.best(self.spec.width, left.minimum(self._num_needed())))

    def step(self, plan: Plan, children: Children) -> None:
        """Take one step of every search."""
        search = self.search
        search.take(plan)
        children = search.sound(plan, children)
        fate, score = self.fate(plan, children), self.score(plan, children)
        self._note(fate, score)
        search.settle(plan, children, fate, score)
        pool = search.found(plan, children, fate.opened, score)
        search.prune(pool, pool.score)
        search.update_active()
        search.is_active &= self._num_needed() > 0

    def score(self, plan: Plan, children: Children) -> Float[Tensor, "batch nodes children"]:
        """Draw the keys of children, given that the highest of them is the parent's."""
        address = of_prefixes(self.seeds, plan.nodes.prefix)
        own = plan.log_prob[..., None] + children.log_prob + gumbel(address, children.token)
        root = gumbel(address, torch.full_like(address[..., None], _ROOT))[..., 0]
        key = (root if plan.taken is None else plan.taken.score)[..., None]
        below = key - own + _log1mexp(own - own.amax(dim=2, keepdim=True))
        score = key - below.clamp(min=0) - torch.log1p(torch.exp(-below.abs()))
        return score.where(own > -math.inf, -math.inf)

    def standing(self, row: int) -> Standing:
        """Return where a search stands; its end alone says which texts are in the sample."""
        return dataclasses.replace(super().standing(row), num_completions=0)

    def findings(self, rows: Sequence[int], *, keep_tree: bool = True) -> list[Finding]:
        """Return the samples so far: the texts whose keys nothing open can beat."""
        nodes = self.search.frontier.nodes
        still_open = nodes.score.where(nodes.is_open, -math.inf).amax(dim=1).tolist()
        return [
            self._sampled(finding, still_open[row])
            for row, finding in zip(rows, super().findings(rows), strict=True)
        ]

    def _sampled(self, finding: Finding, still_open: float) -> Finding:
        assert finding.record is not None
        assert finding.bound is not None
        record, bound, n = finding.record, finding.bound, self.num_texts
        texts = texts_of(record, bound, by_score=True)
        texts += texts_of(record, bound, by_score=True, state=State.TRUNCATED)
        texts.sort(key=lambda text: -_key(text))
        size = sum(_key(text) >= still_open for text in texts[:n])
        sample, others = texts[:size], texts[size:]
        outside = max([still_open, *map(_key, others[:1])])
        bound = max([bound, *(text.log_prob for text in others if text.is_complete)])
        return dataclasses.replace(
            finding,
            texts=[_drawn(text, outside, bound) for text in sample],
            bound=bound,
            stop_reason="drawn" if size == n else finding.stop_reason,
        )

    def _note(self, fate: Fate, score: Float[Tensor, "batch nodes children"]) -> None:
        """Take texts that ended into the highest keys."""
        ended = score.where(fate.complete | fate.truncated, -math.inf).flatten(1)
        every = torch.cat([self.best, ended], dim=1)
        self.best.copy_(every.topk(self.best.shape[1]).values)

    def _num_needed(self) -> Int[Tensor, " batch"]:
        """Count the open nodes that are among the n highest keys of nodes and texts."""
        nodes = self.search.frontier.nodes
        open_keys = nodes.score.where(nodes.is_open, -math.inf)
        every = torch.cat([self.best, open_keys], dim=1)
        least = every.topk(self.num_texts).values[:, -1:]
        return ((open_keys >= least) & nodes.is_open).sum(dim=1)


def _key(text: Found) -> float:
    assert text.score is not None
    return text.score


def _drawn(text: Found, outside: float, bound: float) -> Found:
    """Weigh a text by the highest key outside of its sample, κ: it is in it if its own is above."""
    above = min(text.log_prob - outside, 700.0)  # 1 by far, and no overflow
    inclusion = -math.expm1(-math.exp(above))  # P(log p + Gumbel > κ)
    weight = math.exp(text.log_prob) / inclusion
    return dataclasses.replace(
        text,
        score=None,  # it is ranked as all texts are
        is_certified=text.is_complete and text.log_prob >= bound,
        drawn=Drawn(key=_key(text), inclusion=inclusion, weight=weight),
    )


def _log1mexp(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return log(1 − exp(x)) for x of at most 0; NaN where both sides of a difference were −inf."""
    return torch.where(x > -math.log(2), (-torch.expm1(x)).log(), torch.log1p(-x.exp()))
