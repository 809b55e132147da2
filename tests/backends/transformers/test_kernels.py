"""The GPU kernels against plain tensor operations, in Triton's interpreter: no GPU is needed."""

from __future__ import annotations

import importlib.util

import interpreted
import pytest

KERNELS = (
    "attention",
    "split_attention",
    "rotate",
    "store",
    "rms_norm",
    "silu_times",
    "add_norm",
    "gated",
    "place",
    "children",
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
@pytest.mark.xdist_group("kernels")  # one worker's process makes them all
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel(kernel: str) -> None:
    interpreted.check("compare_kernels.py", KERNELS, kernel)
