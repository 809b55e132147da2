"""Distinctness: different n-grams over words, within the texts of an example.

The paper's D-1, D-2 and D-3 and their mean. Words are lower-cased runs of letters and digits, with
apostrophes and hyphens inside; punctuation is no word. n-grams do not cross texts; the divisor is
the number of words, not of n-grams, for every n.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bestk.evaluation.examples import Pool
from bestk.evaluation.metrics.base import Column, SetMetric
from bestk.version import __version__

ORDERS = (1, 2, 3)

_WORD = re.compile(r"\w+(?:['’\-]\w+)*")


class Distinct(SetMetric):
    """D-n in percent; a set without words has 0."""

    family = "distinct"
    columns = (
        *(
            Column(key=f"D-{n}", title=f"different {n}-grams per word, %", group="Diversity")
            for n in ORDERS
        ),
        Column(
            key="D", title="mean of D-1, D-2, D-3", group="Diversity", latex=r"$\overline{\rm D}$"
        ),
    )

    @property
    def signature(self) -> str:
        return f"distinct|n:1-3|words:lower,inner-apostrophe|per:word|v:{__version__}"

    def score(self, pool: Pool, view: str, top: int) -> Sequence[float]:
        values = [100 * value for value in distinctness(pool.chosen(view, top))]
        return [*values, sum(values) / len(values)]


def distinctness(texts: Sequence[str]) -> list[float]:
    """Return D-1, D-2 and D-3 of a set of texts.

    >>> distinctness(["a dog runs", "a dog sits"])
    [0.6666666666666666, 0.5, 0.3333333333333333]
    """
    lists = [words(text) for text in texts]
    total = sum(map(len, lists))
    if not total:
        return [0.0 for _ in ORDERS]
    return [len({gram for row in lists for gram in ngrams(row, n)}) / total for n in ORDERS]


def words(text: str) -> list[str]:
    """Split a text into words.

    >>> words("Don't stop, well-known Dog!")
    ["don't", 'stop', 'well-known', 'dog']
    """
    return _WORD.findall(text.lower())


def ngrams(row: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """List the n-grams of a row of words."""
    return [tuple(row[start : start + n]) for start in range(len(row) - n + 1)]
