"""Which of our GPU kernels may run: all, none, or those named in the variable BESTK_KERNELS.

    BESTK_KERNELS=none                 plain PyTorch everywhere
    BESTK_KERNELS=layers,attention     these alone; the others of NAMES are left out

Results do not depend on it, beyond rounding. Triton's interpreter, for tests, runs them on a CPU
where they are asked for by name.
"""

from __future__ import annotations

import importlib.util
import os

import torch

NAMES = {
    "attention": "tree attention that follows each node's path, and captured steps",
    "layers": "whole decoder layers as a few kernels each",
    "pieces": "single operations: norms, rotary positions, gated activations",
    "children": "the likeliest tokens picked in one reading of the logits",
    "search": "the search's own part of a step",
    "sources": "sources of encoder-decoders read as a captured graph",
}


def may_run(name: str, device: torch.device) -> bool:
    """Return whether a kind of kernels may run on a device."""
    assert name in NAMES
    can_run = device.type == "cuda" or is_interpreted()
    return can_run and name in _wanted() and importlib.util.find_spec("triton") is not None


def are_asked_for(name: str) -> bool:
    """Return whether a kind of kernels was asked for by name, and is missed where it cannot run."""
    return name in os.environ.get("BESTK_KERNELS", "").split(",")


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _wanted() -> set[str]:
    given = os.environ.get("BESTK_KERNELS", "all")
    return set(NAMES) if given == "all" else set(given.split(",")) & set(NAMES)
