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
LAYERS = ("families", "moved_weights")
STEPS = {"small": "6", "large": "1"}  # and how many random searches

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the package triton"
)


@needs_triton
@pytest.mark.xdist_group("kernels")  # one worker's process makes them all
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel(kernel: str) -> None:
    interpreted.check("compare_kernels.py", KERNELS, kernel)


@needs_triton
@pytest.mark.xdist_group("layers")
@pytest.mark.parametrize("comparison", LAYERS)
def test_fused_layers(comparison: str) -> None:
    interpreted.check("compare_layers.py", LAYERS, comparison)


@needs_triton
@pytest.mark.parametrize("kind", STEPS)
def test_search_steps(kind: str) -> None:
    done = interpreted.run("compare_steps.py", kind, "0", STEPS[kind])
    assert done.returncode == 0, done.stderr[-2000:]
