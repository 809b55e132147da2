"""Chooses what does the search's own part of a step: plain tensors, or kernels where asked for.

BESTK_SEARCH=kernels takes the kernels on an NVIDIA GPU, and in Triton's interpreter for tests. They
agree with the plain tensors in the interpreter, and are not the default before a GPU has shown it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from typing import TYPE_CHECKING

import torch

from bestk.backends.base import Children

if TYPE_CHECKING:
    from bestk.best_k import Searches
    from bestk.search_kernels import StepKernels

# Shapes of searches whose kernels were tried, and whether they run.
_TRIED: dict[tuple[object, ...], bool] = {}


def step_kernels(searches: Searches, rounding: float) -> StepKernels | None:
    """Return the kernels of searches that have not begun, None where plain tensors do it."""
    device = searches.clock.device
    if searches.rules or not _is_wanted(device) or importlib.util.find_spec("triton") is None:
        return None
    from bestk.search_kernels import StepKernels

    kernels = StepKernels(searches, rounding)
    shape = (device, *kernels.shape)
    if shape not in _TRIED:
        _TRIED[shape] = _fits(kernels) and _do_run(kernels, searches)
    return kernels if _TRIED[shape] else None


def _is_wanted(device: torch.device) -> bool:
    if os.environ.get("BESTK_SEARCH") != "kernels":
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def _fits(kernels: StepKernels) -> bool:
    if not kernels.fits():
        logging.getLogger("bestk").warning("no search kernels hold the shape %s", kernels.shape)
        return False
    return True


def _do_run(kernels: StepKernels, searches: Searches) -> bool:
    """Do a step without a node, which changes nothing, before a graph captures one."""
    try:
        group = kernels.pop(searches)
        nothing = group.path.new_zeros(*group.token.shape, kernels.num_children)
        kernels.push(searches, group, Children(nothing, nothing.float().fill_(-torch.inf)))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler has many ways to fail
        logging.getLogger("bestk").warning("the search's kernels do not run here: %s", error)
        return False
    finally:
        searches.clock.zero_()
        searches.is_active.fill_(True)
    return True
