"""Chooses what does the search's own part of a step: kernels on a GPU, else plain tensors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from bestk.backends.base import Children
from bestk.kernels import are_asked_for, may_run

if TYPE_CHECKING:
    from bestk.core.best_k import Searches
    from bestk.core.kernels import StepKernels

# Shapes of searches whose kernels were tried, and whether they run.
_TRIED: dict[tuple[object, ...], bool] = {}


def step_kernels(searches: Searches, rounding: float) -> StepKernels | None:
    """Return the kernels of searches that have not begun, None where plain tensors do it."""
    device = searches.clock.device
    if searches.rules or not may_run("search", device):
        return None
    try:
        from bestk.core.kernels import StepKernels
    except Exception as error:  # a Triton that is there and does not work
        _tell("the search's kernels cannot be loaded: %s", error)
        return None
    kernels = StepKernels(searches, rounding)
    shape = (device, *kernels.shape)
    if shape not in _TRIED:
        _TRIED[shape] = _fits(kernels) and _do_run(kernels, searches)
    return kernels if _TRIED[shape] else None


def _fits(kernels: StepKernels) -> bool:
    if not kernels.fits():
        _tell("no search kernels hold the shape %s", kernels.shape)
        return False
    return True


def _tell(message: str, *details: object) -> None:
    """Say why there are no kernels: aloud to whoever asked for them."""
    level = logging.WARNING if are_asked_for("search") else logging.DEBUG
    logging.getLogger("bestk").log(level, message, *details)


def _do_run(kernels: StepKernels, searches: Searches) -> bool:
    """Do a step without a node, which changes nothing, before a graph captures one."""
    try:
        group = kernels.pop(searches)
        nothing = group.path.new_zeros(*group.token.shape, kernels.num_children)
        kernels.push(searches, group, Children(nothing, nothing.float().fill_(-torch.inf)))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler has many ways to fail
        _tell("the search's kernels do not run here: %s", error)
        return False
    finally:
        searches.clock.zero_()
        searches.is_active.fill_(True)
    return True
