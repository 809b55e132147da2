"""What a constraint is, and how several judge together.

A constraint speaks of a node and its children alone, of their tokens and of what they read as; it
knows nothing of the other nodes of a search. So its searches share passes with any others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from bestk.nodes import Children, Gate, NodeBatch, Verdict
from bestk.processors.base import NodeContext

Marks = Bool[Tensor, "batch nodes children"]
Decode = Callable[[Sequence[Sequence[int]]], list[str]]  # ids to the texts that are returned


class Constraint:
    """Something that every text must be or hold, or a way for texts to end.

    Override what it needs: `restrict` forbids tokens before the likeliest are picked, `forced` has
    tokens listed and opened however unlikely they are, `completes` ends texts, `bonus` adds to
    scores, and `is_met_by` has the last word on a text that is about to end.
    """

    restricts = False  # `restrict` is to be called: it needs whole distributions
    num_forced = 0  # the most tokens that `forced` names for a node
    least_log_prob = -math.inf  # of a forced token, to be opened
    is_static = (
        False  # all it does is a fixed series of tensor operations: a CUDA graph can hold it
    )

    def restrict(
        self, context: NodeContext, log_probs: Float[Tensor, "batch nodes vocab"]
    ) -> Float[Tensor, "batch nodes vocab"]:
        """Return new log-probabilities; they need not be normalised, and −inf forbids a token."""
        return log_probs

    def forced(self, nodes: NodeBatch) -> Int[Tensor, "batch nodes forced"] | None:
        """Return `num_forced` different tokens per node, −1 for none; None for none at all."""
        return None

    def completes(self, context: NodeContext, children: Children, asked: Marks) -> Marks | None:
        """Return which of the children asked about complete a text, besides stop tokens."""
        return None

    def bonus(
        self, context: NodeContext, children: Children, asked: Marks
    ) -> Float[Tensor, "batch nodes children"] | None:
        """Return what is added to the scores of the children asked about."""
        return None

    def is_met_by(self, text: str) -> bool:
        """Return whether a text that ends here is as it must be."""
        return True


class ConstraintSet:
    """The constraints of one search, which judge together."""

    def __init__(self, constraints: Sequence[Constraint], decode: Decode) -> None:
        self.constraints = tuple(constraints)
        self.decode = decode
        self.num_forced = sum(constraint.num_forced for constraint in constraints)
        # Of each token that they name, the log-probability from which it is opened.
        self.least = torch.tensor(
            [one.least_log_prob for one in constraints for _ in range(one.num_forced)]
        )
        self.restricts = any(constraint.restricts for constraint in constraints)
        self.enders = self._overriding("completes")
        self.scorers = self._overriding("bonus")
        self.requirements = self._overriding("is_met_by")
        self.is_static = all(constraint.is_static for constraint in constraints)
        self.judges = bool(self.enders or self.scorers or self.requirements or self.num_forced)

    def restrict(
        self, context: NodeContext, log_probs: Float[Tensor, "batch nodes vocab"]
    ) -> Float[Tensor, "batch nodes vocab"]:
        """Forbid tokens, for every reason."""
        for constraint in self.constraints:
            if constraint.restricts:
                log_probs = constraint.restrict(context, log_probs)
        return log_probs

    def forced(self, nodes: NodeBatch) -> Int[Tensor, "batch nodes forced"] | None:
        """Return the tokens that must be listed."""
        named = [one.forced(nodes) for one in self.constraints if one.num_forced]
        tokens = [one for one in named if one is not None]
        return torch.cat(tokens, dim=-1) if tokens else None

    def judge(
        self,
        context: NodeContext,
        children: Children,
        gate: Gate,
        forced: Int[Tensor, "batch nodes forced"] | None,
    ) -> Verdict:
        """Return what the texts of children say of them."""
        may_open, is_stop = gate.may_open, gate.is_stop
        if self.requirements:
            may_open = may_open & ~self._unfit(context, children, may_open, is_stop)
        is_forced = None if forced is None else self._is_forced(children, forced)
        passes = gate.passes(may_open, is_forced)
        asked = passes & ~is_stop
        completes = self.completes(context, children, asked)
        bonus = None
        for constraint in self.scorers:
            given = constraint.bonus(context, children, asked)
            if given is not None:
                bonus = given if bonus is None else bonus + given
        return Verdict(may_open, passes, completes, bonus)

    def completes(self, context: NodeContext, children: Children, asked: Marks) -> Marks:
        """Return which of the children asked about complete a text, for any reason."""
        ends = torch.zeros_like(asked)
        for constraint in self.enders:
            complete = constraint.completes(context, children, asked)
            if complete is not None:
                ends |= complete
        return ends

    def _is_forced(self, children: Children, forced: Int[Tensor, "batch nodes forced"]) -> Marks:
        """Mark the children that a constraint names, and that are likely enough for it."""
        marks = torch.zeros_like(children.token, dtype=torch.bool)
        start = 0
        for one in self.constraints:
            own = forced[..., start : start + one.num_forced]
            is_named = (children.token[..., None] == own[..., None, :]).any(dim=-1)
            marks |= is_named & (children.log_prob >= one.least_log_prob)
            start += one.num_forced
        return marks

    def _unfit(
        self, context: NodeContext, children: Children, may_open: Marks, is_stop: Marks
    ) -> Marks:
        """Decode the children that would end a text, and mark those whose text may not end so.

        A stop string cuts the text where it appears, so no later token could mend it.
        """
        nodes = context.nodes
        ends = may_open & (is_stop | self.completes(context, children, may_open & ~is_stop))
        rows, places, numbers = ends.nonzero(as_tuple=True)
        sequences = [
            [*prefix[:depth], token]
            for prefix, depth, token in zip(
                nodes.prefix[rows, places].tolist(),
                nodes.depth[rows, places].tolist(),
                children.token[rows, places, numbers].tolist(),
                strict=True,
            )
        ]
        unfit = torch.zeros_like(may_open)
        marks = [not self.is_fit(text) for text in self.decode(sequences)]
        unfit[rows, places, numbers] = torch.tensor(marks, dtype=torch.bool, device=unfit.device)
        return unfit

    def is_fit(self, text: str) -> bool:
        """Return whether a text that ends here is as all constraints want it."""
        return all(requirement.is_met_by(text) for requirement in self.requirements)

    def _overriding(self, name: str) -> tuple[Constraint, ...]:
        """Return the constraints that have something to say here."""
        usual = getattr(Constraint, name)
        return tuple(one for one in self.constraints if getattr(type(one), name) is not usual)
