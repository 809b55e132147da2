"""How many texts: S, |S|, and how often a search completed any text at all."""

from __future__ import annotations

from collections.abc import Sequence

from bestk import __version__
from bestk_eval.examples import Pool
from bestk_eval.metrics.base import Column, SetMetric


class Counts(SetMetric):
    """S counts completed texts, |S| different ones, Done whether there was one.

    The same for every view: they are what the views choose from.
    """

    family = "counts"
    columns = (
        Column(key="S", title="texts completed", group="Stat", better=0),
        Column(key="|S|", title="different texts", group="Stat", better=1, latex="$|S|$"),
        Column(key="Done", title="% of examples with a completed text", group="Stat", better=1),
    )

    @property
    def signature(self) -> str:
        return f"counts|merge:equal-text|v:{__version__}"

    def score(self, pool: Pool, view: str, top: int) -> Sequence[float]:
        return [pool.num_texts, len(pool.texts), 100.0 * bool(pool.texts)]
