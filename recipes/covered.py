"""Coverage: tasks where a program says whether a text is right, and how many are found.

Of every method the share of examples that one of its first n texts solves, how many different
right texts there are among them, and the share that is solved once so many tokens were spent. A
recipe of such a task gives `is_right` and calls `main`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bestk_eval.examples import Example, Pool
from bestk_eval.loading import load_runs
from bestk_eval.statistics import estimate

SHOWN = (1, 2, 5, 10, 20, 50, 100)
Judge = Callable[[Example, str], bool]


def ended(methods: Sequence[str]) -> list[str]:
    """Have a line end the text: token 198 of SmolLM2.

    >>> ended(["BS", "BKS_mean:k=25"])
    ['BS:stop_ids=198', 'BKS_mean:k=25,stop_ids=198']
    """
    return [f"{name}{',' if ':' in name else ':'}stop_ids=198" for name in methods]


def coverage(
    example: Example, texts: Sequence[str], is_right: Judge, shown: Sequence[int] = SHOWN
) -> list[tuple[bool, int]]:
    """Return for every n whether one of the first n texts is right, and how many different are."""
    kept = [" ".join(text.split()) if is_right(example, text) else None for text in texts]
    right = [len({text for text in kept[:n] if text is not None}) for n in shown]
    return [(count > 0, count) for count in right]


def table(pools: dict[str, list[Pool]], is_right: Judge) -> str:
    """Write a row for each method."""
    lines = ["| method | " + " | ".join(f"n={n}" for n in SHOWN) + " | different | expansions |"]
    lines.append("|:--" + "|--:" * (len(SHOWN) + 2) + "|")
    for row, members in pools.items():
        told = np.array([coverage(pool.example, pool.texts, is_right) for pool in members])
        cells = []
        for place in range(len(SHOWN)):
            found = estimate(100 * told[:, place, 0].astype(float), len(told))
            half = ((found.high or 0) - (found.low or 0)) / 2
            count = told[:, place, 1].mean()
            cells.append(f"{found.value:.0f}%\N{PLUS-MINUS SIGN}{half:.0f} ({count:.1f})")
        texts = sum(len(pool.texts) for pool in members) / len(members)
        spent = sum(pool.expanded for pool in members) / len(members)
        lines.append(f"| {row} | {' | '.join(cells)} | {texts:.0f} | {spent:.0f} |")
    return "\n".join(lines)


def main(is_right: Judge, description: str) -> None:
    """Print the coverage of every method of some runs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    found = load_runs(options.folders, data_dir=options.data_dir)
    print(table({row: list(pools) for row, pools in found.pools.items()}, is_right))
