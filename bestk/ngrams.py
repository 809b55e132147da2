"""Words and n-grams of texts, and how different a set of texts is by them.

Words are lower-cased runs of letters and digits, with apostrophes and hyphens inside; punctuation
is no word. n-grams do not cross texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

ORDERS = (1, 2, 3)

_WORD = re.compile(r"\w+(?:['’\-]\w+)*")


def words(text: str) -> list[str]:
    """Split a text into words.

    >>> words("Don't stop, well-known Dog!")
    ["don't", 'stop', 'well-known', 'dog']
    """
    return _WORD.findall(text.lower())


def ngrams(row: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """List the n-grams of a row of words."""
    return [tuple(row[start : start + n]) for start in range(len(row) - n + 1)]


def distinctness(texts: Sequence[str]) -> list[float]:
    """Return D-1, D-2 and D-3: different n-grams over the number of words.

    >>> distinctness(["a dog runs", "a dog sits"])
    [0.6666666666666666, 0.5, 0.3333333333333333]
    """
    rows = [words(text) for text in texts]
    total = sum(map(len, rows))
    if not total:
        return [0.0 for _ in ORDERS]
    return [len({gram for row in rows for gram in ngrams(row, n)}) / total for n in ORDERS]
