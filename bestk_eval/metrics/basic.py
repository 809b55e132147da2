"""How many texts a search completed, and what they cost: counts, seconds, expansions, calls."""

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
    signature = f"counts|merge:equal-text|v:{__version__}"
    columns = (
        Column(key="S", title="texts completed", group="Stat", better=0),
        Column(key="|S|", title="different texts", group="Stat", better=1, latex="$|S|$"),
        Column(key="Done", title="% of examples with a completed text", group="Stat", better=1),
    )

    def score(self, pool: Pool, view: str, top: int) -> Sequence[float]:
        return [pool.num_texts, len(pool.texts), 100.0 * bool(pool.texts)]


class SearchCost(SetMetric):
    """Seconds are a batch's wall-clock time over its examples."""

    family = "cost"
    signature = "cost|seconds:wall,batch/size"
    columns = (
        Column(key="Time", title="seconds per example", group="Cost", better=-1),
        Column(key="Nodes", title="node expansions", group="Cost", better=0),
        Column(key="Calls", title="model calls", group="Cost", better=0),
    )

    def score(self, pool: Pool, view: str, top: int) -> Sequence[float]:
        seconds = float("nan") if pool.seconds is None else pool.seconds
        return [seconds, pool.expanded, pool.model_calls]
