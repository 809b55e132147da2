"""The GPU kernels against plain tensor operations, in Triton's interpreter: no GPU is needed.

The interpreter is chosen when Triton is imported, so the comparisons run in a process of their own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPARE = Path(__file__).with_name("compare_kernels.py")
KERNELS = ["attention", "rotate", "store", "rms_norm", "silu_times"]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel(kernel: str) -> None:
    done = subprocess.run(
        [sys.executable, str(COMPARE), kernel],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
