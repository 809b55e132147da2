r"""Arithmetic expressions that reach a number, as a task: right or wrong is a program's word.

    bestk eval recipes/expressions.py --model smollm2 --style plain --beam-size 100 \
        --methods BKS_diverse:stop_ids=198,Temp0.7:stop_ids=198,walk=distinct -o out
    python recipes/expressions.py out

Token 198 of SmolLM2 ends a line, and so a text. The second command prints the coverage of every
method of the run, by `covered.py`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

from bestk_eval.examples import Example
from bestk_eval.tasks import Task

NUMBERS = range(21, 81)

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


def _value(tree: ast.expr) -> int:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _OPERATORS[type(tree.op)](_value(tree.left), _value(tree.right))
    raise ValueError("only whole numbers, +, - and *")


TASK = Task(
    name="expressions",
    kind="text",
    plain=_PROMPT,
    chat=_PROMPT,
    max_new_tokens=12,
    examples=lambda: [Example(id=str(n), input=str(n), references=()) for n in NUMBERS],
)

if __name__ == "__main__":
    from covered import main

    main(is_right, "Coverage of arithmetic expressions.")
