"""Distinctness: different n-grams over words, within the texts of an example.

The paper's D-1, D-2 and D-3 and their mean. `bestk.rerank.ngrams` says what a word is; the divisor
is the number of words, not of n-grams, for every n.
"""

from __future__ import annotations

from collections.abc import Sequence

from bestk import __version__
from bestk.rerank.ngrams import ORDERS, distinctness
from bestk_eval.examples import Pool
from bestk_eval.metrics.base import Column, SetMetric


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
