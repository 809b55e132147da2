"""Evaluation ahead of time by kernels against the oracle, in Triton's interpreter; and compiled."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import interpreted
import pytest

COMPARISONS = ("deep", "search 0", "search 1", "forgetful 0", "forgetful 2")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the package triton"
)


@pytest.mark.slow  # an interpreter takes its time: 15 s for all of them
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_searches_are_those_of_the_oracle(comparison: str) -> None:
    interpreted.check("compare_ahead.py", COMPARISONS, comparison)


@pytest.mark.slow  # compilers take theirs: 10 s for a card
@pytest.mark.parametrize("capability", ["80", "90"])
def test_they_compile_for_cards(capability: str) -> None:
    script = str(interpreted.HERE / "compile_ahead.py")
    done = subprocess.run([sys.executable, script, capability], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
