"""Rows and jobs for the batch tests; what killed processes run must be importable."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

OPTIONS = ("--model", "toy", "--beam-size", "3", "--max-new-tokens", "6", "-n", "2")
WORDS = ("the", "old", "dog", "near", "a", "quiet", "house", "every", "bird")


def rows_of(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows with prompts of unequal lengths, whose searches are of unequal lengths too."""
    source = random.Random(seed)
    rows = []
    for number in range(count):
        words = source.choices(WORDS, k=source.choice([1, 2, 3, 9, 25]))
        row: dict[str, Any] = {"id": f"r{number}", "prompt": " ".join(words), "tag": number**2}
        if number % 5 == 3:
            row["options"] = {"max_new_tokens": 3}
        rows.append(row)
    return rows


def write_rows(path: Path, rows: list[Any]) -> Path:
    """Write JSON lines; a string is a line as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run_cli(*arguments: str) -> None:
    """Run a command line and end the process with its exit code: what gets killed."""
    import torch

    from bestk.cli import main

    torch.set_num_threads(1)
    os._exit(main(["batch", *arguments]))
