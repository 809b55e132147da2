"""ROUGE-1, -2 and -L by rouge-score: F-measure, Porter stemmer on, best reference.

Of several references each score takes the one with the highest F-measure for it, as rouge-score's
own `score_multi` does. There are two oracles. O is of one text, the one with the highest mean of
its three; OR is the paper's, the best text of each measure by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

from bestk_eval.examples import Example
from bestk_eval.extras import require
from bestk_eval.metrics.base import Column, TextMetric
from bestk_eval.statistics import Numbers

_NAMES = {"rouge1": "R1", "rouge2": "R2", "rougeL": "RL"}


class Rouge(TextMetric):
    """Mean and oracle ROUGE of a set."""

    family = "rouge"
    columns = (
        *(
            Column(key=short, title=f"{name} F1, mean", group="Quality")
            for name, short in _NAMES.items()
        ),
        Column(key="R", title="mean of R1, R2, RL", group="Quality", latex=r"$\overline{\rm R}$"),
        *(
            Column(key=f"O{short}", title=f"{name} F1, best text", group="Oracle", latex=short)
            for name, short in _NAMES.items()
        ),
        Column(key="O", title="mean of R1, R2, RL, best text", group="Oracle"),
        Column(
            key="OR", title="mean of OR1, OR2, ORL", group="Oracle", latex=r"$\overline{\rm OR}$"
        ),
    )

    def __init__(self) -> None:
        scorers = require("rouge_score.rouge_scorer", "rouge-score")
        self._scorer = scorers.RougeScorer(list(_NAMES), use_stemmer=True)
        self.signature = (
            f"rouge|stem:porter|score:f1|refs:best|rouge-score:{version('rouge-score')}"
        )

    def score(self, texts: Sequence[str], example: Example) -> Sequence[Sequence[float]]:
        rows = []
        for text in texts:
            found = self._scorer.score_multi(list(example.references), text)
            measures = [100 * found[name].fmeasure for name in _NAMES]
            rows.append([*measures, sum(measures) / len(measures)])
        return rows

    def summarise(self, mean: Numbers, best: Numbers) -> Sequence[float]:
        return [*mean, *best, float(best[: len(_NAMES)].mean())]
