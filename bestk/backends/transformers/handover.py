"""Lets a kernel be set up while the one before it still runs: programmatic dependent launch.

The kernels of a step are short, and one after the other the time between them adds up. Launched
`early`, a kernel may start as soon as every program of the one before has begun; `take_over` then
waits until that one is done and its results can be read. Whatever a kernel reads or writes before
that must be touched by no kernel of a step: weights, by `fetch_first`. NVIDIA GPUs from Hopper
on; elsewhere, or with BESTK_HANDOVER=plain, kernels follow one another as usual.
"""

from __future__ import annotations

import functools
import os

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton, which never launches early
    gdc_launch_dependents = gdc_wait = None


def handover(tensor: Tensor) -> dict[str, bool]:
    """Return the options of a launch on a tensor's device, for a kernel that will `take_over`."""
    # Neither a compiler nor the interpreter knows of such launches.
    is_plain = torch.compiler.is_compiling() or os.environ.get("TRITON_INTERPRET") == "1"
    is_early = tensor.is_cuda and not is_plain and _can_hand_over(tensor.device)
    return {"is_early": True, "launch_pdl": True} if is_early else {"is_early": False}


@functools.cache
def _can_hand_over(device: torch.device) -> bool:
    if gdc_wait is None or torch.version.hip or os.environ.get("BESTK_HANDOVER") == "plain":
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def take_over(is_early: tl.constexpr):
    """Wait until the kernel before is done; the next one may be set up meanwhile."""
    if is_early:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def fetch_first(weight, column, num_columns, first, depth, weight_row, lines: tl.constexpr):
    """Have the first lines of some columns' weights brought to the cache, before they are used."""
    line = tl.minimum(first + tl.arange(0, lines) * 64, depth - 1)
    column = tl.minimum(column, num_columns - 1).to(tl.int64)
    at = weight + column[:, None] * weight_row + line[None, :]
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at.to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
