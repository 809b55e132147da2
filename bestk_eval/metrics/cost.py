"""What the texts of an example cost: seconds, node expansions, model calls."""

from __future__ import annotations

from collections.abc import Sequence

from bestk_eval.examples import Pool
from bestk_eval.metrics.base import Column, SetMetric


class SearchCost(SetMetric):
    """Seconds are a batch's wall-clock time over its examples."""

    family = "cost"
    columns = (
        Column(key="Time", title="seconds per example", group="Cost", better=-1),
        Column(key="Nodes", title="node expansions", group="Cost", better=0),
        Column(key="Calls", title="model calls", group="Cost", better=0),
    )

    @property
    def signature(self) -> str:
        return "cost|seconds:wall,batch/size"

    def score(self, pool: Pool, view: str, top: int) -> Sequence[float]:
        seconds = float("nan") if pool.seconds is None else pool.seconds
        return [seconds, pool.expanded, pool.model_calls]
