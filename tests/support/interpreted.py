"""Comparisons that run in Triton's interpreter, several in one process.

The interpreter is chosen when Triton is imported, so they need a process of their own, and one for
all of a script saves most of the time. The script's side is `main`, the test's `check`.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATHS = [HERE.parents[1], HERE.parent]  # of the package, and of what scripts of tests import


def main(comparisons: dict[str, Callable[[], Any]]) -> None:
    """Make the comparisons that the command line names; print a line of JSON for each."""
    import torch

    for name in sys.argv[1:]:
        error = None
        torch.manual_seed(0)
        try:
            comparisons[name]()
        except Exception:
            error = traceback.format_exc()[-2000:]
        print(json.dumps({"name": name, "error": error}), flush=True)


def check(script: str, names: tuple[str, ...], name: str) -> None:
    """Fail where a comparison found a difference, or never ended."""
    found, log = _run(script, names)
    assert name in found, f"the process ended before {name}: {log}"
    assert found[name] is None, found[name]


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder in the interpreter."""
    return subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "BESTK_KERNELS": "attention,layers,pieces,children,sources",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@functools.cache
def _run(script: str, names: tuple[str, ...]) -> tuple[dict[str, str | None], str]:
    done = run(script, *names)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line["error"] for line in lines}, done.stderr[-2000:]
