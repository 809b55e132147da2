r"""Arithmetic expressions that reach a number, as a task: right or wrong is a program's word.

    bestk eval recipes/expressions.py --model smollm2 --style plain --beam-size 100 \
        --methods BKS_diverse:stop_ids=198,Temp0.7:stop_ids=198,walk=distinct -o out
    python recipes/expressions.py out

Token 198 of SmolLM2 ends a line, and so a text. The second command prints coverage: the share of
numbers that one of the first n texts reaches, and how many different right expressions there are
among them, for n up to a hundred; for every method of the run.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bestk_eval.examples import Example
from bestk_eval.loading import load_runs
from bestk_eval.tasks import Task

NUMBERS = range(21, 81)
SHOWN = (1, 2, 5, 10, 20, 50, 100)

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_PROMPT = (
    "Write each number as a sum, a difference or a product.\n\n"
    "7 = 3 + 4\n20 = 4 * 5\n15 = 20 - 5\n16 = 2 * 8\n9 = 2 + 3 + 4\n90 = 100 - 10\n{input} ="
)


def value(text: str) -> int | None:
    """Compute an expression of whole numbers with +, - and *; None where it is none.

    >>> value("3 + 4 * 2"), value("7"), value("two")
    (11, None, None)
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _value(tree) if isinstance(tree, ast.BinOp) else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def is_right(example: Example, text: str) -> bool:
    """Return whether a text is an expression that reaches the number."""
    return value(text) == int(example.input)


def coverage(example: Example, texts: Sequence[str], most: int) -> tuple[bool, int]:
    """Return whether one of the first texts is right, and how many different right ones are."""
    right = {" ".join(text.split()) for text in texts[:most] if is_right(example, text)}
    return bool(right), len(right)


def _value(tree: ast.expr) -> int:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _OPERATORS[type(tree.op)](_value(tree.left), _value(tree.right))
    raise ValueError("only whole numbers, +, - and *")


def main() -> None:
    """Print the coverage of every method of some runs."""
    found = load_runs([Path(folder) for folder in sys.argv[1:]])
    print("| method | " + " | ".join(f"n={n}" for n in SHOWN) + " | nodes |")
    print("|:--" + "|--:" * (len(SHOWN) + 1) + "|")
    for row, pools in found.pools.items():
        cells = []
        for n in SHOWN:
            told = [coverage(pool.example, pool.texts, n) for pool in pools]
            share = 100 * sum(is_any for is_any, _ in told) / len(told)
            cells.append(f"{share:.0f}% ({sum(count for _, count in told) / len(told):.1f})")
        nodes = sum(pool.expanded for pool in pools) / len(pools)
        print(f"| {row} | {' | '.join(cells)} | {nodes:.0f} |")


TASK = Task(
    name="expressions",
    kind="text",
    plain=_PROMPT,
    chat=_PROMPT,
    max_new_tokens=12,
    examples=lambda: [Example(id=str(n), input=str(n), references=()) for n in NUMBERS],
)

if __name__ == "__main__":
    main()
