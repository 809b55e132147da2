r"""Regular expressions from examples, as a task: right or wrong is a program's word.

    bestk eval recipes/regexes.py --model smollm2 --style plain --beam-size 100 \
        --methods BKS_diverse:stop_ids=198 -o out
    python recipes/regexes.py out

Right is one that matches every word of the first list and none of the second, whole. A list of the
words with bars between them is right too, where it fits into the longest text.
"""

from __future__ import annotations

import random
import re
import warnings

from bestk_eval.examples import Example
from bestk_eval.tasks import Task

# What a word is made of, by the expression it comes from, and what words beside it look like.
_FORMS: tuple[tuple[str, str, str], ...] = (
    ("d3", "ddd", "dd"),
    ("c2", "cc", "dd"),
    ("cd", "cd", "dc"),
    ("dc", "dc", "cd"),
    ("ends", "acb", "acc"),
    ("Xd", "Xd", "Xc"),
    ("dX", "dX", "cX"),
    ("upper", "Ucc", "ccc"),
    ("vowel", "vcc", "ccv"),
    ("hex", "dcd", "ccc"),
    ("dash", "c-d", "cd"),
    ("double", "dd-dd", "d-d"),
)
_LETTERS = {"d": "0123456789", "c": "bcdfghjklm", "v": "aeiou", "U": "BCDFGHKLM"}
_PROMPT = (
    "Write a regular expression that matches the words on the left and not those on the right.\n\n"
    "cat, cut, cot ; car, dog = c.t\n"
    "12, 47, 90 ; a1, xy = \\d\\d\n"
    "ab, aab, aaab ; b, ba = a+b\n"
    "red, blue ; green, pink = red|blue\n"
    "x1, y7, z3 ; 1x, xx = [a-z]\\d\n"
    "{input} ="
)
NUM_EXAMPLES = 60
_LONGEST = 48  # characters of an expression that is tried


def lists(number: int) -> tuple[list[str], list[str]]:
    """Make the words that are to match and those that are not; always the same."""
    source = random.Random(number)
    _, yes, no = _FORMS[number % len(_FORMS)]
    fixed = {letter: source.choice("pqrstwxz") for letter in "abX"}

    def word(form: str) -> str:
        chars = [fixed.get(one) or source.choice(_LETTERS.get(one, one)) for one in form]
        return "".join(chars)

    matching: list[str] = []
    while len(matching) < 3:
        if (made := word(yes)) not in matching:
            matching.append(made)
    others: list[str] = []
    while len(others) < 3:
        if (made := word(no)) not in [*matching, *others]:
            others.append(made)
    return matching, others


def is_right(example: Example, text: str) -> bool:
    """Return whether a text is an expression that tells the lists apart."""
    matching, others = (part.strip().split(", ") for part in example.input.split(";"))
    text = text.strip()
    if not text or len(text) > _LONGEST:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what Python may read otherwise one day
            found = re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return all(map(found.fullmatch, matching)) and not any(map(found.fullmatch, others))


def examples() -> list[Example]:
    """List the tasks."""
    told = [" ; ".join(", ".join(part) for part in lists(n)) for n in range(NUM_EXAMPLES)]
    return [Example(id=str(n), input=text, references=()) for n, text in enumerate(told)]


TASK = Task(
    name="regexes", kind="text", plain=_PROMPT, chat=_PROMPT, max_new_tokens=12, examples=examples
)

if __name__ == "__main__":
    from covered import main

    main(is_right, "Coverage of regular expressions.")
