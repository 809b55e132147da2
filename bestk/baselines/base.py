"""What beams and samplers share: how texts end, the mass of what was found, signatures.

They are policies on the trees of best-k search, so they work for every backend and share its
scheduler. Knows nothing of how any of them chooses its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.config import SearchConfig
from bestk.core.frontier import Nodes
from bestk.core.mass import Mass
from bestk.core.policy import Plan, Policy, Shape
from bestk.core.record import Found
from bestk.core.tree import Tree
from bestk.errors import ModelError, OptionError
from bestk.nodes import BatchSpec, Children, NodeBatch


class Step(NamedTuple):
    """A token that a text goes on with: what is asked of the model next."""

    token: int
    parent: int  # the slot of the text before it
    depth: int
    step: int
    log_prob: float  # of the text
    last_log_prob: float  # of the token


class TreePolicy(Policy):
    """A policy whose texts are paths of a tree; all of its searches begin together."""

    def __init__(self, config: SearchConfig, shape: Shape, spec: BatchSpec, width: int) -> None:
        self.config, self.shape, self.spec = config, shape, spec
        self.tree = Tree(shape.batch, spec.slots, spec.depth, width, shape.device)
        self.clock = torch.zeros(shape.batch, dtype=torch.int64, device=shape.device)
        self.is_stop = torch.zeros(shape.vocab_size, dtype=torch.bool, device=shape.device)
        self.is_stop[[*shape.stop_ids, *config.stop_ids]] = True
        self.timed_out: set[int] = set()
        self.keys: list[int] = []

    def begin(self, rows: Tensor, keys: Sequence[int]) -> Plan:
        """Start all searches; their roots are planned."""
        assert len(rows) == self.shape.batch, "these searches begin together"
        self.keys = list(keys)
        nodes = self.tree.roots(rows)
        return Plan(nodes, torch.zeros_like(nodes.depth, dtype=torch.float64), is_begin=True)

    def plan(self, rows: Sequence[Sequence[Step]]) -> Plan:
        """Plan the next steps of all searches, which are of unequal number."""
        width = max(1, max(map(len, rows)))
        none = Step(0, 0, 0, 0, 0.0, 0.0)
        padded = [[*row, *[none] * (width - len(row))] for row in rows]
        device = self.shape.device
        whole = torch.tensor([[one[:4] for one in row] for row in padded], device=device)
        real = torch.tensor([[one[4:] for one in row] for row in padded], dtype=torch.float64)
        token, parent, depth, step = whole.unbind(-1)
        log_prob, last_log_prob = real.to(device).unbind(-1)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        nodes = Nodes.of(
            is_open=torch.arange(width, device=device) < lengths[:, None],
            token=token,
            parent=parent,
            child=torch.zeros_like(token),
            depth=depth,
            step=step,
            score=log_prob,
            log_prob=log_prob,
            last_log_prob=last_log_prob,
        )
        return Plan(self.tree.place(nodes), log_prob, taken=nodes, priority=log_prob)

    def take(self, plan: Plan) -> None:
        """Put planned nodes into the tree."""
        if plan.is_begin:
            self.tree.count += plan.nodes.is_valid.sum(dim=1)
            return
        assert plan.taken is not None
        assert plan.priority is not None
        self.tree.append(plan.nodes, plan.taken, plan.priority, self.clock)

    def time_out(self, rows: Iterable[int]) -> None:
        """Stop these searches where they are."""
        self.timed_out.update(rows)

    def may_not_stop(self, depth: int) -> Bool[Tensor, " vocab"] | None:
        """Mark the tokens that would end a text of `depth` tokens too early, None if none would.

        `depth` counts the token that completes the text, as `min_new_tokens` does.
        """
        return self.is_stop if depth < self.config.min_new_tokens else None

    def completes(
        self,
        nodes: NodeBatch,
        children: Children,
        exists: Bool[Tensor, "batch nodes children"],
    ) -> Bool[Tensor, "batch nodes children"]:
        """Return which children complete a text, by their token or by a stop string."""
        is_stop = self.is_stop[children.token.clamp(min=0)] & exists
        return is_stop | (self.judge(nodes, children, exists & ~is_stop) & exists)

    def endings(
        self, nodes: NodeBatch, children: Children
    ) -> tuple[Int[Tensor, "batch nodes stops"], Float[Tensor, "batch nodes stops"]] | None:
        """Return the tokens that end a text by rule behind these nodes, with log p, else −inf.

        The rule is `end_prob`, the same for every method; None where none was asked for.
        """
        if (named := self.named(nodes)) is None:
            return None
        token, least = named
        if children.whole is not None:
            value = children.whole.gather(2, token.clamp(min=0)).double()
        else:
            is_listed = token[..., None] == children.token[..., None, :]
            value = children.log_prob[..., None, :].double().where(is_listed, -math.inf).amax(-1)
        passes = (token >= 0) & (value >= least)
        return token, value.where(passes & nodes.is_valid[..., None], -math.inf)


def check_plain(kind: str, config: SearchConfig) -> None:
    """Refuse the settings that only best-k search and best-first search heed."""
    if names := [*config.shaping, *config.constraints]:
        raise OptionError(
            f"{kind} takes no {' and no '.join(names)}: leave it out, or take best-k search alone"
        )


def mass_of(found: Sequence[Found]) -> Mass:
    """Add up the probability of the different texts found; the rest was not looked at."""
    different = {f.token_ids: f for f in found}.values()
    completed = sum(math.exp(f.log_prob) for f in different if f.is_complete)
    truncated = sum(math.exp(f.log_prob) for f in different if not f.is_complete)
    return Mass(
        completed=completed,
        truncated=truncated,
        frontier=0.0,
        pruned_prob=1 - completed - truncated,
        pruned_frontier=0.0,
    )


def check_finite(log_prob: Tensor, is_valid: Tensor, step: int) -> None:
    """Raise if the model gave NaN for a node."""
    if bool((log_prob.isnan().any(dim=-1) & is_valid).any()):
        raise ModelError(
            f"the model gave NaN at step {step}: "
            "a wider dtype (float32) or intact weights would help"
        )


def shared(config: SearchConfig) -> str:
    """Write the settings that all methods share as fields of a signature."""
    fields = [f"b:{config.beam_size}", f"T:{config.max_new_tokens}"]
    if config.min_new_tokens:
        fields.append(f"minnewtokens:{config.min_new_tokens}")
    if (config.end_prob or 1) < 1:
        fields.append(f"endprob:{config.end_prob:g}")
    for name in ("stop_ids", "stop"):
        if value := getattr(config, name):
            fields.append(f"{name.replace('_', '')}:{','.join(map(repr, value))}")
    return "|".join(fields)
