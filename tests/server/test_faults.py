"""The run with faults of benchmarks/faults.py, short: nothing is wrong, and every fault came."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import bestk

SCRIPT = Path(bestk.__file__).parent.parent / "benchmarks" / "faults.py"


@pytest.mark.slow  # half a minute of faults, in processes of their own
def test_faults_at_random_moments_change_no_answer() -> None:
    command = [sys.executable, str(SCRIPT), "--minutes", "0.5", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "wrong  0" in done.stdout
    for fault in ("killed", "disk full", "slow reader", "NaN", "disconnected", "answered"):
        assert re.search(rf"[1-9]\d* {fault}", done.stdout), f"{fault} never came: {done.stdout}"
