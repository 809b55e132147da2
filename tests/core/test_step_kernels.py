"""The search's own kernels against its tensor operations, in Triton's interpreter."""

from __future__ import annotations

import importlib.util

import interpreted
import pytest

STEPS = {"small": "6", "large": "1"}  # and how many random searches


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
@pytest.mark.parametrize("kind", STEPS)
def test_search_steps(kind: str) -> None:
    done = interpreted.run("compare_steps.py", kind, "0", STEPS[kind])
    assert done.returncode == 0, done.stderr[-2000:]
