"""Picks the likeliest tokens of nodes from whole distributions: by a kernel where it can."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bestk.kernels import may_run
from bestk.nodes import Children


def top_children(
    logits: Float[Tensor, "batch nodes vocab"], num_children: int, *, is_normalised: bool = False
) -> Children:
    """Pick the likeliest tokens, equal ones by lower id, with their true log-probabilities.

    Where every token is forbidden (all logits −inf) there are no children.
    """
    if may_run("children", logits.device) and not is_normalised:
        from bestk.backends.transformers.kernels import topk

        if 0 < num_children <= topk.MOST_CHILDREN:
            return topk.top_children(logits, num_children)
    if logits.dtype == torch.float64:  # few tokens, often equal ones
        log_probs = logits if is_normalised else normalised(logits)
        value, token = log_probs.sort(dim=-1, descending=True, stable=True)
        return Children(token[..., :num_children], value[..., :num_children])
    logits = logits.float()
    value, token = _likeliest(logits, num_children)
    return Children(token, value if is_normalised else value - _total(logits))


def normalised(logits: Float[Tensor, "batch nodes vocab"]) -> Float[Tensor, "batch nodes vocab"]:
    """Turn logits into log-probabilities; where every token is forbidden they all stay −inf."""
    return logits - _total(logits)


def with_forced(
    children: Children,
    logits: Float[Tensor, "batch nodes vocab"],
    forced: Int[Tensor, "batch nodes forced"],
    *,
    is_normalised: bool = False,
) -> Children:
    """List forced tokens after the likeliest ones, with their true log-probabilities, best first.

    One that is listed already is not repeated: its place stays empty.
    """
    is_listed = (forced[..., None] == children.token[..., None, :]).any(dim=-1)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    value = logits.gather(-1, forced.clamp(min=0))
    if not is_normalised:
        value = value - _total(logits)
    value = value.masked_fill(is_listed | (forced < 0), -torch.inf)
    value, order = value.sort(dim=-1, descending=True, stable=True)
    return Children(
        torch.cat([children.token, forced.gather(-1, order)], dim=-1),
        torch.cat([children.log_prob, value], dim=-1),
    )


def _likeliest(logits: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return the highest logits and their tokens.

    `topk` may take any of several equal logits, and half-precision logits are often equal. All that
    pass γ are taken anyway; only the first place must be settled, so `argmax` (first of equals) has
    the last word on it.
    """
    value, token = logits.topk(number, dim=-1)
    if number > 1:
        token, order = token.sort(dim=-1)
        value, order = value.gather(-1, order).sort(dim=-1, descending=True, stable=True)
        token = token.gather(-1, order)
    first = torch.minimum(token[..., :1], logits.argmax(dim=-1, keepdim=True))
    return value, torch.cat([first, token[..., 1:]], dim=-1)


def _total(logits: Tensor) -> Tensor:
    total = logits.logsumexp(dim=-1, keepdim=True)
    return total.masked_fill(total == -torch.inf, 0.0)
