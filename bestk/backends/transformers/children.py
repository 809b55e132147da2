"""Picks the children of a group from a model's logits, by kernels where they can."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from bestk.backends.base import Children, Group, Shaper, shaped_children
from bestk.kernels import may_run


def picked_children(
    group: Group,
    logits: Float[Tensor, "batch group vocab"],
    num_children: int,
    shaper: Shaper | None,
    *,
    with_kernel: bool,
) -> Children:
    """Do what `shaped_children` does; `with_kernel` says that the logits are on a GPU."""
    if with_kernel and shaper is None:
        from bestk.backends.transformers.kernels import topk as children_kernels

        if may_run("children", logits.device) and children_kernels.can_pick(num_children):
            return children_kernels.top_children(logits, num_children)
    return shaped_children(group, logits, num_children, shaper)
