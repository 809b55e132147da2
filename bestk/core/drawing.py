"""Best-k search over tokens that are drawn: seeded, and the same alone and in any batch.

The children of a node are not the tokens of at least γ, but those of 1/γ draws: one of probability
p is a child with probability 1 − (1 − p)^(1/γ). All else is Algorithm 2, with the model's own
probabilities. Knows tokens and probabilities, no text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.core.best_k import BestK
from bestk.core.noise import invert, of_prefixes, uniform
from bestk.core.policy import Plan, Shape
from bestk.nodes import Children, NodeBatch


class Drawing(BestK):
    """Draws the tokens of every node, with replacement; each is a child once."""

    is_static, draws = False, True

    def __init__(self, config: SearchConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.threshold = -math.inf  # what is drawn is opened
        self.seeds = self.search.keep(0)

    def begin(self, rows: Int[Tensor, " begun"], keys: Sequence[int] = ()) -> Plan:
        """Start these searches anew."""
        plan = super().begin(rows)
        self.seeds[rows] = torch.tensor(keys, dtype=torch.int64, device=rows.device)
        return plan

    def draw(
        self,
        nodes: NodeBatch,
        log_probs: Float[Tensor, "batch nodes vocab"],
        rows: Int[Tensor, " some"] | None,
    ) -> Children:
        """Draw the children of nodes, and list them by probability."""
        seeds = self.seeds if rows is None else self.seeds[rows]
        address = of_prefixes(seeds, nodes.prefix)
        number = torch.arange(self.spec.num_children, device=address.device)
        numbers = uniform(address, number.expand(*address.shape, -1))
        allowed = self.allowed(nodes, log_probs).double()
        token = invert(allowed.exp(), numbers).sort(dim=2).values
        is_new = torch.ones_like(token, dtype=torch.bool)
        is_new[..., 1:] = token[..., 1:] > token[..., :-1]
        is_new &= allowed.gather(2, token) > -math.inf  # where nothing is allowed nothing is drawn
        log_prob = log_probs.gather(2, token).double()
        log_prob = torch.where(is_new | log_prob.isnan(), log_prob, -math.inf)
        log_prob, order = log_prob.sort(dim=2, descending=True, stable=True)
        return Children(token.gather(2, order), log_prob)

    def allowed(
        self, nodes: NodeBatch, log_probs: Float[Tensor, "batch nodes vocab"]
    ) -> Float[Tensor, "batch nodes vocab"]:
        """Leave out what would end a text too early."""
        if self.config.min_new_tokens < 2:
            return log_probs
        is_early = nodes.depth + 1 < self.config.min_new_tokens
        allowed = log_probs.masked_fill(is_early[..., None] & self.search.is_stop, -math.inf)
        total = allowed.logsumexp(dim=2, keepdim=True)
        return allowed - total.masked_fill(total == -math.inf, 0.0)
