"""Chooses what does the search's own part of a step: kernels on a GPU, else plain tensors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from bestk.kernels import are_asked_for, may_run
from bestk.nodes import Children

if TYPE_CHECKING:
    from bestk.core.best_k import BestK
    from bestk.core.kernels import StepKernels

# Shapes of searches whose kernels were tried, and whether they run.
_TRIED: dict[tuple[object, ...], bool] = {}


def step_kernels(policy: BestK) -> StepKernels | None:
    """Return the kernels of searches that have not begun, None where plain tensors do it."""
    device = policy.search.shape.device
    is_plain = policy.config.is_plain and policy.config.depth_bonus == 0
    if policy.search.shape.is_judged or not is_plain or not may_run("search", device):
        return None
    try:
        from bestk.core.kernels import StepKernels
    except Exception as error:  # a Triton that is there and does not work
        _tell("the search's kernels cannot be loaded: %s", error)
        return None
    kernels = StepKernels(policy)
    shape = (device, *kernels.shape)
    if shape not in _TRIED:
        _TRIED[shape] = _fits(kernels) and _do_run(kernels, policy)
    return kernels if _TRIED[shape] else None


def _fits(kernels: StepKernels) -> bool:
    if not kernels.fits():
        _tell("no search kernels hold the shape %s", kernels.shape)
        return False
    return True


def _tell(message: str, *details: object) -> None:
    """Log why there are no kernels: aloud for whoever asked for them."""
    level = logging.WARNING if are_asked_for("search") else logging.DEBUG
    logging.getLogger("bestk").log(level, message, *details)


def _do_run(kernels: StepKernels, policy: BestK) -> bool:
    """Take a step without a node, which changes nothing, before a graph captures one."""
    try:
        plan = kernels.next(policy)
        nothing = plan.nodes.path.new_zeros(*plan.nodes.token.shape, kernels.num_children)
        kernels.step(policy, plan, Children(nothing, nothing.float().fill_(-torch.inf)))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler has many ways to fail
        _tell("the search's kernels do not run here: %s", error)
        return False
    finally:
        policy.search.clock.zero_()
        policy.search.is_active.fill_(True)
    return True
