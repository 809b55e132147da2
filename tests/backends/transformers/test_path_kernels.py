"""The kernels and fused layers of encoder-decoders in Triton's interpreter: no GPU is needed."""

from __future__ import annotations

import importlib.util

import interpreted
import pytest

COMPARISONS = (
    "path_attention",
    "source_attention",
    "add_norm",
    "decoders",
    "unknown",
    "halves",
    "searches",
)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
@pytest.mark.xdist_group("path-kernels")  # one worker's process makes them all
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_comparison(comparison: str) -> None:
    interpreted.check("compare_path_kernels.py", COMPARISONS, comparison)
